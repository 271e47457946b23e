// What the host keeps for the kernels: a K/V region, the pages of requests, and the layout of an iteration.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "../native_model.h"
#include "array.h"
#include "oracle.h"
#include "toy_adapter.h"

namespace orcaserve::check {

// Tokens of a request that go through the model together: its prompt, a chunk of it, or the token that came last.
// before: of a new request, whose first pages it shares, n_shared tokens of them; they may come in the same iteration, earlier.
struct Piece {
  int request;
  std::vector<int> tokens;
  int before = -1;
  int n_shared = 0;
};
using Batch = std::vector<Piece>;

// Logits of the last row of every request of an iteration.
using Logits = std::vector<Array<float>>;

// The adapter of a request, or null: see Host.
const ToyAdapter* adapter_of(int request, const std::vector<const ToyAdapter*>& adapters);

class Host {
 public:
  // adapters: request r has the (r % (their number + 1))-th of them, counted from 1; 0: it has none.
  Host(const Model& model, Storage storage, int n_pages, std::vector<const ToyAdapter*> adapters = {});

  // One iteration through consecutive runs of layers (or the one of all), each of which sees its own layers of the
  // region. A request takes the set (its number % 2) of the turns. observed: Iteration::observed, or null.
  Logits run(const std::vector<NativeModel*>& stages, Team& team, const Batch& batch, const Turns& turns,
             double* const* observed = nullptr);

  const KVRegion& region() const { return region_; }

 private:
  struct Request {
    int n_tokens = 0;
    std::vector<int32_t> pages;
  };

  KVRegion from_layer(int layer) const;

  int vocab_, hidden_, window_;
  std::vector<const ToyAdapter*> adapters_;
  Array<uint8_t> keys_, values_;
  Array<float> key_scales_, value_scales_;
  KVRegion region_;
  std::vector<int32_t> free_pages_;
  std::map<int, Request> requests_;
};

}  // namespace orcaserve::check
