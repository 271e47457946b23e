// Packed weights read back, by the description in model.h and not by the code that packs them.
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "oracle.h"

namespace orcaserve::check {
namespace {

template <typename T>
T read(const uint8_t* p) {
  T x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

double from_bfloat16(const uint8_t* p) {
  const uint32_t bits = uint32_t{read<uint16_t>(p)} << 16;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

double from_float16(const uint8_t* p) {
  const int bits = read<uint16_t>(p), exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double x = exponent == 0    ? std::ldexp(fraction, -24)
                   : exponent == 31 ? (fraction ? NAN : INFINITY)
                                    : std::ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 ? -x : x;
}

// Weight of input `i` for output `o` of a panel.
double weight(const Matrix& w, const uint8_t* panel, int o, int i) {
  switch (w.format) {
    case Format::kFloat32:
      return read<float>(panel + 4 * (i * kPanel + o));
    case Format::kBFloat16:
      return from_bfloat16(panel + 2 * ((i / 2 * kPanel + o) * 2 + i % 2));
    case Format::kInt8: {
      const uint8_t* group = panel + i / w.group * (w.group * kPanel + 4 * kPanel);
      const int j = i % w.group;
      return (group[(j / 4 * kPanel + o) * 4 + j % 4] - 128) * double{read<float>(group + w.group * kPanel + 4 * o)};
    }
    case Format::kInt4: {
      constexpr int kNibbles = kInt4Block / 2 * kPanel;
      const uint8_t* block = panel + i / kInt4Block * (kNibbles + 4 * kPanel);
      const int j = i % kInt4Block, half = j / 16, within = j % 16;
      const int nibble = block[(within / 4 * kPanel + o) * 4 + within % 4] >> (4 * half) & 15;
      return nibble * from_float16(block + kNibbles + 2 * o) + from_float16(block + kNibbles + 2 * kPanel + 2 * o);
    }
  }
  throw std::invalid_argument("no such format");
}

}  // namespace

Dense::Dense(const Matrix& packed, bool interleaved)
    : format(packed.format),
      n_out(packed.n_out),
      n_in(packed.n_in),
      n_in_padded(packed.n_in_padded),
      group(packed.group) {
  // Float formats have no inputs but their own.
  const int width = format == Format::kInt8 || format == Format::kInt4 ? n_in_padded : n_in;
  n_in_padded = width;
  weight.resize(static_cast<size_t>(n_out) * width);
  if (packed.bias) bias.resize(static_cast<size_t>(n_out));
  exact.assign(packed.exact, packed.exact + packed.n_exact);
  columns.resize(exact.size());
  const int part = interleaved ? n_out / 2 : n_out;
  for (int out = 0; out < n_out; ++out) {
    const int within = out % part, across = within / kPanel, o = within % kPanel;
    const int panel = interleaved ? 2 * across + out / part : across;
    const uint8_t* at = packed.panels + panel * packed.panel_bytes;
    for (int i = 0; i < width; ++i) weight[static_cast<size_t>(out) * width + i] = check::weight(packed, at, o, i);
    if (packed.bias) bias[static_cast<size_t>(out)] = packed.bias[panel * kPanel + o];
    for (int e = 0; e < packed.n_exact; ++e)
      columns[static_cast<size_t>(e)].push_back(
          from_float16(reinterpret_cast<const uint8_t*>(packed.exact_weights + (panel * packed.n_exact + e) * kPanel + o)));
  }
}

Doubles read_row(const Table& table, int64_t row, int width) {
  const uint8_t* p = table.rows + row * table.row_bytes;
  Doubles x(static_cast<size_t>(width));
  for (int i = 0; i < width; ++i) {
    const int block = i / 32, j = i % 32;
    double& value = x[static_cast<size_t>(i)];
    switch (table.format) {
      case RowFormat::kFloat32:
        value = read<float>(p + 4 * i);
        break;
      case RowFormat::kBFloat16:
        value = from_bfloat16(p + 2 * i);
        break;
      case RowFormat::kQ8_0: {  // float16 scale, 32 signed bytes
        const uint8_t* at = p + block * 34;
        value = from_float16(at) * static_cast<int8_t>(at[2 + j]);
        break;
      }
      case RowFormat::kQ4_0: {  // float16 scale, 16 bytes: number j in the low half of byte j, 16 + j in the high half
        const uint8_t* at = p + block * 18;
        value = from_float16(at) * ((at[2 + j % 16] >> (j < 16 ? 0 : 4) & 15) - 8);
        break;
      }
      case RowFormat::kQ4_1: {  // float16 scale, float16 minimum, 16 bytes
        const uint8_t* at = p + block * 20;
        value = from_float16(at) * (at[4 + j % 16] >> (j < 16 ? 0 : 4) & 15) + from_float16(at + 2);
        break;
      }
    }
  }
  return x;
}

}  // namespace orcaserve::check
