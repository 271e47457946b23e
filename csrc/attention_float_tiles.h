// The two products of attention over float32 and bfloat16 K/V, a step of keys and a tile of rows at a time.
#pragma once

#include "attention_units.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

constexpr int kStep = 128;  // keys of a softmax step
constexpr int kStepVecs = kStep / kLanes;
static_assert(kPartKeys % kStep == 0, "steps do not cross the border of a part");

// Where the keys and values of a step are. Strips behind the last key repeat the last strip, those before the first the first.
template <typename T>
struct Step {
  const T* keys[kStep / kStrip];  // dimension 0; the next dimension lies page_size further on
  const T* values[kStep / kStrip];

  const T* key_vec(int v) const { return keys[v * kLanes / kStrip] + v * kLanes % kStrip; }
};

// The first n elements at p and zeros.
template <typename T>
inline Vec load_some(const T* p, int n) {
  T lanes[kLanes] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}

// scores[r][v] = q[r] . keys of vector v, for ROWS rows and VECS vectors from `first` on. FETCH: the values of these
// keys are fetched meanwhile, for they lie in places that the machine cannot foresee.
template <int ROWS, int VECS, bool FETCH, typename T>
inline void score_tile(const float* q, int head_dim, const Step<T>& step, int first, int64_t page_size, float* scores) {
  const T* columns[VECS];
  const T* fetched[VECS];
  for (int v = 0; v < VECS; ++v) {
    columns[v] = step.key_vec(first + v);
    const int key = (first + v) * kLanes;
    fetched[v] = step.values[key / kStrip] + int64_t{key % kStrip} * head_dim;
  }
  Vec acc[ROWS][VECS] = {};
  for (int d = 0; d < head_dim; ++d) {
    if constexpr (FETCH) {
#pragma GCC unroll 8
      for (int v = 0; v < VECS; ++v) __builtin_prefetch(fetched[v] + d * kLanes, 0, 2);
    }
    Vec key[VECS];
#pragma GCC unroll 8
    for (int v = 0; v < VECS; ++v) key[v] = load(columns[v] + d * page_size);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
      const Vec x = splat(q[int64_t{r} * head_dim + d]);
#pragma GCC unroll 8
      for (int v = 0; v < VECS; ++v) acc[r][v] = multiply_add(x, key[v], acc[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < VECS; ++v) store(scores + r * kStep + (first + v) * kLanes, acc[r][v]);
}

// o[r][v] = o[r][v] * factor[r] + sum over keys j from begin to end of weights[r][j] * value row j, for VECS vectors of
// dimensions from `col` on. SOME: the vector is the last and not full. FETCH: the keys of the step `ahead` are fetched meanwhile.
template <int ROWS, int VECS, bool SOME, bool FETCH, typename T>
inline void value_tile(const float* weights, const float* factor, const Step<T>& step, const Step<T>& ahead, int begin,
                       int end, int col, int head_dim, int64_t page_size, float* o, int o_stride) {
  Vec acc[ROWS][VECS];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < VECS; ++v) acc[r][v] = load(o + r * o_stride + col + v * kLanes) * splat(factor[r]);
  for (int j = begin; j < end; ++j) {
    const T* row = step.values[j / kStrip] + int64_t{j % kStrip} * head_dim + col;
    if constexpr (FETCH) {
      const T* line = ahead.keys[j / kStrip] + (j % kStrip + col) * page_size;
#pragma GCC unroll 8
      for (int v = 0; v < VECS * kLanes / kStrip; ++v) __builtin_prefetch(line + v * kStrip * page_size, 0, 2);
    }
    Vec value[VECS];
#pragma GCC unroll 8
    for (int v = 0; v < VECS; ++v) {
      if constexpr (SOME)
        value[v] = load_some(row, head_dim - col);
      else
        value[v] = load(row + v * kLanes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
      const Vec w = splat(weights[r * kStep + j]);
#pragma GCC unroll 8
      for (int v = 0; v < VECS; ++v) acc[r][v] = multiply_add(w, value[v], acc[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < VECS; ++v) store(o + r * o_stride + col + v * kLanes, acc[r][v]);
}

}  // namespace
}  // namespace orcaserve::ORCASERVE_ISA
