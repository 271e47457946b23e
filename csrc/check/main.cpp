// kernel_check: the kernels without Python, against plain loops in double precision. Meant to be built with sanitizers,
// for other architectures, and for instruction sets that this machine emulates.
//
//   kernel_check [--quick] [set ...]   without sets: all that this build has and the machine can run
// --quick: long texts in one kind only, as takes a quarter of the time.
//
// Prints a line per check; the exit code is 1 if one failed and 2 if a set is not to be had.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "../isa.h"
#include "checks.h"

namespace {

void check_set(orcaserve::check::Report& report, bool quick) {
  using namespace orcaserve::check;
  check_linears(report);
  check_models(report);
  check_long_texts(report, quick);
  check_sampling(report);
  check_refusals(report);
}

bool has(const std::vector<std::string>& sets, const char* name) {
  return std::find(sets.begin(), sets.end(), name) != sets.end();
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> sets;
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0)
      quick = true;
    else
      sets.emplace_back(argv[i]);
  }
  if (sets.empty()) sets = orcaserve::available_isas();
  orcaserve::check::Report report;
  orcaserve::check::check_team(report);
  orcaserve::check::check_shared(report);
  orcaserve::check::check_packing(report);
  for (const std::string& set : sets) {
    try {
      orcaserve::set_isa(set);
    } catch (const std::invalid_argument& error) {
      std::fprintf(stderr, "%s: %s\n", set.c_str(), error.what());
      return 2;
    }
    std::printf("-- %s\n", set.c_str());
    check_set(report, quick);
  }
  if (has(sets, "amx_shim") && has(sets, "avx512vnni")) orcaserve::check::check_tiles(report);
  std::printf("%d checks, %d failed\n", report.n_checks(), report.n_failed());
  return report.n_failed() ? 1 : 0;
}
