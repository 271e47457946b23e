// The two products of attention over int8 K/V, a step of keys and a tile of rows at a time.
#pragma once

#include "attention_bytes.h"
#include "linear_amx.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

constexpr int kStep = 64;  // keys of a softmax step
constexpr int kStrips = kStep / kStrip;
constexpr int kMostRows = ORCASERVE_AMX ? 16 : kQueryTile;  // of a tile
constexpr int kStepVecs = kStep / kLanes;
static_assert(kPartKeys % kStep == 0, "steps do not cross the border of a part");

// Where the keys and values of a step are. Strips behind the last key repeat the last strip, those before the first the first.
struct Step {
  const uint8_t* keys[kStrips];  // the first four dimensions; the next four lie 4 * page_size further on
  const int8_t* values[kStrips];
  const float* key_scales[kStrips];
  const float* value_scales[kStrips];
};

// scores[r][v] = q[r] . keys of vector v, for ROWS rows and kVecTile vectors from `first` on. FETCH: keys of the step
// `ahead` are fetched meanwhile, for they lie in places that the machine cannot foresee.
template <int ROWS, bool FETCH>
inline void score_tile(const int8_t* q, int64_t q_stride, const int32_t* init, int head_dim, const Step& step,
                       const Step& ahead, int first, int64_t stride, int32_t* scores) {
  constexpr int kFetched = kVecTile * kLanes < kStrip ? 1 : kVecTile * kLanes / kStrip;  // strips
  const uint8_t* columns[kVecTile];
  for (int v = 0; v < kVecTile; ++v) {
    const int key = (first + v) * kLanes;
    columns[v] = step.keys[key / kStrip] + key % kStrip * 4;
  }
  const uint8_t* const* fetched = ahead.keys + first * kLanes / kStrip;
  IntVec acc[ROWS][kVecTile];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVecTile; ++v) acc[r][v] = init[r] - IntVec{};
  for (int d = 0; d < head_dim / 4; ++d) {
    if constexpr (FETCH) {
#pragma GCC unroll 8
      for (int s = 0; s < kFetched; ++s) __builtin_prefetch(fetched[s] + d * stride, 0, 2);
    }
    Unsigned key[kVecTile];
#pragma GCC unroll 8
    for (int v = 0; v < kVecTile; ++v) key[v] = as_unsigned(load_bytes(columns[v] + d * stride));
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
      const Signed x = as_signed(broadcast_quad(q + r * q_stride + d * 4));
#pragma GCC unroll 8
      for (int v = 0; v < kVecTile; ++v) acc[r][v] = dot(acc[r][v], key[v], x);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVecTile; ++v)
      __builtin_memcpy(scores + r * kStep + (first + v) * kLanes, &acc[r][v], sizeof acc[r][v]);
}

// The weights of a tile: two digits of each, and per row what turns sums of them into weighted sums of values. Padded, since
// they are written a vector at a time.
struct Weights {
  alignas(kLine) uint8_t high[kMostRows][kStep];
  alignas(kLine) uint8_t low[kMostRows][kStep];
  float factor[kMostRows + kLanes];  // for the earlier sums
  float scale[kMostRows + kLanes];   // for the sums of this step
};

// o[r][v] = o[r][v] * factor[r] + scale[r] * sum over keys of weights[r] * value, for VECS vectors of dimensions from
// `col` on. SOME: the vector is the last and not full.
template <int ROWS, int VECS, bool SOME, bool FETCH>
inline void value_tile(const Weights& w, const Step& step, const Step& ahead, int n_keys, int col, int head_dim,
                       float* o, int o_stride) {
  IntVec acc[ROWS][VECS] = {};
  const int n_quads = (n_keys + 3) / 4;
#pragma GCC unroll 2
  for (int digit = 0; digit < 2; ++digit) {
    const uint8_t* weights = digit == 0 ? w.high[0] : w.low[0];
    for (int j = 0; j < n_quads; ++j) {
      const int64_t at = (int64_t{j % 4} * head_dim + col) * 4;
      const int8_t* row = step.values[j / 4] + at;
      if (FETCH && digit == 0) {
        const int8_t* line = ahead.values[j / 4] + at;
#pragma GCC unroll 8
        for (int i = 0; i < VECS * ORCASERVE_VECTOR_BYTES; i += kLine) __builtin_prefetch(line + i, 0, 2);
      }
      Signed value[VECS];
#pragma GCC unroll 8
      for (int v = 0; v < VECS; ++v) {
        if constexpr (SOME) {
          IntVec some = {};
          __builtin_memcpy(&some, row, static_cast<size_t>(head_dim - col) * 4);
          value[v] = as_signed(some);
        } else {
          value[v] = as_signed(load_bytes(row + v * ORCASERVE_VECTOR_BYTES));
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; ++r) {
        const Unsigned x = as_unsigned(broadcast_quad(weights + r * kStep + quad_place(j) * 4));
#pragma GCC unroll 8
        for (int v = 0; v < VECS; ++v) acc[r][v] = dot(acc[r][v], x, value[v]);
      }
    }
    if (digit == 0) {
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < VECS; ++v) acc[r][v] = (IntVec)((UIntVec)acc[r][v] << 8);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r) {
    const Vec factor = splat(w.factor[r]), scale = splat(w.scale[r]);
#pragma GCC unroll 8
    for (int v = 0; v < VECS; ++v) {
      float* to = o + r * o_stride + col + v * kLanes;
      store(to, multiply_add(to_floats(acc[r][v]), scale, load(to) * factor));
    }
  }
}

}  // namespace
}  // namespace orcaserve::ORCASERVE_ISA
