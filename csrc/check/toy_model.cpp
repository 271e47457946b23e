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
const Shape kSandwich = [] {
  Shape s{"sandwich", 96, 8, 4, 20, 224, 151, 3, Norm::kRms, Activation::kGeluTanh, true, false, 20, false,
          RowFormat::kQ8_0, true};
  s.post_norm = s.q_norm = true;
  s.embedding_scale = 9.8f;
  s.logit_scale = 0.7f;
  s.logit_softcap = 3;
  s.local_rope_dim = 12;
  s.windows = {0, 21};
  s.attention_softcap = 2;
  return s;
}();
const Shape kParallel = [] {
  Shape s{"parallel", 83, 5, 5, 12, 101, 50, 3, Norm::kLayer, Activation::kGelu, false, true, 8, false,
          RowFormat::kFloat32, false};
  s.parallel = s.embedding_norm = s.q_norm = s.norms_all_heads = true;
  s.residual_scale = 0.3f;
  s.unturned = 1;
  s.alibi = true;
  return s;
}();
// All layers have windows, of less and of more than a step and a part of the keys.
const Shape kWindows = [] {
  Shape s = kOdd;
  s.name = "windows";
  s.windows = {37, 530, 1};
  return s;
}();
const Shape kExperts = [] {
  Shape s = kLlama;
  s.name = "experts";
  s.n_experts = 5;
  s.n_chosen = 2;
  s.expert_columns = 160;
  return s;
}();
// More of them than rows, also more than a vector has lanes; biases, no gate; a layer without experts; and norms behind.
const Shape kManyExperts = [] {
  Shape s = kSandwich;
  s.name = "many experts";
  s.norm = Norm::kLayer;
  s.gated = false;
  s.biased = true;
  s.n_experts = 19;
  s.n_chosen = 4;
  s.expert_columns = 96;
  s.shares_of_chosen = false;
  s.dense_layer = 1;
  return s;
}();
const Shape kShallowExperts = [] {
  Shape s = kShallow;
  s.name = "shallow, experts";
  s.n_experts = 3;
  s.n_chosen = 2;
  s.expert_columns = 96;
  return s;
}();

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

NormWeights ToyModel::norm(int n) {
  NormWeights norm{};
  for (const float** vector : {&norm.weight, &norm.bias}) {
    if (vector == &norm.bias && shape_.norm == Norm::kRms) break;
    Array<float> x(static_cast<size_t>(n));
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

ToyModel::ToyModel(const Shape& shape, Format layers, Format head, bool adapted) : shape_(shape) {
  const int q = shape.n_heads * shape.head_dim, kv = shape.n_kv_heads * shape.head_dim, hidden = shape.hidden;
  for (int i = 0; i < shape.n_layers; ++i) {
    Layer layer{};
    if (shape.pre_norm) layer.attention_norm = norm();
    layer.qkv = matrix(q + 2 * kv, hidden, layers);
    layer.out = matrix(hidden, q, layers);
    if (shape.pre_norm) layer.mlp_norm = norm();
    const auto mlp = [&](int columns) {
      const Matrix up = matrix(shape.gated ? 2 * columns : columns, hidden, layers, shape.gated);
      return Expert{up, matrix(hidden, columns, layers)};
    };
    if (shape.n_experts && i != shape.dense_layer) {
      layer.router = matrix(shape.n_experts, hidden, layers == Format::kBFloat16 ? layers : Format::kFloat32);
      experts_.emplace_back();
      for (int e = 0; e < shape.n_experts; ++e) experts_.back().push_back(mlp(shape.expert_columns));
      layer.experts = experts_.back().data();
    } else {
      const Expert own = mlp(shape.intermediate);
      layer.up = own.up;
      layer.down = own.down;
    }
    if (shape.post_norm) layer.post_attention_norm = norm();
    if (shape.post_norm) layer.post_mlp_norm = norm();
    if (shape.q_norm) layer.q_norm = norm(shape.norms_all_heads ? q : shape.head_dim);
    if (shape.q_norm) layer.k_norm = norm(shape.norms_all_heads ? kv : shape.head_dim);
    layer.window = shape.windows.empty() ? 0 : shape.windows[static_cast<size_t>(i) % shape.windows.size()];
    layer.rope = i == shape.unturned ? -1 : shape.local_rope_dim ? i % 2 : 0;
    layers_.push_back(layer);
  }
  Model& m = model_;
  m.ropes[0] = {shape.rope_dim, 1.1f};
  m.ropes[1] = {shape.local_rope_dim, 0.9f};
  for (int rope = 0; rope < kRopes; ++rope) {
    const int dim = m.ropes[rope].dim;
    turns_[rope].resize(static_cast<size_t>(dim));
    for (int i = 0; i < dim; ++i) turns_[rope][static_cast<size_t>(i)] = frequency(i, dim);
  }
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
  m.attention_softcap = shape.attention_softcap;
  if (shape.alibi) {
    Array<float> slopes;
    for (int head = 0; head < shape.n_heads; ++head) slopes.push_back(std::exp2(-static_cast<float>(head + 1)));
    m.alibi = keep(std::move(slopes));
  }
  m.norms_all_heads = shape.norms_all_heads;
  m.parallel = shape.parallel;
  m.n_experts = shape.n_experts;
  m.n_chosen = shape.n_chosen;
  m.expert_columns = shape.expert_columns;
  m.shares_of_chosen = shape.shares_of_chosen;
  m.embedding_scale = shape.embedding_scale;
  m.residual_scale = shape.residual_scale;
  m.logit_scale = shape.logit_scale;
  m.logit_softcap = shape.logit_softcap;
  m.first = m.last = true;
  m.embedding = table(shape.embedding, shape.vocab);
  if (shape.embedding_norm) m.embedding_norm = norm();
  m.layers = layers_.data();
  m.n_layers = shape.n_layers;
  m.norm_out = norm();
  m.head = shape.tied ? tied_head(head) : matrix(shape.vocab, hidden, head);
  if (shape.tied && head == Format::kInt8) m.head_rows = m.embedding;
  if (shape.positions) m.positions = table(RowFormat::kFloat32, kMostTokens);
  if (!adapted) return;
  made_.emplace_back(m, 5, 1, 41);
  made_.emplace_back(m, 19, -1, 43);
  for (const ToyAdapter& adapter : made_) adapters_.push_back(&adapter);
}

NativeModel ToyModel::native(int first_layer, int n_layers) const {
  Model part = model_;
  part.first = first_layer == 0;
  part.last = first_layer + n_layers == model_.n_layers;
  return NativeModel(part, {layers_.begin() + first_layer, layers_.begin() + first_layer + n_layers});
}

}  // namespace orcaserve::check
