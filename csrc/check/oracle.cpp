#include "oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "adapted.h"
#include "toy_adapter.h"

namespace orcaserve::check {
namespace {

double activate(Activation kind, double x) {
  switch (kind) {
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kGelu:
      return x * 0.5 * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kRelu:
      return std::max(x, 0.0);
  }
  throw std::invalid_argument("no such activation");
}

double to_bfloat16(double x) {
  const float nearest = static_cast<float>(x);
  uint32_t bits;
  std::memcpy(&bits, &nearest, sizeof bits);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  float rounded;
  std::memcpy(&rounded, &bits, sizeof rounded);
  return rounded;
}

Doubles sum(Doubles x, const Doubles& y, double scale = 1) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += scale * y[i];
  return x;
}

}  // namespace

void turn(Doubles& x, int n, int at_once) {
  x.resize(static_cast<size_t>(n));
  for (int start = 0; start < n; start += at_once) {
    Doubles turned(static_cast<size_t>(at_once));
    for (int i = 0; i < at_once; ++i)
      for (int j = 0; j < at_once; ++j)
        turned[static_cast<size_t>(i)] += (__builtin_popcount(static_cast<unsigned>(i & j)) % 2 ? -1 : 1) *
                                          x[static_cast<size_t>(start + j)] / std::sqrt(at_once);
    std::copy(turned.begin(), turned.end(), x.begin() + start);
  }
}

void quantise(Doubles& x, int group) {
  for (size_t start = 0; start < x.size(); start += static_cast<size_t>(group)) {
    const auto begin = x.begin() + static_cast<std::ptrdiff_t>(start), end = begin + group;
    double largest = 0;
    for (auto i = begin; i != end; ++i) largest = std::max(largest, std::abs(*i));
    if (largest == 0) continue;
    const double scale = static_cast<float>(largest / 127);
    for (auto i = begin; i != end; ++i) *i = std::nearbyint(*i / scale) * scale;
  }
}

Doubles Dense::operator()(Doubles x) const {
  Doubles y(bias);
  y.resize(static_cast<size_t>(n_out));
  for (size_t e = 0; e < exact.size(); ++e) {
    double& input = x[static_cast<size_t>(exact[e])];
    for (size_t out = 0; out < y.size(); ++out) y[out] += columns[e][out] * input;
    input = 0;
  }
  if (format == Format::kInt8) turn(x, n_in_padded);
  if (format == Format::kInt8 || format == Format::kInt4) quantise(x, group);
  for (size_t out = 0; out < y.size(); ++out) {
    const double* row = weight.data() + out * static_cast<size_t>(n_in_padded);
    for (int i = 0; i < n_in_padded; ++i) y[out] += row[i] * x[static_cast<size_t>(i)];
  }
  return y;
}

Oracle::Oracle(const Model& model, Storage storage) : model_(model), storage_(storage), head_(model.head) {
  for (int i = 0; i < model.n_layers; ++i) {
    const Layer& layer = model.layers[i];
    layers_.push_back({&layer, Dense(layer.qkv), Dense(layer.out), {}, {}, {}});
    DenseLayer& dense = layers_.back();
    const Expert own{layer.up, layer.down};
    if (layer.experts) dense.router.emplace_back(layer.router);
    for (int e = 0; e < (layer.experts ? model.n_experts : 1); ++e) {
      const Expert& expert = layer.experts ? layer.experts[e] : own;
      dense.ups.emplace_back(expert.up, model.gated);
      dense.downs.emplace_back(expert.down);
    }
  }
}

Doubles Oracle::norm(const NormWeights& w, const Doubles& x) const {
  if (!w.weight) return x;
  const auto n = static_cast<double>(x.size());
  double mean = 0, variance = 0;
  if (model_.norm == Norm::kLayer)
    for (double value : x) mean += value / n;
  for (double value : x) variance += (value - mean) * (value - mean) / n;
  Doubles y(x.size());
  for (size_t i = 0; i < x.size(); ++i)
    y[i] = (x[i] - mean) / std::sqrt(variance + double{model_.norm_eps}) * w.weight[i] + (w.bias ? w.bias[i] : 0.0f);
  return y;
}

// Each head by itself, or all together.
void Oracle::norm_heads(const NormWeights& w, double* heads, int n_heads) const {
  const int n = (model_.norms_all_heads ? n_heads : 1) * model_.head_dim;
  for (double* at = heads; at != heads + n_heads * model_.head_dim; at += n) {
    const Doubles normed = norm(w, Doubles(at, at + n));
    std::copy(normed.begin(), normed.end(), at);
  }
}

// Dimension i of a head pairs with i + dim / 2.
void Oracle::rotate(const Rope& rope, double* head, int position, const float* frequencies) const {
  const int pairs = rope.dim / 2;
  for (int i = 0; i < pairs; ++i) {
    const double angle = static_cast<float>(position) * frequencies[i];  // rounded as the kernels round it
    const double cos = std::cos(angle) * rope.amplitude, sin = std::sin(angle) * rope.amplitude;
    const double first = head[i], second = head[i + pairs];
    head[i] = first * cos - second * sin;
    head[i + pairs] = second * cos + first * sin;
  }
}

// Keys and queries of 8 bits are turned, by the largest Hadamard matrix that divides a head.
void Oracle::turn_heads(Doubles& heads) const {
  int at_once = 1;
  while (at_once < kHadamard && model_.head_dim % (2 * at_once) == 0) at_once *= 2;
  turn(heads, static_cast<int>(heads.size()), at_once);
}

// Keys or values of a token as the pages hold them.
Doubles Oracle::stored(Doubles x) const {
  if (storage_ == Storage::kInt8) quantise(x, model_.head_dim);
  if (storage_ == Storage::kBFloat16)
    for (double& value : x) value = to_bfloat16(value);
  return x;
}

Doubles Oracle::attend(const Doubles& qkv, const std::vector<Doubles>& keys, const std::vector<Doubles>& values,
                       int window) const {
  const int dim = model_.head_dim, group = model_.n_heads / model_.n_kv_heads;
  Doubles queries(qkv.begin(), qkv.begin() + model_.n_heads * dim);
  if (storage_ == Storage::kInt8) {
    turn_heads(queries);
    quantise(queries, dim);
  }
  Doubles out(static_cast<size_t>(model_.n_heads * dim));
  for (int head = 0; head < model_.n_heads; ++head) {
    const double* q = queries.data() + head * dim;
    const int from = head / group * dim;
    Doubles scores;
    for (size_t t = 0; t < keys.size(); ++t) {
      const auto back = static_cast<double>(keys.size() - 1 - t);
      double score = 0;
      for (int d = 0; d < dim; ++d) score += q[d] * keys[t][static_cast<size_t>(from + d)];
      score *= double{model_.attention_scale};
      if (model_.attention_softcap) score = model_.attention_softcap * std::tanh(score / model_.attention_softcap);
      if (model_.alibi) score -= model_.alibi[head] * back;
      scores.push_back(window && back >= window ? -INFINITY : score);
    }
    const double largest = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    for (double& score : scores) total += score = std::exp(score - largest);
    for (size_t t = 0; t < values.size(); ++t)
      for (int d = 0; d < dim; ++d)
        out[static_cast<size_t>(head * dim + d)] += scores[t] / total * values[t][static_cast<size_t>(from + d)];
  }
  return out;
}

// The logits next to the largest, the first 32 of them, are those of the rows as the checkpoint has them.
void Oracle::rescore(const Doubles& x, Doubles& logits) const {
  const double bound = *std::max_element(logits.begin(), logits.end()) - 1 / double{model_.logit_scale};
  int n = 0;
  for (size_t id = 0; id < logits.size() && n < 32; ++id) {
    if (logits[id] < bound) continue;
    ++n;
    const Doubles row = read_row(model_.head_rows, static_cast<int64_t>(id), model_.hidden);
    logits[id] = model_.head.bias ? model_.head.bias[id] : 0;
    for (size_t i = 0; i < x.size(); ++i) logits[id] += x[i] * row[i];
  }
}

namespace {

void observe(const Doubles& x, Doubles& squares) {
  squares.resize(x.size());
  for (size_t i = 0; i < x.size(); ++i) squares[i] += x[i] * x[i];
}

// y = w x, and x's squares go to `squares`.
Doubles multiply(const Dense& w, const Doubles& x, Doubles& squares) {
  observe(x, squares);
  return w(x);
}

// The same of a layer's Linear, with what an adapter adds.
Doubles multiply(const Dense& w, const Matrix& m, const AdaptedLinear* adapter, bool interleaved, const Doubles& x,
                 Doubles& squares) {
  const Doubles y = multiply(w, x, squares);
  return adapter ? sum(y, adapted(*adapter, m, interleaved, x)) : y;
}

}  // namespace

// The i-th of a layer's; the squares are those of what `down` reads.
Doubles Oracle::mlp(const DenseLayer& layer, size_t i, const Doubles& x, Doubles& squares, const AdaptedLayer* adapter) const {
  Doubles wide = layer.ups[i](x);
  if (adapter) wide = sum(wide, adapted(adapter->up, layer.layer->up, model_.gated, x));
  const size_t width = model_.gated ? wide.size() / 2 : wide.size();
  for (size_t j = 0; j < width; ++j)
    wide[j] = activate(model_.activation, wide[j]) * (model_.gated ? wide[width + j] : 1.0);
  wide.resize(width);
  return multiply(layer.downs[i], layer.layer->down, adapter ? &adapter->down : nullptr, false, wide, squares);
}

// squares: of each expert's `down`.
Doubles Oracle::experts(const DenseLayer& layer, const Doubles& x, Doubles* squares) const {
  const Doubles logits = layer.router[0](x);
  std::vector<size_t> order(logits.size());
  for (size_t e = 0; e < order.size(); ++e) order[e] = e;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  double total = 0;
  for (size_t i = 0; i < order.size(); ++i)
    if (!model_.shares_of_chosen || i < static_cast<size_t>(model_.n_chosen)) total += std::exp(logits[order[i]]);
  Doubles y(x.size());
  for (int i = 0; i < model_.n_chosen; ++i) {
    const size_t e = order[static_cast<size_t>(i)];
    y = sum(y, mlp(layer, e, x, squares[e]), std::exp(logits[e]) / total);
  }
  return y;
}

Doubles Oracle::step(Remembered& request, int token, const Turns& turns, int set, const ToyAdapter* adapter) const {
  const int dim = model_.head_dim, q = model_.n_heads * dim, kv = model_.n_kv_heads * dim;
  request.keys.resize(layers_.size());
  request.values.resize(layers_.size());
  const auto n_observed = static_cast<size_t>(observed_matrices(model_.n_experts));
  request.squares.resize(n_observed * layers_.size() + 1);
  const int position = static_cast<int>(request.keys[0].size());
  const double residual_scale = double{model_.residual_scale};
  Doubles x = read_row(model_.embedding, token, model_.hidden);
  for (double& value : x) value *= double{model_.embedding_scale};
  x = norm(model_.embedding_norm, x);
  if (model_.positions.rows) x = sum(x, read_row(model_.positions, position, model_.hidden));
  for (size_t i = 0; i < layers_.size(); ++i) {
    const DenseLayer& layer = layers_[i];
    Doubles* squares = &request.squares[n_observed * i];
    const Layer& l = *layer.layer;
    const AdaptedLayer* own = adapter ? &adapter->layer(i) : nullptr;
    const Doubles input = x;
    Doubles qkv = multiply(layer.qkv, l.qkv, own ? &own->qkv : nullptr, false, norm(l.attention_norm, x), squares[0]);
    if (l.q_norm.weight) {
      norm_heads(l.q_norm, qkv.data(), model_.n_heads);
      norm_heads(l.k_norm, qkv.data() + q, model_.n_kv_heads);
    }
    if (l.rope >= 0) {
      const Rope& rope = model_.ropes[l.rope];
      const float* frequencies = turns[l.rope].data() + set * (rope.dim / 2);
      for (int head = 0; head < model_.n_heads + model_.n_kv_heads; ++head)
        rotate(rope, qkv.data() + head * dim, position, frequencies);
    }
    const auto keys = qkv.begin() + q, values = keys + kv;
    Doubles key(keys, values);
    if (storage_ == Storage::kInt8) turn_heads(key);
    request.keys[i].push_back(stored(key));
    request.values[i].push_back(stored(Doubles(values, qkv.end())));
    const Doubles heads = attend(qkv, request.keys[i], request.values[i], l.window);
    const Doubles attended = multiply(layer.out, l.out, own ? &own->out : nullptr, false, heads, squares[1]);
    x = sum(x, norm(l.post_attention_norm, attended), residual_scale);
    const Doubles normed = norm(l.mlp_norm, model_.parallel ? input : x);
    observe(normed, squares[2]);
    const Doubles given = l.experts ? experts(layer, normed, squares + 3) : mlp(layer, 0, normed, squares[3], own);
    x = sum(x, norm(l.post_mlp_norm, given), residual_scale);
  }
  x = norm(model_.norm_out, x);
  Doubles logits = multiply(head_, x, request.squares.back());
  if (model_.head_rows.rows) rescore(x, logits);
  const double cap = model_.logit_softcap;
  for (double& logit : logits) {
    logit *= double{model_.logit_scale};
    if (cap) logit = cap * std::tanh(logit / cap);
  }
  return logits;
}

}  // namespace orcaserve::check
