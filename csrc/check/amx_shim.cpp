#include "../cpu.h"

namespace orcaserve::cpu {

bool has_amx_shim();
bool has_amx_shim() { return has_avx512vnni(); }

}  // namespace orcaserve::cpu
