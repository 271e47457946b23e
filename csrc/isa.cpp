#include "isa.h"

#include <atomic>
#include <stdexcept>

#include "cpu.h"

namespace orcaserve {

// instruction_sets.inc is written by the build: a line ORCASERVE_SET(<set>) for every set it has kernels for.
#define ORCASERVE_SET(isa)          \
  namespace isa {                   \
  extern const KernelTable kernels; \
  }                                 \
  namespace cpu {                   \
  bool has_##isa();                 \
  }
#include "instruction_sets.inc"
#undef ORCASERVE_SET

namespace {

struct Candidate {
  const KernelTable* kernels;
  bool (*supported)();
};

const Candidate kCandidates[] = {
#define ORCASERVE_SET(isa) {&isa::kernels, cpu::has_##isa},
#include "instruction_sets.inc"
#undef ORCASERVE_SET
};

const KernelTable* widest() {
  const KernelTable* best = nullptr;
  for (const Candidate& c : kCandidates)
    if (c.supported()) best = c.kernels;
  return best;
}

std::atomic<const KernelTable*>& chosen() {
  static std::atomic<const KernelTable*> table{widest()};
  return table;
}

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Candidate& c : kCandidates)
    if (c.supported()) names.emplace_back(c.kernels->isa);
  return names;
}

const KernelTable& kernels() { return *chosen().load(std::memory_order_acquire); }

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
