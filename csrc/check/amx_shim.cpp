#include "amx_shim.h"

#include "../cpu.h"

namespace software_tiles {

State& state() {
  static thread_local State s{};
  return s;
}

}  // namespace software_tiles

namespace orcaserve::cpu {

bool has_amx_shim();
bool has_amx_shim() { return has_avx512vnni(); }

}  // namespace orcaserve::cpu
