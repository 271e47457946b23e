// Packed weights, read back number by number: what went in, or the nearest that the format holds.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "../pack.h"
#include "checks.h"
#include "oracle.h"
#include "packed.h"

namespace orcaserve::check {
namespace {

// Rows of weights of some sizes, one row of zeros among them.
Array<float> random_weights(int n_out, int n_in) {
  Random random(static_cast<uint64_t>(n_out * 1000 + n_in));
  Array<float> weight(static_cast<size_t>(n_out) * n_in);
  random.fill(weight, 0.2);
  if (n_out > 2) std::fill(weight.begin() + n_in, weight.begin() + 2 * n_in, 0.0f);
  return weight;
}

double greatest(const double* x, int n) {
  double most = 0;
  for (int i = 0; i < n; ++i) most = std::max(most, std::abs(x[i]));
  return most;
}

// The error of kInt8 is half a step; that of the largest weight of a group is none.
void expect_nearest_int8(const Doubles& row, const double* packed, const Dense& dense) {
  for (int start = 0; start < dense.n_in_padded; start += dense.group) {
    const double step = greatest(row.data() + start, dense.group) / 127;
    for (int i = start; i < start + dense.group; ++i)
      expect(std::abs(packed[i] - row[static_cast<size_t>(i)]) <= 0.5001 * step, "an int8 weight is not the nearest");
  }
}

double squared_error(const double* a, const double* b) {
  double error = 0;
  for (int i = 0; i < kInt4Block; ++i) error += (a[i] - b[i]) * (a[i] - b[i]);
  return error;
}

// No worse than with the block's least and greatest weight as the ends of the scale.
void expect_good_int4(const Doubles& row, const double* packed) {
  for (size_t start = 0; start < row.size(); start += kInt4Block) {
    const double* block = row.data() + start;
    const auto [lowest, highest] = std::minmax_element(block, block + kInt4Block);
    const double low = *lowest, high = *highest;
    double plain[kInt4Block];
    for (int i = 0; i < kInt4Block; ++i) {
      const double step = (high - low) / 15;
      plain[i] = step == 0 ? low : low + std::nearbyint((block[i] - low) / step) * step;
    }
    const double rounding = 2e-3 * greatest(block, kInt4Block);  // of scale and minimum to float16
    const double allowed = 1.01 * squared_error(block, plain) + kInt4Block * rounding * rounding;
    expect(squared_error(block, packed + start) <= allowed,
           "a block of int4 is worse than plain rounding");
  }
}

float nearest_bfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

void check_floats(Format format, int n_out, int n_in, bool interleaved) {
  const Array<float> weight = random_weights(n_out, n_in);
  const Packed packed = pack(format, weight, {}, n_out, n_in, interleaved);
  const Dense dense(packed.matrix, interleaved);
  for (int out = 0; out < n_out; ++out) {
    const auto first = weight.begin() + static_cast<ptrdiff_t>(out) * n_in;
    Doubles row(first, first + n_in);
    const double* got = dense.weight.data() + static_cast<ptrdiff_t>(out) * dense.n_in_padded;
    if (format == Format::kInt8) {
      turn(row, dense.n_in_padded);
      expect_nearest_int8(row, got, dense);
    } else if (format == Format::kInt4) {
      expect_good_int4(row, got);
    } else {
      for (int i = 0; i < n_in; ++i) {
        const float held = format == Format::kFloat32 ? first[i] : nearest_bfloat16(first[i]);
        expect(got[i] == double{held}, "a weight has changed");
      }
    }
  }
}

void check_blocks(RowFormat format, int n_out, int n_in, bool interleaved) {
  Random random(static_cast<uint64_t>(n_in));
  const int block_bytes = format == RowFormat::kQ4_0 ? 18 : 20;
  const int64_t stride = n_in / 32 * block_bytes;
  Array<uint8_t> rows(static_cast<size_t>(n_out * stride));
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<uint8_t>(random.bits());
  for (size_t i = 0; i < rows.size(); i += static_cast<size_t>(block_bytes))
    rows[i + 1] = static_cast<uint8_t>(0x20 + random.below(8));  // float16 scales of middling size
  if (format == RowFormat::kQ4_1)
    for (size_t i = 0; i < rows.size(); i += 20) rows[i + 3] = static_cast<uint8_t>(0xb0 + random.below(8));
  Packed packed = room_for(Format::kInt4, n_out, n_in, interleaved);
  const int n_parts = interleaved ? 2 : 1, part = n_out / n_parts;
  std::vector<BlockPart> parts;
  for (int p = 0; p < n_parts; ++p) parts.push_back({format, rows.data() + p * part * stride, stride, part});
  Team team(3);
  const bool sound = pack_blocks(parts.data(), n_parts, n_in, interleaved, packed.panels.data(), team);
  expect(sound, "sound blocks were refused");
  const Dense dense(packed.matrix, interleaved);
  const Table table{format, n_out, stride, rows.data()};
  for (int out = 0; out < n_out; ++out) {
    const auto first = dense.weight.begin() + static_cast<ptrdiff_t>(out) * n_in;
    expect(Doubles(first, first + n_in) == read_row(table, out, n_in), "a 4-bit block has changed");
  }
}

}  // namespace

void check_packing(Report& report) {
  for (Format format : {Format::kFloat32, Format::kBFloat16, Format::kInt8, Format::kInt4})
    report.check(std::string("packing to ") + name(format), [&] {
      const bool blocks = format == Format::kInt4;
      for (int n_out : {1, 48, 50, 150})
        for (int n_in : {blocks ? 32 : 3, 64, blocks ? 96 : 83, 320}) {
          check_floats(format, n_out, n_in, false);
          if (n_out % 2 == 0) check_floats(format, n_out, n_in, true);
        }
    });
  report.check("packing 4-bit blocks", [] {
    for (RowFormat format : {RowFormat::kQ4_0, RowFormat::kQ4_1})
      for (int n_out : {2, 50, 150})
        for (bool interleaved : {false, true}) check_blocks(format, n_out, 96, interleaved);
  });
}

}  // namespace orcaserve::check
