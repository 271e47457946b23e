#include "plain_pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "oracle.h"

namespace orcaserve::check {
namespace {

template <typename T>
void write(uint8_t* p, T x) {
  std::memcpy(p, &x, sizeof x);
}

uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

uint16_t to_bfloat16(float x) {
  const uint32_t bits = bits_of(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Of numbers between 2^-14 and 2^15, to the nearest.
uint16_t to_float16(float x) {
  int exponent;
  const int fraction = static_cast<int>(std::nearbyint(std::ldexp(std::frexp(std::abs(x), &exponent), 11)));
  if (x == 0) return 0;
  return static_cast<uint16_t>((x < 0 ? 0x8000 : 0) + ((exponent + 14) << 10) + fraction - 1024);
}

int rounded_up(int n, int to) { return (n + to - 1) / to * to; }

// The inputs of one output, into place `o` of a panel.
void write_float32(const Doubles& row, uint8_t* panel, int o) {
  for (size_t i = 0; i < row.size(); ++i) write(panel + 4 * (i * kPanel + o), static_cast<float>(row[i]));
}

void write_bfloat16(const Doubles& row, uint8_t* panel, int o) {
  for (size_t i = 0; i < row.size(); ++i)
    write(panel + 2 * ((i / 2 * kPanel + o) * 2 + i % 2), to_bfloat16(static_cast<float>(row[i])));
}

void write_int8(Doubles row, int padded, int group, uint8_t* panel, int o) {
  turn(row, padded);
  for (int start = 0; start < padded; start += group, panel += group * kPanel + 4 * kPanel) {
    double largest = 0;
    for (int i = 0; i < group; ++i) largest = std::max(largest, std::abs(row[start + i]));
    const float scale = static_cast<float>(largest / 127);
    for (int i = 0; i < group; ++i)
      panel[(i / 4 * kPanel + o) * 4 + i % 4] =
          static_cast<uint8_t>(128 + (scale == 0 ? 0 : std::lround(row[start + i] / scale)));
    write(panel + group * kPanel + 4 * o, scale);
  }
}

void write_int4(const Doubles& row, uint8_t* block, int o) {
  constexpr int kNibbles = kInt4Block / 2 * kPanel;
  for (size_t start = 0; start < row.size(); start += kInt4Block, block += kNibbles + 4 * kPanel) {
    const auto begin = row.begin() + static_cast<std::ptrdiff_t>(start), end = begin + kInt4Block;
    const double lowest = *std::min_element(begin, end), highest = *std::max_element(begin, end);
    const double scale = (highest - lowest) / 15;
    for (int i = 0; i < kInt4Block; ++i) {
      const auto nibble = static_cast<unsigned>(scale == 0 ? 0 : std::lround((begin[i] - lowest) / scale));
      const int within = i % 16;
      block[(within / 4 * kPanel + o) * 4 + within % 4] |= static_cast<uint8_t>(nibble << (i / 16 * 4));
    }
    write(block + kNibbles + 2 * o, to_float16(static_cast<float>(scale)));
    write(block + kNibbles + 2 * kPanel + 2 * o, to_float16(static_cast<float>(lowest)));
  }
}

int64_t bytes_of_panel(const Matrix& w) {
  const int64_t n = w.n_in_padded;
  switch (w.format) {
    case Format::kFloat32: return 4 * n * kPanel;
    case Format::kBFloat16: return 2 * n * kPanel;
    case Format::kInt8: return n * kPanel + n / w.group * 4 * kPanel;
    default: return n / 2 * kPanel + n / kInt4Block * 4 * kPanel;
  }
}

}  // namespace

Packed pack(const Array<float>& weight, const Array<float>& bias, int n_out, int n_in, Format format, bool interleaved) {
  const int parts = interleaved ? 2 : 1, part = n_out / parts;
  Packed packed{};
  Matrix& w = packed.matrix;
  w.format = format;
  w.n_out = n_out;
  w.n_in = n_in;
  switch (format) {
    case Format::kFloat32: w.n_in_padded = w.group = n_in; break;
    case Format::kBFloat16: w.n_in_padded = w.group = rounded_up(n_in, 2); break;
    case Format::kInt8:  // one group for all inputs, several small ones, and several large ones
      w.group = n_in <= 3 * kHadamard ? rounded_up(n_in, kHadamard) : n_in < 300 ? kHadamard : 3 * kHadamard;
      w.n_in_padded = rounded_up(n_in, w.group);
      break;
    case Format::kInt4:
      w.group = kInt4Block;
      w.n_in_padded = n_in;
  }
  w.n_panels = parts * rounded_up(part, kPanel) / kPanel;
  w.panel_bytes = bytes_of_panel(w);
  packed.panels.resize(static_cast<size_t>(w.n_panels * w.panel_bytes), 0);
  if (format == Format::kInt8)  // weights of 0 that are nobody's
    for (int panel = 0; panel < w.n_panels; ++panel)
      for (int start = 0, at = 0; start < w.n_in_padded; start += w.group, at += w.group * kPanel + 4 * kPanel)
        std::fill_n(packed.panels.begin() + panel * w.panel_bytes + at, w.group * kPanel, 128);
  if (!bias.empty()) packed.bias.resize(static_cast<size_t>(w.n_panels * kPanel), 0);
  for (int out = 0; out < n_out; ++out) {
    const int across = out % part / kPanel, o = out % part % kPanel;
    const int number = interleaved ? 2 * across + out / part : across;
    uint8_t* panel = packed.panels.data() + number * w.panel_bytes;
    const auto first = weight.begin() + static_cast<std::ptrdiff_t>(out) * n_in;
    const Doubles row(first, first + n_in);
    switch (format) {
      case Format::kFloat32: write_float32(row, panel, o); break;
      case Format::kBFloat16: write_bfloat16(row, panel, o); break;
      case Format::kInt8: write_int8(row, w.n_in_padded, w.group, panel, o); break;
      case Format::kInt4: write_int4(row, panel, o); break;
    }
    if (!bias.empty()) packed.bias[static_cast<size_t>(number * kPanel + o)] = bias[static_cast<size_t>(out)];
  }
  w.panels = packed.panels.data();
  w.bias = packed.bias.empty() ? nullptr : packed.bias.data();
  return packed;
}

}  // namespace orcaserve::check
