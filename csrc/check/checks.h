// The checks of the kernels. Each gives one line to the report for everything it looks at; kernels() is the set they
// run.
#pragma once

#include "../model.h"
#include "report.h"

namespace orcaserve::check {

inline const char* name(Format format) {
  constexpr const char* kNames[] = {"float32", "bfloat16", "int8", "int4"};
  return kNames[static_cast<int>(format)];
}

inline const char* name(Storage storage) {
  constexpr const char* kNames[] = {"float32", "bfloat16", "int8"};
  return kNames[static_cast<int>(storage)];
}

// Of no instruction set.
void check_team(Report& report);
void check_shared(Report& report);
void check_packing(Report& report);

// Of the set in use.
void check_linears(Report& report);
void check_models(Report& report);
void check_long_texts(Report& report, bool quick);
void check_refusals(Report& report);
void check_sampling(Report& report);

// The int8 Linear by tiles in plain C++ against that of AVX-512 VNNI; leaves another set in use.
void check_tiles(Report& report);

}  // namespace orcaserve::check
