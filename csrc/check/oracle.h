// The oracle: what the kernels should compute, in plain loops and double precision, token by token.
//
// It reads the packed weights by the description in model.h and quantises activations, keys and values where the
// kernels do, so that what differs is float rounding alone. That may move a quantised number to its neighbour now and
// then (see Closeness in compare.h).
#pragma once

#include <vector>

#include "../model.h"
#include "array.h"

namespace orcaserve::check {

using Doubles = std::vector<double>;

// A matrix unpacked: weight [n_out][n_in_padded], of turned inputs for kInt8; outputs in their own order.
struct Dense {
  Format format;
  int n_out, n_in, n_in_padded, group;
  Doubles weight;
  Doubles bias;  // empty without
  std::vector<int> exact;        // inputs that are left out of the integers
  std::vector<Doubles> columns;  // their weights [n_out]

  // interleaved: panels of gate and up take turns; the result holds the gate's outputs first, then up's.
  explicit Dense(const Matrix& packed, bool interleaved = false);

  Doubles operator()(Doubles x) const;
};

// Multiplies each `at_once` numbers by the Hadamard matrix of that size, over its root, after filling up with zeros to
// n.
void turn(Doubles& x, int n, int at_once = kHadamard);
// Replaces each `group` numbers by the nearest multiples of (the largest of them) / 127.
void quantise(Doubles& x, int group);
Doubles read_row(const Table& table, int64_t row, int width);

// One request: what attention remembers of it. keys and values: [layer][token][kv heads * head_dim].
struct Remembered {
  std::vector<std::vector<Doubles>> keys, values;
  std::vector<Doubles> squares;  // as Iteration::observed, for all tokens so far
};

// Of each rope of a model, two sets of frequencies: [2][dim / 2].
using Turns = Array<float>[kRopes];

class ToyAdapter;

class Oracle {
 public:
  Oracle(const Model& model, Storage storage);

  // The next token of a request, which takes this set of `turns`, and has an adapter, or none; returns its logits.
  Doubles step(Remembered& request, int token, const Turns& turns, int set, const ToyAdapter* adapter = nullptr) const;

 private:
  struct DenseLayer {
    const Layer* layer;
    Dense qkv, out;
    std::vector<Dense> router;     // of a layer of experts
    std::vector<Dense> ups, downs;  // of each expert, or the layer's own
  };

  Doubles norm(const NormWeights& w, const Doubles& x) const;
  void norm_heads(const NormWeights& w, double* heads, int n_heads) const;
  void turn_heads(Doubles& heads) const;
  Doubles attend(const Doubles& qkv, const std::vector<Doubles>& keys, const std::vector<Doubles>& values,
                 int window) const;
  void rotate(const Rope& rope, double* head, int position, const float* frequencies) const;
  Doubles stored(Doubles x) const;
  Doubles mlp(const DenseLayer& layer, size_t i, const Doubles& x, Doubles& squares,
              const AdaptedLayer* adapter = nullptr) const;
  Doubles experts(const DenseLayer& layer, const Doubles& x, Doubles* squares) const;
  void rescore(const Doubles& x, Doubles& logits) const;

  Model model_;
  Storage storage_;
  std::vector<DenseLayer> layers_;
  Dense head_;
};

}  // namespace orcaserve::check
