// The two small products of a low-rank adapter, on float activations; and which kernels multiply an adapter's numbers.
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
constexpr int kColumns = kLanes == 16 ? 48 : kAdapterLanes;  // of A that are multiplied at a time
constexpr int kAhead = 2048;  // bytes of A that are fetched ahead: by itself the processor stops at the end of a page
constexpr int kExpandRows = kLanes == 16 ? 4 : kLanes == 8 ? 2 : 1;

// The weights of a step: those of one float input, or of two bfloat16 ones side by side, the even one in the low halves.
struct Float32Step {
  static constexpr int kInputs = 1;
  static Vec weights(const uint8_t* p, int) { return load(reinterpret_cast<const float*>(p)); }
};

struct BFloat16Step {
  static constexpr int kInputs = 2;
  static Vec weights(const uint8_t* p, int part) {
    UIntVec pairs;
    __builtin_memcpy(&pairs, p, sizeof pairs);
    return (Vec)(part == 0 ? pairs << 16 : pairs & 0xffff0000u);
  }
};

// acc[r][v] += x[r] * weight[v] for the inputs of a step.
template <typename Step, int ROWS, int VECS>
inline void add_step(const uint8_t* weights, const float* const* x, int i, int n_inputs, Vec (&acc)[ROWS][VECS]) {
#pragma GCC unroll 2
  for (int part = 0; part < Step::kInputs; ++part) {
    if (part == n_inputs) break;
#pragma GCC unroll 12
    for (int v = 0; v < VECS; ++v) {
      const Vec w = Step::weights(weights + v * kLanes * 4, part);
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; ++r) acc[r][v] = multiply_add(splat(x[r][i + part]), w, acc[r][v]);
    }
  }
}

// t[r][0 .. VECS * kLanes) of ROWS rows. `a`: the first of these columns, `step` bytes from one step to the next. The steps go
// to CHAINS sums in turn, so that no product waits for the one before it.
template <typename Step, int ROWS, int VECS, int CHAINS>
void shrink_tile(const uint8_t* a, int64_t step, int n_in, const float* const* x, const float* scales, float* const* t) {
  Vec acc[CHAINS][ROWS][VECS] = {};
  constexpr int kAtOnce = CHAINS * Step::kInputs;
  int i = 0;
  for (; i + kAtOnce <= n_in; i += kAtOnce)
#pragma GCC unroll 4
    for (int c = 0; c < CHAINS; ++c, a += step) {
      for (int byte = 0; byte < VECS * kLanes * 4; byte += kLine) __builtin_prefetch(a + kAhead + byte, 0, 3);
      add_step<Step, ROWS, VECS>(a, x, i + c * Step::kInputs, Step::kInputs, acc[c]);
    }
  for (; i < n_in; i += Step::kInputs, a += step) add_step<Step, ROWS, VECS>(a, x, i, n_in - i, acc[0]);
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

template <typename Step, int ROWS, int VECS, int CHAINS>
void shrink_rows(int n, const uint8_t* a, int64_t step, int n_in, const float* const* x, const float* scales, float* const* t) {
  if constexpr (ROWS > 1) {
    if (n < ROWS) return shrink_rows<Step, ROWS - 1, VECS, CHAINS>(n, a, step, n_in, x, scales, t);
  }
  shrink_tile<Step, ROWS, VECS, CHAINS>(a, step, n_in, x, scales, t);
}

// Up to kColumns columns from `column` on.
template <typename Step>
void shrink_columns(const AdaptedLinear& w, const float* x, int64_t stride, const int32_t* rows, int n, int column, float* t,
                    int64_t t_stride) {
  const uint8_t* a = static_cast<const uint8_t*>(w.a) + int64_t{column} * 4;
  const int64_t step = int64_t{w.width} * 4;
  const int n_columns = w.width - column < kColumns ? w.width - column : kColumns;
  const float* scales = w.scales + column;
  for (int done = 0; done < n; done += kShrinkRows) {
    const int some = n - done < kShrinkRows ? n - done : kShrinkRows;
    const float* from[kShrinkRows] = {};
    float* to[kShrinkRows] = {};
    for (int r = 0; r < some; ++r) {
      from[r] = x + rows[done + r] * stride;
      to[r] = t + rows[done + r] * t_stride + column;
    }
    if constexpr (kManyRegisters && kLanes == 16) {
      if (n_columns == 48) {
        shrink_rows<Step, kShrinkRows, 3, 2>(some, a, step, w.n_in, from, scales, to);
      } else if (n_columns == 32) {
        shrink_rows<Step, kShrinkRows, 2, 2>(some, a, step, w.n_in, from, scales, to);
      } else {
        shrink_rows<Step, kShrinkRows, 1, 4>(some, a, step, w.n_in, from, scales, to);
      }
    } else {
      constexpr int kVecs = kLanes >= 8 ? kAdapterLanes / kLanes : 2;
      for (int at = 0; at < n_columns; at += kVecs * kLanes) {
        shrink_rows<Step, kShrinkRows, kVecs, 1>(some, a + at * 4, step, w.n_in, from, scales + at, to);
        for (int r = 0; r < some; ++r) to[r] += kVecs * kLanes;
      }
    }
  }
}

// ROWS rows of a tile; tile[r]: a row's outputs of the panel; t[r]: its columns. Fetches as many weights at `ahead`.
template <typename Step, int ROWS>
void expand_tile(const uint8_t* b, int n, const float* const* t, float* const* tile, const uint8_t* ahead) {
  Vec acc[ROWS][kPanelVecs];
#pragma GCC unroll 4
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 12
    for (int v = 0; v < kPanelVecs; ++v) acc[r][v] = load(tile[r] + v * kLanes);
  for (int j = 0; j < n; j += Step::kInputs, b += kPanel * 4) {
    if (ahead) {
      for (int line = 0; line < kPanel * 4; line += kLine) __builtin_prefetch(ahead + line, 0, 2);
      ahead += kPanel * 4;
    }
    add_step<Step, ROWS, kPanelVecs>(b, t, j, Step::kInputs, acc);
  }
#pragma GCC unroll 4
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 12
    for (int v = 0; v < kPanelVecs; ++v) store(tile[r] + v * kLanes, acc[r][v]);
}

template <typename Step, int ROWS>
void expand_rows(int some, const uint8_t* b, int n, const float* const* t, float* const* tile, const uint8_t* ahead) {
  if constexpr (ROWS > 1) {
    if (some < ROWS) return expand_rows<Step, ROWS - 1>(some, b, n, t, tile, ahead);
  }
  expand_tile<Step, ROWS>(b, n, t, tile, ahead);
}

template <typename Step>
void expand(const AdaptedLinear& w, int panel, const float* t, int64_t t_stride, const int32_t* rows, int n, int first_row,
            float* tile) {
  constexpr int64_t kBytes = 4 / Step::kInputs;
  const uint8_t* b = w.b + w.at[panel];
  // The next panel is most often the same thread's, and it comes when the base model's has been computed.
  const uint8_t* ahead = b + int64_t{w.n[panel]} * kPanel * kBytes;
  for (int done = 0; done < n; done += kExpandRows, ahead = nullptr) {
    const int some = n - done < kExpandRows ? n - done : kExpandRows;
    const float* from[kExpandRows] = {};
    float* to[kExpandRows] = {};
    for (int r = 0; r < some; ++r) {
      from[r] = t + rows[done + r] * t_stride + w.first[panel];
      to[r] = tile + (rows[done + r] - first_row) * kPanel;
    }
    expand_rows<Step, kExpandRows>(some, b, w.n[panel], from, to, ahead);
  }
}

}  // namespace

void shrink(const AdaptedLinear& w, const Matrix& m, const Operand& x, const int32_t* rows, int n, float* t, int64_t t_stride) {
  if (w.numbers == AdapterNumbers::kInt8) return shrink_int8(w, m, x, rows, n, t, t_stride);
  for (int column = 0; column < w.width; column += kColumns)
    if (w.numbers == AdapterNumbers::kBFloat16)
      shrink_columns<BFloat16Step>(w, x.x, x.stride, rows, n, column, t, t_stride);
    else
      shrink_columns<Float32Step>(w, x.x, x.stride, rows, n, column, t, t_stride);
}

void expand(const AdaptedLinear& w, int panel, const float* t, int64_t t_stride, const int32_t* rows, int n, int first_row,
            float* tile) {
  if (w.n[panel] == 0) return;
  switch (w.numbers) {
    case AdapterNumbers::kFloat32: return expand<Float32Step>(w, panel, t, t_stride, rows, n, first_row, tile);
    case AdapterNumbers::kBFloat16: return expand<BFloat16Step>(w, panel, t, t_stride, rows, n, first_row, tile);
    case AdapterNumbers::kInt8: return expand_int8(w, panel, t, t_stride, rows, n, first_row, tile);
  }
}

}  // namespace orcaserve::ORCASERVE_ISA
