// The two products of attention over int8 K/V on AMX tiles, for tiles of at most 16 rows and head_dim a multiple of 64: the
// same integers as attention_int8_tiles.h makes, so either may be used for any row.
//
// 16 keys of a page are 64 bytes in each of head_dim / 4 rows: as they lie there, what the instruction wants of its second
// operand. Values lie in quads of keys, four of them in a strip; those of a step are brought together first.
#pragma once

#include "amx_tiles.h"
#include "attention_int8_tiles.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

static_assert(kStep == 64 && kStrips == 4 && kStrip == kSide, "a step is four tiles of keys, and 16 quads of values");
constexpr int kTileDims = 64;       // dimensions of a head that are multiplied at a time
constexpr int kFewRowsOfTiles = 8;  // with fewer rows vectors are as quick

inline void zero_four() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

inline void store_four(int32_t* sums) {
  constexpr int64_t kRow = kStep * sizeof(int32_t);
  _tile_stored(0, sums, kRow);
  _tile_stored(1, sums + kSide, kRow);
  _tile_stored(2, sums + 2 * kSide, kRow);
  _tile_stored(3, sums + 3 * kSide, kRow);
  settle(sums);
}

// scores[r][key] = q[r] . key of the step, for the rows that tiles are configured for. stride: of keys, as in Step.
inline void score_on_tiles(const int8_t* q, int64_t q_stride, int head_dim, const Step& step, int64_t stride,
                           int32_t* scores) {
  settle(q);
  zero_four();
  for (int d = 0; d < head_dim; d += kTileDims) {
    const int64_t at = d / 4 * stride;
    _tile_loadd(6, q + d, q_stride);
    _tile_loadd(7, step.keys[0] + at, stride);
    _tile_dpbsud(0, 6, 7);
    _tile_loadd(7, step.keys[1] + at, stride);
    _tile_dpbsud(1, 6, 7);
    _tile_loadd(7, step.keys[2] + at, stride);
    _tile_dpbsud(2, 6, 7);
    _tile_loadd(7, step.keys[3] + at, stride);
    _tile_dpbsud(3, 6, 7);
  }
  store_four(scores);
}

// The values of a step, [16 quads][head_dim][4], in the order in which store_digits leaves the quads of weights.
inline void gather_values(const Step& step, int head_dim, int8_t* to) {
  for (int quad = 0; quad < kStep / 4; ++quad, to += 4 * head_dim) {
    const int place = quad_place(quad);  // it is its own inverse
    const int8_t* from = step.values[place / 4] + place % 4 * 4 * head_dim;
    for (int i = 0; i < 4 * head_dim; i += kLine) {
      const IntVec line = load_bytes(from + i);
      __builtin_memcpy(to + i, &line, sizeof line);
    }
  }
  settle(to);
}

// sums[r][c] = the sum over keys of digits[r] * value, for 64 dimensions from `values` on.
inline void sum_values(const uint8_t* digits, const int8_t* values, int64_t stride, int32_t* sums) {
  zero_four();
  _tile_loadd(6, digits, kStep);
  _tile_loadd(7, values, stride);
  _tile_dpbusd(0, 6, 7);
  _tile_loadd(7, values + kTileBytes, stride);
  _tile_dpbusd(1, 6, 7);
  _tile_loadd(7, values + 2 * kTileBytes, stride);
  _tile_dpbusd(2, 6, 7);
  _tile_loadd(7, values + 3 * kTileBytes, stride);
  _tile_dpbusd(3, 6, 7);
  store_four(sums);
}

// o[r] = o[r] * factor[r] + scale[r] * the sum over keys of weights[r] * value. values: gathered.
inline void weigh_values(const Weights& w, int n_rows, const int8_t* values, int head_dim, float* o, int o_stride) {
  alignas(kLine) int32_t high[kSide * kTileDims], low[kSide * kTileDims];
  settle(&w);
  for (int d = 0; d < head_dim; d += kTileDims) {
    sum_values(w.high[0], values + 4 * d, 4 * head_dim, high);
    sum_values(w.low[0], values + 4 * d, 4 * head_dim, low);
    for (int r = 0; r < n_rows; ++r) {
      const Vec factor = splat(w.factor[r]), scale = splat(w.scale[r]);
      for (int c = 0; c < kTileDims; c += kLanes) {
        const int at = r * kTileDims + c;
        const IntVec sum = (IntVec)(((UIntVec)load_bytes(high + at) << 8) + (UIntVec)load_bytes(low + at));
        float* to = o + r * o_stride + d + c;
        store(to, multiply_add(to_floats(sum), scale, load(to) * factor));
      }
    }
  }
}

}  // namespace
}  // namespace orcaserve::ORCASERVE_ISA
