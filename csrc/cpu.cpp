#include "cpu.h"

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace orcaserve::cpu {

bool has_plain() { return true; }

#if defined(__x86_64__)

// __builtin_cpu_supports answers for the processor and the system together: for AVX, AVX-512 and AMX the compiler's
// run-time library also looks at XCR0, where the system says which registers it saves.

namespace {

// Linux gives the tiles' large state only to processes that ask for it. Refused, for example, where a thread has a
// signal stack too small for that state.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool has_avxvnni() { return has_avx2() && __builtin_cpu_supports("avxvnni"); }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool has_avx512vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }

bool has_amx() {
  static const bool usable = has_avx512vnni() && __builtin_cpu_supports("avx512bf16") &&
                             __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-int8") &&
                             __builtin_cpu_supports("amx-bf16") && may_use_tiles();
  return usable;
}

#endif

}  // namespace orcaserve::cpu
