// Small random models of odd sizes, packed as the loader packs real ones.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "../native_model.h"
#include "array.h"
#include "packed.h"

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
};

extern const Shape kLlama, kShallow, kGpt2, kOdd;

// The weights of a model and everything else that a NativeModel borrows.
class ToyModel {
 public:
  // head: format of the head, which may differ from the layers'.
  ToyModel(const Shape& shape, Format layers, Format head);

  // All layers, or a run of them as a worker has them.
  NativeModel native() const { return native(0, model_.n_layers); }
  NativeModel native(int first_layer, int n_layers) const;

  const Model& model() const { return model_; }
  const Array<float>& frequencies() const { return frequencies_; }  // [2][rope_dim / 2]

 private:
  Matrix matrix(int n_out, int n_in, Format format, bool interleaved = false);
  Matrix matrix(const Array<float>& weight, int n_out, int n_in, Format format, bool interleaved);
  Matrix tied_head(Format format);
  NormWeights norm();
  Table table(RowFormat format, int n_rows);
  const float* keep(Array<float> x);

  Shape shape_;
  Random random_{11};
  std::deque<Array<float>> floats_;   // a deque: what lies in it never moves
  std::deque<Array<uint8_t>> bytes_;
  std::deque<Packed> packed_;
  std::vector<Layer> layers_;
  Array<float> frequencies_;
  Model model_{};
};

}  // namespace orcaserve::check
