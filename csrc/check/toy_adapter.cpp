#include "toy_adapter.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "oracle.h"

namespace orcaserve::check {
namespace {

int round_up(int n, int to) { return (n + to - 1) / to * to; }

AdapterNumbers numbers_beside(Format format) {
  switch (format) {
    case Format::kFloat32: return AdapterNumbers::kFloat32;
    case Format::kBFloat16: return AdapterNumbers::kBFloat16;
    default: return AdapterNumbers::kInt8;
  }
}

uint16_t to_bfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Not less than x.
float round_up_to_bfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits = (bits + 0xffff) & 0xffff0000u;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

uint8_t to_byte(double x, float scale) { return static_cast<uint8_t>(scale == 0 ? 128 : 128 + std::nearbyint(x / scale)); }

// Rows of `columns` floats as AdapterNumbers::kFloat32 or kBFloat16.
void put_rows(const Array<float>& rows, int columns, AdapterNumbers numbers, Array<uint8_t>* to) {
  const size_t start = to->size(), n = rows.size() / static_cast<size_t>(columns);
  if (numbers == AdapterNumbers::kFloat32) {
    to->resize(start + rows.size() * 4);
    std::memcpy(to->data() + start, rows.data(), rows.size() * 4);
    return;
  }
  to->resize(start + (n + 1) / 2 * static_cast<size_t>(columns) * 4);
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t row = i / static_cast<size_t>(columns), column = i % static_cast<size_t>(columns);
    const uint16_t half = to_bfloat16(rows[i]);
    std::memcpy(to->data() + start + 4 * (row / 2 * static_cast<size_t>(columns) + column) + 2 * (row % 2), &half, 2);
  }
}

}  // namespace

ToyAdapter::ToyAdapter(const Model& m, int rank, int left_out, uint64_t seed) : rank_(rank), random_(seed) {
  const int q = m.n_heads * m.head_dim, kv = m.n_kv_heads * m.head_dim;
  for (int i = 0; i < m.n_layers; ++i) {
    const Layer& layer = m.layers[i];
    AdaptedLayer own{};
    if (left_out != 0) own.qkv = linear(layer.qkv, {q, kv, kv}, false);
    if (left_out != 1) own.out = linear(layer.out, {m.hidden}, false);
    if (left_out != 2)
      own.up = linear(layer.up, std::vector<int>(m.gated ? 2 : 1, m.intermediate), m.gated);
    if (left_out != 3) own.down = linear(layer.down, {m.hidden}, false);
    layers_.push_back(own);
  }
}

// outputs: of its parts, each of which has an A and a B.
AdaptedLinear ToyAdapter::linear(const Matrix& w, const std::vector<int>& outputs, bool interleaved) {
  AdaptedLinear made{};
  made.numbers = numbers_beside(w.format);
  made.n_in = w.n_in;
  const int part_width = round_up(rank_, kAdapterLanes);
  made.width = part_width * static_cast<int>(outputs.size());
  width_ = std::max(width_, made.width);
  Array<float> a(static_cast<size_t>(w.n_in) * made.width), scales(static_cast<size_t>(made.width));
  std::vector<Gain> gains;
  int first = 0;
  for (int n_out : outputs) {
    const int start = part_width * static_cast<int>(gains.size());
    for (int i = 0; i < w.n_in; ++i)
      for (int j = 0; j < rank_; ++j)
        a[static_cast<size_t>(i * made.width + start + j)] = random_.normal() / static_cast<float>(std::sqrt(w.n_in));
    for (int j = 0; j < rank_; ++j) scales[static_cast<size_t>(start + j)] = 0.5f + 0.25f * static_cast<float>(gains.size());
    gains.push_back({first, n_out, start, Array<float>(static_cast<size_t>(n_out) * rank_)});
    random_.fill(gains.back().b, 0.5 / std::sqrt(rank_));
    first += n_out;
  }
  pack_a(w, a, &made);
  made.scales = keep(floats_, std::move(scales));
  const int whole = made.numbers == AdapterNumbers::kFloat32 ? 1 : made.numbers == AdapterNumbers::kBFloat16 ? 2 : kAdapterLanes;
  Array<int32_t> firsts, counts;
  Array<int64_t> places;
  Array<uint8_t> b;
  for (int panel = 0; panel < w.n_panels; ++panel) {
    const int half = w.n_out / 2, across = interleaved ? panel / 2 * kPanel : panel * kPanel;
    const int begin = interleaved ? panel % 2 * half + across : across;
    const int end = std::min(begin + kPanel, interleaved ? (panel % 2 + 1) * half : w.n_out);
    std::vector<const Gain*> own;
    for (const Gain& gain : gains)
      if (std::max(gain.first, begin) < std::min(gain.first + gain.n_out, end)) own.push_back(&gain);
    const int start = own.empty() ? 0 : own.front()->start;
    const int n = own.empty() ? 0 : round_up(own.back()->start + rank_ - start, whole);
    Array<float> rows(static_cast<size_t>(n) * kPanel);
    for (const Gain* gain : own)
      for (int out = std::max(gain->first, begin); out < std::min(gain->first + gain->n_out, end); ++out)
        for (int j = 0; j < rank_; ++j)
          rows[static_cast<size_t>((gain->start - start + j) * kPanel + out - begin)] =
              gain->b[static_cast<size_t>((out - gain->first) * rank_ + j)];
    firsts.push_back(start);
    counts.push_back(n);
    places.push_back(static_cast<int64_t>(b.size()));
    pack_b(rows, made.numbers, &b);
  }
  made.first = keep(ints_, std::move(firsts));
  made.n = keep(ints_, std::move(counts));
  made.at = keep(longs_, std::move(places));
  made.b = keep(bytes_, std::move(b));
  return made;
}

// a: [n_in][width].
void ToyAdapter::pack_a(const Matrix& w, const Array<float>& a, AdaptedLinear* made) {
  const auto width = static_cast<size_t>(made->width);
  Array<uint8_t> bytes;
  if (made->numbers != AdapterNumbers::kInt8) {
    put_rows(a, made->width, made->numbers, &bytes);
    made->a = keep(bytes_, std::move(bytes));
    return;
  }
  const int n_groups = w.n_in_padded / w.group;
  Array<float> exact, scales(static_cast<size_t>(n_groups) * width);
  for (int e = 0; e < w.n_exact; ++e) {
    const float* row = a.data() + static_cast<size_t>(w.exact[e]) * width;
    exact.insert(exact.end(), row, row + width);
  }
  bytes.resize(static_cast<size_t>(w.n_in_padded) * width);
  for (size_t column = 0; column < width; ++column) {
    Doubles x;
    for (int i = 0; i < w.n_in; ++i) x.push_back(a[static_cast<size_t>(i) * width + column]);
    for (int e = 0; e < w.n_exact; ++e) x[static_cast<size_t>(w.exact[e])] = 0;
    if (w.format == Format::kInt8) turn(x, w.n_in_padded);
    for (int group = 0; group < n_groups; ++group) {
      const auto begin = x.begin() + group * w.group;
      double largest = 0;
      for (auto i = begin; i != begin + w.group; ++i) largest = std::max(largest, std::abs(*i));
      const auto scale = static_cast<float>(largest / 127);
      scales[static_cast<size_t>(group) * width + column] = scale;
      for (int i = 0; i < w.group; ++i) {
        const size_t input = static_cast<size_t>(group * w.group + i);
        bytes[4 * (input / 4 * width + column) + input % 4] = to_byte(x[input], scale);
      }
    }
  }
  made->a = keep(bytes_, std::move(bytes));
  made->a_scales = keep(floats_, std::move(scales));
  made->exact = keep(floats_, std::move(exact));
}

// rows: [n][kPanel], behind what is in `to`.
void ToyAdapter::pack_b(const Array<float>& rows, AdapterNumbers numbers, Array<uint8_t>* to) {
  if (numbers != AdapterNumbers::kInt8) return put_rows(rows, kPanel, numbers, to);
  constexpr size_t kNumbers = static_cast<size_t>(kAdapterLanes) * kPanel;
  for (size_t group = 0; group < rows.size(); group += kNumbers) {
    const size_t start = to->size();
    to->resize(start + kNumbers + 2 * kPanel);
    for (size_t o = 0; o < kPanel; ++o) {
      float largest = 0;
      for (size_t j = 0; j < kAdapterLanes; ++j) largest = std::max(largest, std::abs(rows[group + j * kPanel + o]));
      const float scale = round_up_to_bfloat16(largest / 127);
      for (size_t j = 0; j < kAdapterLanes; ++j)
        (*to)[start + 4 * (j / 4 * kPanel + o) + j % 4] = to_byte(rows[group + j * kPanel + o], scale);
      const uint16_t half = to_bfloat16(scale);
      std::memcpy(to->data() + start + kNumbers + 2 * o, &half, 2);
    }
  }
}

}  // namespace orcaserve::check
