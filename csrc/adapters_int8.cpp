// The two small products of a low-rank adapter in eight bits: for Linears whose activations are small integers anyway.
//
// A multiplies the integers that the matrix multiplies (turned, if it is kInt8), in the same groups of inputs; the exact
// inputs that these leave out are added in float32. The columns of t then become integers themselves, kAdapterLanes of them
// with a scale, and B multiplies those.
//
// Order of sums: the exact inputs from 0 upwards, then the groups; an output's groups of columns likewise. Sums within a
// group are of integers. So a row's bits depend neither on the number of rows nor on its place.
#include "int_tile.h"
#include "quantise.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

constexpr bool kWide = kLanes == 16;
constexpr int kRows = kWide ? 4 : kLanes == 8 ? 2 : 1;  // of a tile
constexpr int kColumns = kWide ? 48 : kAdapterLanes;    // of A that are multiplied at a time
constexpr int kStep = 4;                                // numbers of a dot product in a lane
constexpr int kAhead = 2048;  // bytes of A that are fetched ahead: by itself the processor stops at the end of a page
constexpr int kStrip = 3;     // vectors of a panel that are computed at a time

// The four bytes at p in every lane, as `dot` takes them.
inline auto load_four(const int8_t* p) {
  int32_t x;
  __builtin_memcpy(&x, p, sizeof x);
  return prepare_quad(keep(x - IntVec{}));
}

// Rows of activations and what belongs to them.
template <int ROWS>
struct Activations {
  const int8_t* q[ROWS];
  const float* scales[ROWS];
  const int32_t* sums[ROWS];
  const float* x[ROWS];  // as floats
};

// total[r][v] = sum over the inputs of ROWS rows and VECS vectors of columns from `column` on. The steps of a group go to
// CHAINS sums in turn, so that no product waits for the one before it.
template <int ROWS, int VECS, int CHAINS>
void multiply_by_a(const AdaptedLinear& w, const Matrix& m, const Activations<ROWS>& x, int column, Vec (&total)[ROWS][VECS]) {
  for (int e = 0; e < m.n_exact; ++e)
#pragma GCC unroll 4
    for (int v = 0; v < VECS; ++v) {
      const Vec weights = load(w.exact + int64_t{e} * w.width + column + v * kLanes);
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; ++r) total[r][v] = multiply_add(splat(x.x[r][m.exact[e]]), weights, total[r][v]);
    }
  const auto* a = static_cast<const uint8_t*>(w.a) + column * kStep;
  const int64_t step = int64_t{w.width} * kStep;
  const int n_groups = m.n_in_padded / m.group;
  int at = 0;
  for (int group = 0; group < n_groups; ++group) {
    IntVec acc[CHAINS][ROWS][VECS] = {};
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r) {
      const IntVec start = -(broadcast(x.sums[r] + group) << 7);
#pragma GCC unroll 4
      for (int v = 0; v < VECS; ++v) acc[0][r][v] = start;
    }
    for (const int end = at + m.group; at < end;)
#pragma GCC unroll 4
      for (int c = 0; c < CHAINS; ++c, at += kStep, a += step) {
        for (int byte = 0; byte < VECS * ORCASERVE_VECTOR_BYTES; byte += kLine) __builtin_prefetch(a + kAhead + byte, 0, 3);
        Weights weights[VECS];
#pragma GCC unroll 4
        for (int v = 0; v < VECS; ++v) weights[v] = prepare_weights(load_bytes(a + v * ORCASERVE_VECTOR_BYTES));
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; ++r) {
          const auto quad = load_four(x.q[r] + at);
#pragma GCC unroll 4
          for (int v = 0; v < VECS; ++v) acc[c][r][v] = dot(acc[c][r][v], weights[v], quad);
        }
      }
    const float* a_scales = w.a_scales + int64_t{group} * w.width + column;
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r) {
      const Vec scale = splat(x.scales[r][group]);
#pragma GCC unroll 4
      for (int v = 0; v < VECS; ++v) {
        IntVec sum = acc[0][r][v];
#pragma GCC unroll 4
        for (int c = 1; c < CHAINS; ++c) sum += acc[c][r][v];
        total[r][v] = multiply_add(to_floats(sum), load(a_scales + v * kLanes) * scale, total[r][v]);
      }
    }
  }
}

// A row of t, in the place of `width` floats.
struct Columns {
  int8_t* q;       // [width]
  float* scales;   // [width / kAdapterLanes]
  int32_t* sums;   // likewise: of q

};

Columns columns_of(float* row, int width) {
  float* scales = row + width / 4;
  return {reinterpret_cast<int8_t*>(row), scales, reinterpret_cast<int32_t*>(scales + width / kAdapterLanes)};
}

// kAdapterLanes columns from `column` on become integers.
void round_columns(const Vec* t, int column, const Columns& to) {
  constexpr int kVecs = kAdapterLanes / kLanes;
  IntVec top{}, sum{};
  for (int v = 0; v < kVecs; ++v) top = maximum(top, magnitude(t[v]));
  const Scale s = scale_of(top, 1.0f);
  for (int v = 0; v < kVecs; ++v) {
    const IntVec rounded = s.inverse == 0.0f ? IntVec{} : nearest(t[v] * splat(s.inverse));
    sum += rounded;
    int8_t* q = to.q + column + v * kLanes;
#if defined(__AVX512F__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)rounded));
#else
    for (int i = 0; i < kLanes; ++i) q[i] = static_cast<int8_t>(rounded[i]);
#endif
  }
  to.scales[column / kAdapterLanes] = s.scale;
  to.sums[column / kAdapterLanes] = horizontal_sum(sum);
}

template <int ROWS, int VECS>
void shrink_tile(const AdaptedLinear& w, const Matrix& m, const Operand& x, const int32_t* rows, int column, float* t,
                 int64_t stride) {
  Activations<ROWS> from;
  for (int r = 0; r < ROWS; ++r) {
    const int64_t row = rows[r];
    from.q[r] = x.q + row * x.q_stride;
    from.scales[r] = x.scales + row * x.n_groups;
    from.sums[r] = x.sums + row * x.n_groups;
    from.x[r] = x.x + row * x.stride;
  }
  Vec total[ROWS][VECS] = {};
  multiply_by_a<ROWS, VECS, kWide && VECS < 3 ? 2 : 1>(w, m, from, column, total);
  for (int r = 0; r < ROWS; ++r) {
    for (int v = 0; v < VECS; ++v) total[r][v] *= load(w.scales + column + v * kLanes);
    for (int v = 0; v < VECS; v += kAdapterLanes / kLanes)
      round_columns(total[r] + v, column + v * kLanes, columns_of(t + rows[r] * stride, w.width));
  }
}

template <int ROWS, int VECS>
void shrink_rows(int n, const AdaptedLinear& w, const Matrix& m, const Operand& x, const int32_t* rows, int column, float* t,
                 int64_t stride) {
  if constexpr (ROWS > 1) {
    if (n < ROWS) return shrink_rows<ROWS - 1, VECS>(n, w, m, x, rows, column, t, stride);
  }
  shrink_tile<ROWS, VECS>(w, m, x, rows, column, t, stride);
}

// A panel's run of columns, kAdapterLanes at a time: [4][kPanel][4] bytes, 128 too large, then [kPanel] scales.
constexpr int kQuads = kAdapterLanes / kStep;
constexpr int kScalesAt = kAdapterLanes * kPanel;
constexpr int kGroupBytes = kScalesAt + kPanel * static_cast<int>(sizeof(BFloat16));

template <int ROWS>
void expand_tile(const uint8_t* b, int first_group, int n_groups, const Columns* t, float* const* tile) {
  for (int output = 0; output < kPanel; output += kStrip * kLanes) {
    Vec out[ROWS][kStrip];
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kStrip; ++v) out[r][v] = load(tile[r] + output + v * kLanes);
    const uint8_t* group = b;
    for (int g = first_group; g < first_group + n_groups; ++g, group += kGroupBytes) {
      IntVec acc[ROWS][kStrip];
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; ++r) {
        const IntVec start = -(broadcast(t[r].sums + g) << 7);
#pragma GCC unroll 4
        for (int v = 0; v < kStrip; ++v) acc[r][v] = start;
      }
#pragma GCC unroll 4
      for (int i = 0; i < kQuads; ++i) {
        Weights weights[kStrip];
#pragma GCC unroll 4
        for (int v = 0; v < kStrip; ++v)
          weights[v] = prepare_weights(load_bytes(group + (i * kPanel + output + v * kLanes) * kStep));
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; ++r) {
          const auto quad = load_four(t[r].q + g * kAdapterLanes + i * kStep);
#pragma GCC unroll 4
          for (int v = 0; v < kStrip; ++v) acc[r][v] = dot(acc[r][v], weights[v], quad);
        }
      }
      const auto* scales = reinterpret_cast<const BFloat16*>(group + kScalesAt) + output;
      Vec scale[kStrip];
#pragma GCC unroll 4
      for (int v = 0; v < kStrip; ++v) scale[v] = load(scales + v * kLanes);
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; ++r) {
        const Vec own = splat(t[r].scales[g]);
#pragma GCC unroll 4
        for (int v = 0; v < kStrip; ++v) out[r][v] = multiply_add(to_floats(acc[r][v]), scale[v] * own, out[r][v]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kStrip; ++v) store(tile[r] + output + v * kLanes, out[r][v]);
  }
}

template <int ROWS>
void expand_rows(int some, const uint8_t* b, int first_group, int n_groups, const Columns* t, float* const* tile) {
  if constexpr (ROWS > 1) {
    if (some < ROWS) return expand_rows<ROWS - 1>(some, b, first_group, n_groups, t, tile);
  }
  expand_tile<ROWS>(b, first_group, n_groups, t, tile);
}

}  // namespace

void shrink_int8(const AdaptedLinear& w, const Matrix& m, const Operand& x, const int32_t* rows, int n, float* t,
                 int64_t t_stride) {
  for (int column = 0; column < w.width; column += kColumns) {
    [[maybe_unused]] const int n_columns = w.width - column < kColumns ? w.width - column : kColumns;
    for (int done = 0; done < n; done += kRows) {
      const int some = n - done < kRows ? n - done : kRows;
      const int32_t* own = rows + done;
      if constexpr (!kWide)
        shrink_rows<kRows, kColumns / kLanes>(some, w, m, x, own, column, t, t_stride);
      else if (n_columns == 48)
        shrink_rows<kRows, 3>(some, w, m, x, own, column, t, t_stride);
      else if (n_columns == 32)
        shrink_rows<kRows, 2>(some, w, m, x, own, column, t, t_stride);
      else
        shrink_rows<kRows, 1>(some, w, m, x, own, column, t, t_stride);
    }
  }
}

void expand_int8(const AdaptedLinear& w, int panel, const float* t, int64_t t_stride, const int32_t* rows, int n, int first_row,
                 float* tile) {
  const uint8_t* b = w.b + w.at[panel];
  const int n_groups = w.n[panel] / kAdapterLanes, n_bytes = n_groups * kGroupBytes;
  // The next panel is most often the same thread's, and it comes when the base model's has been computed.
  for (int byte = 0; byte < n_bytes; byte += kLine) __builtin_prefetch(b + n_bytes + byte, 0, 2);
  for (int done = 0; done < n; done += kRows) {
    const int some = n - done < kRows ? n - done : kRows;
    Columns from[kRows] = {};
    float* to[kRows] = {};
    for (int r = 0; r < some; ++r) {
      from[r] = columns_of(const_cast<float*>(t) + rows[done + r] * t_stride, w.width);
      to[r] = tile + (rows[done + r] - first_row) * kPanel;
    }
    expand_rows<kRows>(some, b, w.first[panel] / kAdapterLanes, n_groups, from, to);
  }
}

}  // namespace orcaserve::ORCASERVE_ISA
