// The operators on rows and the Linears on one panel of one instruction set, for tests. The rest of the program reaches
// them through `forward` alone.
#pragma once

#include "kernels.h"

namespace orcaserve {

struct RowsTable {
  const char* isa;
  void (*multiply_float32)(const Matrix&, int, const Operand&, int, int, float*, const uint8_t*);
  void (*multiply_bfloat16)(const Matrix&, int, const Operand&, int, int, float*, const uint8_t*);
  void (*end_multiply)();
  void (*read_row)(const Table&, int64_t, int, float*);
  void (*add_row)(const Table&, int64_t, int, float*);
  void (*normalise)(Norm, float, const NormWeights&, const float*, int, float*);
  void (*quantise)(const Matrix&, const float*, const Operand&, int);
  void (*store_tile)(const float*, int, int, const float*, float*, int64_t);
  void (*add_tile)(const float*, int, int, const float*, float*, int64_t);
  void (*activate_tile)(Activation, const float*, int, int, const float*, float*, int64_t);
  void (*gate_tile)(Activation, const float*, const float*, int, int, const float*, const float*, float*, int64_t);
};

}  // namespace orcaserve
