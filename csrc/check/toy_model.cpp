#include "toy_model.h"

#include <cmath>
#include <cstring>

#include "oracle.h"


namespace orcaserve::check {

// Sizes that no vector, tile, panel or group divides, where the formats allow it: 4 bits want inputs in 32s.
const Shape kLlama{"llama", 96, 8, 2, 20, 224, 151, 2, Norm::kRms, Activation::kSilu, true, false, 20, false,
                   RowFormat::kQ8_0, true};
const Shape kShallow{"shallow", 96, 8, 2, 20, 224, 151, 1, Norm::kRms, Activation::kRelu, true, false, 20, false,
                     RowFormat::kQ4_1, true};
const Shape kGpt2{"gpt2", 160, 4, 4, 24, 320, 97, 2, Norm::kLayer, Activation::kGeluTanh, false, true, 0, true,
                  RowFormat::kBFloat16, false};
const Shape kOdd{"odd", 83, 5, 1, 12, 101, 50, 3, Norm::kRms, Activation::kGelu, true, true, 8, false,
                 RowFormat::kFloat32, false};

namespace {

constexpr int kMostTokens = 2048;  // of a text, by learned positions

int64_t row_bytes(RowFormat format, int width) {
  switch (format) {
    case RowFormat::kFloat32: return 4 * width;
    case RowFormat::kBFloat16: return 2 * width;
    case RowFormat::kQ8_0: return width / 32 * 34;
    case RowFormat::kQ4_0: return width / 32 * 18;
    default: return width / 32 * 20;
  }
}

// Of a pair of dimensions; the second set of frequencies belongs to another base.
float frequency(int i, int rope_dim) {
  const int pairs = rope_dim / 2;
  return static_cast<float>(std::pow(i < pairs ? 100.0 : 1000.0, -static_cast<double>(i % pairs) / pairs));
}

}  // namespace

const float* ToyModel::keep(Array<float> x) {
  floats_.push_back(std::move(x));
  return floats_.back().data();
}

Matrix ToyModel::matrix(int n_out, int n_in, Format format, bool interleaved) {
  Array<float> weight(static_cast<size_t>(n_out) * n_in);
  random_.fill(weight, 1 / std::sqrt(n_in));
  return matrix(weight, n_out, n_in, format, interleaved);
}

Matrix ToyModel::matrix(const Array<float>& weight, int n_out, int n_in, Format format, bool interleaved) {
  Array<float> bias;
  if (shape_.biased) {
    bias.resize(static_cast<size_t>(n_out));
    random_.fill(bias, 0.1);
  }
  packed_.push_back(pack(format, weight, bias, n_out, n_in, interleaved));
  // Every other matrix of int8 has exact inputs.
  if (format == Format::kInt8 && packed_.size() % 2 == 0)
    make_exact(packed_.back(), weight, {0, 7, n_in - 1}, interleaved);
  return packed_.back().matrix;
}

Matrix ToyModel::tied_head(Format format) {
  Array<float> weight;
  for (int row = 0; row < shape_.vocab; ++row)
    for (double x : read_row(model_.embedding, row, shape_.hidden)) weight.push_back(static_cast<float>(x));
  return matrix(weight, shape_.vocab, shape_.hidden, format, false);
}

NormWeights ToyModel::norm() {
  NormWeights norm{};
  for (const float** vector : {&norm.weight, &norm.bias}) {
    if (vector == &norm.bias && shape_.norm == Norm::kRms) break;
    Array<float> x(static_cast<size_t>(shape_.hidden));
    random_.fill(x, 0.2, vector == &norm.weight ? 1 : 0);
    *vector = keep(std::move(x));
  }
  return norm;
}

// Rows of any bytes would do as 4- and 8-bit blocks, but for their scales, which must be numbers of a middling size.
Table ToyModel::table(RowFormat format, int n_rows) {
  Table table{format, n_rows, row_bytes(format, shape_.hidden), nullptr};
  Array<uint8_t> bytes(static_cast<size_t>(n_rows * table.row_bytes));
  const bool floats = format == RowFormat::kFloat32 || format == RowFormat::kBFloat16;
  const int64_t block = floats ? (format == RowFormat::kFloat32 ? 4 : 2) : row_bytes(format, 32);
  for (size_t start = 0; start < bytes.size(); start += static_cast<size_t>(block)) {
    uint8_t* at = bytes.data() + start;
    if (floats) {
      const float x = random_.normal();
      std::memcpy(at, reinterpret_cast<const uint8_t*>(&x) + 4 - block, static_cast<size_t>(block));
      continue;
    }
    for (int64_t i = 0; i < block; ++i) at[i] = static_cast<uint8_t>(random_.bits());
    // Float16 of about 0.003 for 8 bits and 0.03 for 4, of the minimum -0.28.
    const auto scale = static_cast<uint16_t>((format == RowFormat::kQ8_0 ? 0x1800 : 0x2600) + random_.below(1024));
    const uint16_t minimum = 0xb47b;
    std::memcpy(at, &scale, 2);
    if (format == RowFormat::kQ4_1) std::memcpy(at + 2, &minimum, 2);
  }
  bytes_.push_back(std::move(bytes));
  table.rows = bytes_.back().data();
  return table;
}

ToyModel::ToyModel(const Shape& shape, Format layers, Format head) : shape_(shape) {
  const int q = shape.n_heads * shape.head_dim, kv = shape.n_kv_heads * shape.head_dim, hidden = shape.hidden;
  for (int i = 0; i < shape.n_layers; ++i) {
    Layer layer{};
    layer.attention_norm = norm();
    layer.qkv = matrix(q + 2 * kv, hidden, layers);
    layer.out = matrix(hidden, q, layers);
    layer.mlp_norm = norm();
    layer.up = matrix(shape.gated ? 2 * shape.intermediate : shape.intermediate, hidden, layers, shape.gated);
    layer.down = matrix(hidden, shape.intermediate, layers);
    layers_.push_back(layer);
  }
  frequencies_.resize(static_cast<size_t>(shape.rope_dim));
  for (int i = 0; i < shape.rope_dim; ++i)
    frequencies_[static_cast<size_t>(i)] = frequency(i, shape.rope_dim);
  Model& m = model_;
  m.hidden = hidden;
  m.n_heads = shape.n_heads;
  m.n_kv_heads = shape.n_kv_heads;
  m.head_dim = shape.head_dim;
  m.intermediate = shape.intermediate;
  m.vocab = shape.vocab;
  m.norm = shape.norm;
  m.norm_eps = 1e-5f;
  m.activation = shape.activation;
  m.gated = shape.gated;
  m.attention_scale = static_cast<float>(1 / std::sqrt(shape.head_dim));
  m.rope_dim = shape.rope_dim;
  m.rope_amplitude = 1.1f;
  m.first = m.last = true;
  m.embedding = table(shape.embedding, shape.vocab);
  m.layers = layers_.data();
  m.n_layers = shape.n_layers;
  m.norm_out = norm();
  m.head = shape.tied ? tied_head(head) : matrix(shape.vocab, hidden, head);
  if (shape.tied && head == Format::kInt8) m.head_rows = m.embedding;
  if (shape.positions) m.positions = table(RowFormat::kFloat32, kMostTokens);
}

NativeModel ToyModel::native(int first_layer, int n_layers) const {
  Model part = model_;
  part.first = first_layer == 0;
  part.last = first_layer + n_layers == model_.n_layers;
  return NativeModel(part, {layers_.begin() + first_layer, layers_.begin() + first_layer + n_layers});
}

}  // namespace orcaserve::check
