#include "adapted.h"

#include <cstring>

namespace orcaserve::check {
namespace {

double from_bfloat16(const void* p) {
  uint16_t half;
  std::memcpy(&half, p, sizeof half);
  const uint32_t bits = uint32_t{half} << 16;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// Number [i][column] of rows of `columns` numbers.
double number(AdapterNumbers numbers, const void* p, int64_t columns, int64_t i, int64_t column) {
  const auto* bytes = static_cast<const uint8_t*>(p);
  switch (numbers) {
    case AdapterNumbers::kFloat32: {
      float x;
      std::memcpy(&x, bytes + 4 * (i * columns + column), sizeof x);
      return x;
    }
    case AdapterNumbers::kBFloat16:
      return from_bfloat16(bytes + 4 * (i / 2 * columns + column) + 2 * (i % 2));
    default:
      return bytes[4 * (i / 4 * columns + column) + i % 4] - 128;
  }
}

Doubles columns_of(const AdaptedLinear& w, const Matrix& m, Doubles x) {
  const bool int8 = w.numbers == AdapterNumbers::kInt8;
  Doubles t(static_cast<size_t>(w.width));
  for (int e = 0; e < m.n_exact; ++e) {
    double& input = x[static_cast<size_t>(m.exact[e])];
    for (int c = 0; c < w.width; ++c) t[static_cast<size_t>(c)] += w.exact[e * w.width + c] * input;
    input = 0;
  }
  if (m.format == Format::kInt8) turn(x, m.n_in_padded);
  if (int8) quantise(x, m.group);
  for (size_t i = 0; i < x.size(); ++i)
    for (int c = 0; c < w.width; ++c) {
      const auto input = static_cast<int64_t>(i);
      const double scale = int8 ? w.a_scales[input / m.group * w.width + c] : 1;
      t[static_cast<size_t>(c)] += number(w.numbers, w.a, w.width, input, c) * scale * x[i];
    }
  for (int c = 0; c < w.width; ++c) t[static_cast<size_t>(c)] *= w.scales[c];
  if (int8) quantise(t, kAdapterLanes);
  return t;
}

}  // namespace

Doubles adapted(const AdaptedLinear& w, const Matrix& m, bool interleaved, const Doubles& x) {
  Doubles y(static_cast<size_t>(m.n_out));
  if (w.width == 0) return y;
  const Doubles t = columns_of(w, m, x);
  const int part = interleaved ? m.n_out / 2 : m.n_out;
  for (int out = 0; out < m.n_out; ++out) {
    const int within = out % part, across = within / kPanel, o = within % kPanel;
    const int panel = interleaved ? 2 * across + out / part : across;
    const uint8_t* b = w.b + w.at[panel];
    for (int j = 0; j < w.n[panel]; ++j) {
      double weight;
      if (w.numbers == AdapterNumbers::kInt8) {
        const uint8_t* group = b + j / kAdapterLanes * (kAdapterLanes * kPanel + 2 * kPanel);
        weight = number(w.numbers, group, kPanel, j % kAdapterLanes, o) *
                 from_bfloat16(group + kAdapterLanes * kPanel + 2 * o);
      } else {
        weight = number(w.numbers, b, kPanel, j, o);
      }
      y[static_cast<size_t>(out)] += weight * t[static_cast<size_t>(w.first[panel] + j)];
    }
  }
  return y;
}

}  // namespace orcaserve::check
