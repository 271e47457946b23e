// The two small products of a low-rank adapter, on float activations.
//
// Order of sums. A column of t is a fixed number of chains of multiply_add over the inputs, which depends on the column's place
// alone, and an output one chain over the columns. So a row's bits depend neither on the number of rows nor on its place.
#include "kernels.h"
#include "simd.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

constexpr int kPanelVecs = kPanel / kLanes;
constexpr bool kManyRegisters = ORCASERVE_REGISTERS == 32;
constexpr int kShrinkRows = 4;
constexpr int kExpandRows = kLanes == 16 ? 4 : kLanes == 8 ? 2 : 1;

// t[rows[r]][0 .. VECS * kLanes) of ROWS rows. `a`: the first of these columns. An input in turn goes to each of CHAINS sums,
// so that no product waits for the one before it.
template <typename Number, int ROWS, int VECS, int CHAINS>
void shrink_tile(const Number* a, int width, int n_in, const float* const* x, const float* scales, float* const* t) {
  Vec acc[CHAINS][ROWS][VECS] = {};
  int i = 0;
  for (; i + CHAINS <= n_in; i += CHAINS) {
#pragma GCC unroll 4
    for (int c = 0; c < CHAINS; ++c) {
      const Number* weights = a + int64_t{i + c} * width;
#pragma GCC unroll 4
      for (int v = 0; v < VECS; ++v) {
        const Vec w = load(weights + v * kLanes);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; ++r) acc[c][r][v] = multiply_add(splat(x[r][i + c]), w, acc[c][r][v]);
      }
    }
  }
  for (; i < n_in; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < VECS; ++v) {
      const Vec w = load(a + int64_t{i} * width + v * kLanes);
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; ++r) acc[0][r][v] = multiply_add(splat(x[r][i]), w, acc[0][r][v]);
    }
#pragma GCC unroll 4
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < VECS; ++v) {
      Vec sum = acc[0][r][v];
#pragma GCC unroll 4
      for (int c = 1; c < CHAINS; ++c) sum += acc[c][r][v];
      store(t[r] + v * kLanes, sum * load(scales + v * kLanes));
    }
}

template <typename Number, int ROWS, int VECS, int CHAINS>
void shrink_rows(int n, const Number* a, int width, int n_in, const float* const* x, const float* scales, float* const* t) {
  if constexpr (ROWS > 1) {
    if (n < ROWS) return shrink_rows<Number, ROWS - 1, VECS, CHAINS>(n, a, width, n_in, x, scales, t);
  }
  shrink_tile<Number, ROWS, VECS, CHAINS>(a, width, n_in, x, scales, t);
}

template <typename Number>
void shrink(const AdaptedLinear& w, const float* x, int64_t stride, const int32_t* rows, int n, int column, float* t,
            int64_t t_stride) {
  const Number* a = static_cast<const Number*>(w.a) + column;
  const int n_columns = w.width - column < kAdapterColumns ? w.width - column : kAdapterColumns;
  for (int done = 0; done < n; done += kShrinkRows) {
    const int some = n - done < kShrinkRows ? n - done : kShrinkRows;
    const float* from[kShrinkRows] = {};
    float* to[kShrinkRows] = {};
    for (int r = 0; r < some; ++r) {
      from[r] = x + rows[done + r] * stride;
      to[r] = t + rows[done + r] * t_stride + column;
    }
    const float* scales = w.scales + column;
    if constexpr (kManyRegisters && kLanes == 16) {
      if (n_columns == 48) {
        shrink_rows<Number, kShrinkRows, 3, 2>(some, a, w.width, w.n_in, from, scales, to);
      } else if (n_columns == 32) {
        shrink_rows<Number, kShrinkRows, 2, 2>(some, a, w.width, w.n_in, from, scales, to);
      } else {
        shrink_rows<Number, kShrinkRows, 1, 4>(some, a, w.width, w.n_in, from, scales, to);
      }
    } else {
      constexpr int kVecs = kLanes >= 8 ? kAdapterLanes / kLanes : 2;
      for (int at = 0; at < n_columns; at += kVecs * kLanes) {
        shrink_rows<Number, kShrinkRows, kVecs, 1>(some, a + at, w.width, w.n_in, from, scales + at, to);
        for (int r = 0; r < some; ++r) to[r] += kVecs * kLanes;
      }
    }
  }
}

// ROWS rows of a tile; tile[r]: a row's outputs of the panel; t[r]: its columns.
template <typename Number, int ROWS>
void expand_tile(const Number* b, int n, const float* const* t, float* const* tile) {
  Vec acc[ROWS][kPanelVecs];
#pragma GCC unroll 4
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 12
    for (int v = 0; v < kPanelVecs; ++v) acc[r][v] = load(tile[r] + v * kLanes);
  for (int j = 0; j < n; ++j, b += kPanel)
#pragma GCC unroll 12
    for (int v = 0; v < kPanelVecs; ++v) {
      const Vec w = load(b + v * kLanes);
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; ++r) acc[r][v] = multiply_add(splat(t[r][j]), w, acc[r][v]);
    }
#pragma GCC unroll 4
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 12
    for (int v = 0; v < kPanelVecs; ++v) store(tile[r] + v * kLanes, acc[r][v]);
}

template <typename Number, int ROWS>
void expand_rows(int some, const Number* b, int n, const float* const* t, float* const* tile) {
  if constexpr (ROWS > 1) {
    if (some < ROWS) return expand_rows<Number, ROWS - 1>(some, b, n, t, tile);
  }
  expand_tile<Number, ROWS>(b, n, t, tile);
}

template <typename Number>
void expand(const AdaptedLinear& w, int panel, const float* t, int64_t t_stride, const int32_t* rows, int n, int first_row,
            float* tile) {
  const Number* b = static_cast<const Number*>(w.b) + w.at[panel];
  for (int done = 0; done < n; done += kExpandRows) {
    const int some = n - done < kExpandRows ? n - done : kExpandRows;
    const float* from[kExpandRows] = {};
    float* to[kExpandRows] = {};
    for (int r = 0; r < some; ++r) {
      from[r] = t + rows[done + r] * t_stride + w.first[panel];
      to[r] = tile + (rows[done + r] - first_row) * kPanel;
    }
    expand_rows<Number, kExpandRows>(some, b, w.n[panel], from, to);
  }
}

}  // namespace

void shrink(const AdaptedLinear& w, bool is_bfloat16, const float* x, int64_t stride, const int32_t* rows, int n, int column,
            float* t, int64_t t_stride) {
  if (is_bfloat16)
    shrink<BFloat16>(w, x, stride, rows, n, column, t, t_stride);
  else
    shrink<float>(w, x, stride, rows, n, column, t, t_stride);
}

void expand(const AdaptedLinear& w, bool is_bfloat16, int panel, const float* t, int64_t t_stride, const int32_t* rows, int n,
            int first_row, float* tile) {
  if (w.n[panel] == 0) return;
  if (is_bfloat16)
    expand<BFloat16>(w, panel, t, t_stride, rows, n, first_row, tile);
  else
    expand<float>(w, panel, t, t_stride, rows, n, first_row, tile);
}

}  // namespace orcaserve::ORCASERVE_ISA
