// NativeModel: a worker's packed layers, run one iteration at a time.
#pragma once

#include <vector>

#include "adapter_plan.h"
#include "buffer.h"
#include "kernels.h"

namespace orcaserve {

class NativeModel {
 public:
  // The weights are borrowed and must outlive the model. `model.layers` is ignored: `layers` is taken instead. Throws
  // std::invalid_argument if sizes disagree.
  NativeModel(const Model& model, std::vector<Layer> layers);

  const Model& model() const { return model_; }

  // Runs the batch that `it` describes, a long one piece by piece; fills in request_of, blocks, max_context and, where it is
  // null, hidden. Throws std::invalid_argument for anything that would read or write elsewhere. Not thread-safe.
  // adapter_of: the adapter of each request or null; null: nobody has one. Adapters have passed `check_adapter`.
  void run(Iteration it, const KVRegion& kv, Team& team, const Adapter* const* adapter_of = nullptr);

  // Throws std::invalid_argument if the layers [n_layers] of an adapter are not of this model's sizes.
  void check_adapter(const AdaptedLayer* layers) const;

 private:
  void check(const Iteration& it, const KVRegion& kv) const;
  void check_experts(const Layer& layer) const;
  void run_piece(Iteration it, int begin, int end, const KVRegion& kv, Team& team, const Adapter* const* adapter_of);

  Model model_;
  std::vector<Layer> layers_;
  int window_ = 0;  // the largest, 0 if some layer has none
  std::vector<int32_t> starts_, contexts_, request_of_, logit_rows_;  // of a piece
  AdapterPlan adapters_;
  Buffer hidden_, workspace_;
};

// Throws std::invalid_argument naming `what` if the matrix is not [n_out, n_in] in a form the kernels can read.
void check_matrix(const Matrix& w, const char* what, int n_out, int n_in, bool interleaved = false);

}  // namespace orcaserve
