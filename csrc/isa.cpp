#include "isa.h"

#include <atomic>
#include <stdexcept>

namespace orcaserve {

namespace plain {
extern const Kernels kernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
#endif

namespace {

bool always() { return true; }

struct Candidate {
  const Kernels* kernels;
  bool (*supported)();
};

#if defined(__x86_64__)
// These ask the processor and the operating system, which must save the wide registers.
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

const Candidate kCandidates[] = {
    {&plain::kernels, always}, {&avx2::kernels, has_avx2}, {&avx512::kernels, has_avx512}};
#else
const Candidate kCandidates[] = {{&plain::kernels, always}};
#endif

const Kernels* widest() {
  const Kernels* best = nullptr;
  for (const Candidate& c : kCandidates)
    if (c.supported()) best = c.kernels;
  return best;
}

std::atomic<const Kernels*>& chosen() {
  static std::atomic<const Kernels*> kernels{widest()};
  return kernels;
}

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Candidate& c : kCandidates)
    if (c.supported()) names.emplace_back(c.kernels->isa);
  return names;
}

const Kernels& kernels() { return *chosen().load(std::memory_order_acquire); }

void set_isa(const std::string& name) {
  std::string known;
  for (const Candidate& c : kCandidates) {
    if (name == c.kernels->isa) {
      if (!c.supported()) throw std::invalid_argument("this machine cannot run the instruction set '" + name + "'");
      chosen().store(c.kernels, std::memory_order_release);
      return;
    }
    known += known.empty() ? c.kernels->isa : std::string(", ") + c.kernels->isa;
  }
  throw std::invalid_argument("unknown instruction set; this build has: " + known);
}

}  // namespace orcaserve
