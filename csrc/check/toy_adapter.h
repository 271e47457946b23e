// A random low-rank adapter of a toy model, packed as orcaserve/native/adapter.py packs real ones.
#pragma once

#include <deque>
#include <vector>

#include "../model.h"
#include "array.h"

namespace orcaserve::check {

class ToyAdapter {
 public:
  // left_out: number of a Linear (of qkv, out, up, down) that stays as it is; -1: none.
  ToyAdapter(const Model& model, int rank, int left_out, uint64_t seed);

  // For a run of layers from this one on.
  Adapter from_layer(int first) const { return {width_, layers_.data() + first}; }
  const AdaptedLayer& layer(size_t i) const { return layers_[i]; }

 private:
  // Of a run of a Linear's outputs.
  struct Gain {
    int first, n_out, start;  // start: its first column
    Array<float> b;           // [n_out][rank]
  };

  AdaptedLinear linear(const Matrix& w, const std::vector<int>& outputs, bool interleaved);
  void pack_a(const Matrix& w, const Array<float>& a, AdaptedLinear* linear);
  static void pack_b(const Array<float>& rows, AdapterNumbers numbers, Array<uint8_t>* to);
  template <typename T>
  const T* keep(std::deque<Array<T>>& kept, Array<T> x) {
    kept.push_back(std::move(x));
    return kept.back().data();
  }

  int rank_, width_ = 0;
  Random random_;
  std::vector<AdaptedLayer> layers_;
  std::deque<Array<float>> floats_;
  std::deque<Array<uint8_t>> bytes_;
  std::deque<Array<int32_t>> ints_;
  std::deque<Array<int64_t>> longs_;
};

}  // namespace orcaserve::check
