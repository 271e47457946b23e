// AdapterPlan: which rows of an iteration have which adapters, block by block, with the rows of each adapter together.
#pragma once

#include <vector>

#include "model.h"

namespace orcaserve {

class AdapterPlan {
 public:
  // adapter_of: [n_requests], null where a request has none. Sets it->adapters and it->adapter_width to what lives in this
  // object until the next call, or to null if no request has one. Everything else of `it` is there.
  void lay_out(const Adapter* const* adapter_of, Iteration* it);

 private:
  std::vector<int32_t> rows_;
  std::vector<AdapterRun> groups_, pieces_;
  std::vector<AdapterRows> blocks_;
};

}  // namespace orcaserve
