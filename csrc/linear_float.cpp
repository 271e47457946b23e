// Linears on float activations: float32 and bfloat16 weights, both multiplied as floats.
//
// A panel is read input by input: the weights of one input for kPanel outputs, against that input of a few rows. The
// products of ROWS rows and VECS vectors of outputs are summed in registers, which is what limits a tile: of 32 AVX-512
// registers, 8 rows and all outputs of a panel fill 24; with 16 registers, the more rows the fewer outputs.
//
// Order of sums. An output is one chain of multiply_add over the inputs, from 0 upwards, in every tile. So a row's bits
// depend neither on the number of rows nor on its place among them.
#include "kernels.h"
#include "linear_amx.h"
#include "simd.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

constexpr int kRowBytes = kPanel * 4;  // of the weights of one float32 input, or of two bfloat16 ones
constexpr int kPanelVecs = kPanel / kLanes;
constexpr int kMaxRows = ORCASERVE_REGISTERS == 32 ? 8 : kLanes == 4 ? 3 : 6;  // of a tile

// What is fetched while computing: each step of a tile brings the lines at `next` and moves on by `step` bytes.
struct Fetch {
  const uint8_t* next;
  int step;
};

// The weights of a step of a tile: those of one float32 input, or of two bfloat16 ones, the even one in the low halves.
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

// Vectors of outputs of a tile of `rows` rows: a part of the panel that leaves registers for weights and activations.
template <typename Step>
constexpr int tile_vecs(int rows) {
  // Widening bfloat16 takes registers as well, and so does a product that is not fused with its sum.
  const int most = ORCASERVE_REGISTERS == 32 ? 24 : !kFused && rows == 3 ? 9 : Step::kInputs == 2 && rows == 4 ? 8 : 12;
  int vecs = kPanelVecs;
  while (kPanelVecs % vecs != 0 || vecs * rows > most) --vecs;
  return vecs;
}

// Tiles that `rows` rows need to get through the panel.
struct Passes {
  int of[kMaxRows + 1];
};

template <typename Step>
constexpr Passes count_passes() {
  Passes p{};
  for (int rows = 1; rows <= kMaxRows; ++rows) p.of[rows] = kPanelVecs / tile_vecs<Step>(rows);
  return p;
}

// acc += a * b, in acc's own register: left to choose, g++ moves the accumulators around and runs out of registers.
inline void accumulate(Vec& acc, Vec a, Vec b) {
#if defined(__FMA__) && ORCASERVE_REGISTERS < 32
  asm("vfmadd231ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
#else
  acc = multiply_add(a, b, acc);
#endif
}

// acc[r][v] += x[r] * weight[v]. The shorter side is held in registers, the other one passes through.
template <typename Step, int ROWS, int VECS>
inline void add_input(const uint8_t* panel, int part, const float* x, int64_t stride, Vec (&acc)[ROWS][VECS]) {
  if constexpr (ROWS < VECS) {
    Vec a[ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) a[r] = splat(x[r * stride]);
#pragma GCC unroll 12
    for (int v = 0; v < VECS; ++v) {
      const Vec w = Step::weights(panel + v * kLanes * 4, part);
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; ++r) accumulate(acc[r][v], a[r], w);
    }
  } else {
    Vec w[VECS];
#pragma GCC unroll 12
    for (int v = 0; v < VECS; ++v) w[v] = Step::weights(panel + v * kLanes * 4, part);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
      const Vec a = splat(x[r * stride]);
#pragma GCC unroll 12
      for (int v = 0; v < VECS; ++v) accumulate(acc[r][v], a, w[v]);
    }
  }
}

// out[r][v] = sum over the inputs of x[r][i] * weight[i][v], for ROWS rows and VECS vectors of outputs, the first of
// which `panel` points at. LINES lines are fetched per step. Returns what is to be fetched next.
template <typename Step, int ROWS, int VECS, int LINES>
const uint8_t* tile(const uint8_t* panel, int n_in, const float* x, int64_t stride, float* out, Fetch fetch) {
  Vec acc[ROWS][VECS] = {};
  int i = 0;
  for (; i + Step::kInputs <= n_in; i += Step::kInputs) {
    for (int line = 0; line < LINES; ++line) __builtin_prefetch(fetch.next + line * kLine, 0, 2);
    add_input<Step>(panel, 0, x + i, stride, acc);
    if constexpr (Step::kInputs == 2) {
      // With few registers the even input's weights must not be kept for the odd one at the price of an accumulator.
      if (ORCASERVE_REGISTERS < 32) asm volatile("" ::: "memory");
      add_input<Step>(panel, 1, x + i + 1, stride, acc);
    }
    panel += kRowBytes;
    if (LINES > 0) fetch.next += fetch.step;
  }
  if (i < n_in) add_input<Step>(panel, 0, x + i, stride, acc);
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 12
    for (int v = 0; v < VECS; ++v) store(out + r * kPanel + v * kLanes, acc[r][v]);
  return fetch.next;
}

// All outputs of the panel for `n_rows` rows, at most ROWS.
template <typename Step, int LINES, int ROWS>
const uint8_t* tile_rows(int n_rows, const uint8_t* panel, int n_in, const float* x, int64_t stride, float* out,
                         Fetch fetch) {
  if constexpr (ROWS > 1) {
    if (n_rows < ROWS) return tile_rows<Step, LINES, ROWS - 1>(n_rows, panel, n_in, x, stride, out, fetch);
  }
  constexpr int kVecs = tile_vecs<Step>(ROWS);
  for (int v = 0; v < kPanelVecs; v += kVecs)
    fetch.next = tile<Step, ROWS, kVecs, LINES>(panel + v * kLanes * 4, n_in, x, stride, out + v * kLanes, fetch);
  return fetch.next;
}

template <typename Step>
void multiply(const Matrix& w, int panel, const Operand& x, int row, int n_rows, float* out, const uint8_t* ahead) {
  const uint8_t* weights = w.panels + panel * w.panel_bytes;
  const float* rows = x.x + row * x.stride;
  constexpr Passes kPasses = count_passes<Step>();
  // Tiles of about the same height: a low one would wait for its own sums. The first ones are the lower ones.
  const int n_tiles = (n_rows + kMaxRows - 1) / kMaxRows;
  const int height = n_rows / n_tiles;
  const int n_higher = n_rows % n_tiles;
  // The panel ahead is fetched evenly over all of the work, so that memory has the most time.
  const int n_passes = (n_tiles - n_higher) * kPasses.of[height] + (n_higher ? n_higher * kPasses.of[height + 1] : 0);
  Fetch fetch{ahead, (kRowBytes + n_passes - 1) / n_passes};
  for (int t = 0, done = 0; t < n_tiles; ++t) {
    const int n = t < n_tiles - n_higher ? height : height + 1;
    const float* first = rows + done * x.stride;
    float* to = out + done * kPanel;
    if (ahead == nullptr) {
      tile_rows<Step, 0, kMaxRows>(n, weights, w.n_in, first, x.stride, to, fetch);
    } else if (fetch.step > kLine) {
      fetch.next = tile_rows<Step, kRowBytes / kLine, kMaxRows>(n, weights, w.n_in, first, x.stride, to, fetch);
    } else {
      fetch.next = tile_rows<Step, 1, kMaxRows>(n, weights, w.n_in, first, x.stride, to, fetch);
    }
    done += n;
  }
}

}  // namespace

void multiply_float32(const Matrix& w, int panel, const Operand& x, int row, int n_rows, float* out,
                      const uint8_t* ahead) {
  multiply<Float32Step>(w, panel, x, row, n_rows, out, ahead);
}

void multiply_bfloat16(const Matrix& w, int panel, const Operand& x, int row, int n_rows, float* out,
                       const uint8_t* ahead) {
#if ORCASERVE_AMX
  return multiply_bfloat16_amx(w, panel, x, row, n_rows, out, ahead);
#endif
  multiply<BFloat16Step>(w, panel, x, row, n_rows, out, ahead);
}

}  // namespace orcaserve::ORCASERVE_ISA
