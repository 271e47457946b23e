// Small random models of odd sizes, packed as the loader packs real ones.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "../native_model.h"
#include "array.h"
#include "oracle.h"
#include "packed.h"
#include "toy_adapter.h"

namespace orcaserve::check {

struct Shape {
  std::string name;
  int hidden, n_heads, n_kv_heads, head_dim, intermediate, vocab, n_layers;
  Norm norm;
  Activation activation;
  bool gated, biased;
  int rope_dim;
  bool positions;  // learned ones
  RowFormat embedding;
  bool tied;  // the head has the embedding's weights
  // What most families have not.
  bool pre_norm = true, post_norm = false, embedding_norm = false;
  bool q_norm = false, norms_all_heads = false;
  bool parallel = false;
  float embedding_scale = 1, residual_scale = 1, logit_scale = 1, logit_softcap = 0;
  int local_rope_dim = 0;          // of every second layer
  int unturned = -1;               // a layer
  std::vector<int> windows = {};   // of layers in turn; empty: none
  float attention_softcap = 0;
  bool alibi = false;
  int n_experts = 0, n_chosen = 0, expert_columns = 0;
  bool shares_of_chosen = true;
  int dense_layer = -1;  // one without experts
};

extern const Shape kLlama, kShallow, kGpt2, kOdd, kSandwich, kParallel, kWindows, kExperts, kManyExperts, kShallowExperts;

// The weights of a model and everything else that a NativeModel borrows.
class ToyModel {
 public:
  // head: format of the head, which may differ from the layers'. adapted: has two adapters, of different ranks.
  ToyModel(const Shape& shape, Format layers, Format head, bool adapted = false);

  // All layers, or a run of them as a worker has them.
  NativeModel native() const { return native(0, model_.n_layers); }
  NativeModel native(int first_layer, int n_layers) const;

  const Model& model() const { return model_; }
  const Turns& turns() const { return turns_; }
  const std::vector<const ToyAdapter*>& adapters() const { return adapters_; }

 private:
  Matrix matrix(int n_out, int n_in, Format format, bool interleaved = false);
  Matrix matrix(const Array<float>& weight, int n_out, int n_in, Format format, bool interleaved);
  Matrix tied_head(Format format);
  NormWeights norm() { return norm(shape_.hidden); }
  NormWeights norm(int n);
  Table table(RowFormat format, int n_rows);
  const float* keep(Array<float> x);

  Shape shape_;
  Random random_{11};
  std::deque<Array<float>> floats_;   // a deque: what lies in it never moves
  std::deque<Array<uint8_t>> bytes_;
  std::deque<Packed> packed_;
  std::vector<Layer> layers_;
  std::deque<std::vector<Expert>> experts_;
  Turns turns_;
  Model model_{};
  std::deque<ToyAdapter> made_;
  std::vector<const ToyAdapter*> adapters_;
};

}  // namespace orcaserve::check
