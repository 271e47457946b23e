#include "cpu.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace orcaserve::cpu {
namespace {

struct Leaf {
  unsigned eax, ebx, ecx, edx;
};

Leaf leaf(unsigned number, unsigned sub) {
  Leaf l{0, 0, 0, 0};
  if (!__get_cpuid_count(number, sub, &l.eax, &l.ebx, &l.ecx, &l.edx)) return {0, 0, 0, 0};
  return l;
}

bool bit(unsigned word, int number) { return (word >> number) & 1; }

// Linux gives the tiles' large state only to processes that ask for it.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && bit(leaf(1, 0).ecx, 29);
}

bool has_avxvnni() { return has_avx2() && bit(leaf(7, 1).eax, 4); }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool has_avx512vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }

bool has_amx() {
  const unsigned features = leaf(7, 0).edx;
  const bool tiles = bit(features, 24) && bit(features, 25) && bit(features, 22);
  static const bool usable = has_avx512vnni() && bit(leaf(7, 1).eax, 5) && tiles && may_use_tiles();
  return usable;
}

}  // namespace orcaserve::cpu

#endif
