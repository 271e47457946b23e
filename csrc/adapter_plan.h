// AdapterPlan: which rows of an iteration have which adapters, block by block, with the rows of each adapter together.
// Pieces of them are what one member makes ready for a Linear: it quantises a row and multiplies it by A in one go, so that
// adapters need no phase, and no barrier, of their own.
#pragma once

#include <vector>

#include "model.h"

namespace orcaserve {

class AdapterPlan {
 public:
  // adapter_of: [n_requests], null where a request has none. Sets it->adapters and it->adapter_width to what lives in this
  // object until the next call, or to null if no request has one. Everything else of `it` is there. n_members: of the team.
  void lay_out(const Adapter* const* adapter_of, int n_members, Iteration* it);

 private:
  void lay_out_block(const Adapter* const* adapter_of, const std::vector<const Adapter*>& different, int piece_rows, int begin,
                     int end, const Iteration& it);

  std::vector<int32_t> rows_;
  std::vector<AdapterRun> groups_, pieces_;
  std::vector<AdapterRows> blocks_;
};

}  // namespace orcaserve
