// y = x W^T for int8 weights and activations. The rows of a call pass over a panel in tiles whose accumulators fill the
// registers; a group of inputs at a time, so that its weights come from the first level of the cache for all tiles but
// the first.
//
// Weights are stored as bytes 128 too large, since the instruction takes one unsigned and one signed operand: an
// accumulator begins at -128 times the sum of its row's activations, and ends as the exact integer sum.
#include "int_tile.h"
#include "linear_amx.h"
#include "pack.h"

#if !ORCASERVE_AMX  // there: linear_amx.cpp

namespace orcaserve::ORCASERVE_ISA {
namespace {

// A tile of kTileRows8 rows x kStrip vectors: accumulators, weights and activations of a step fit the registers. Without
// VNNI, weights take two registers and a product one more.
#if defined(ORCASERVE_VNNI)
constexpr int kTileRows8 = ORCASERVE_REGISTERS == 32 ? 8 : 4;
constexpr int kStrip = 3;
#else
constexpr int kTileRows8 = ORCASERVE_REGISTERS == 32 ? 6 : 4;
constexpr int kStrip = ORCASERVE_REGISTERS == 32 ? 3 : 2;
#endif
constexpr int kStrips = kPanel / (kStrip * kLanes);  // in which a panel is passed over
constexpr int kStep = 4;  // inputs of a dot product in a lane
constexpr int kFetchSteps = 4;

alignas(64) constexpr float kZeros[kTileRows8 * kPanel] = {};

// A group of inputs of a strip of a panel, and the rows of a tile there.
struct Group {
  const uint8_t* w;  // [inputs / kStep][kPanel][kStep], at the first output of the strip
  const float* w_scales;
  int inputs;
  Rows q;
  const int32_t* sums;  // row r: [r * n_groups]
  const float* scales;
  int n_groups;
  const float* before;  // stride kPanel: sums of the groups before this one
  float* out;
};

#if defined(ORCASERVE_VNNI)

constexpr int kWideRow = 0;

inline Rows tile_activations(const int8_t* q, int64_t stride, int, int, int8_t*) { return make_rows(q, stride); }

template <int ROW>
inline __attribute__((always_inline)) void add_products(IntVec (&acc)[kStrip], const Weights (&w)[kStrip],
                                                        const Rows& rows) {
  const IntVec q = load_quad<ROW, 0>(rows);
#pragma GCC unroll 8
  for (int v = 0; v < kStrip; ++v) acc[v] = dot(acc[v], w[v], q);
}

#else

// The activations of a tile are widened once for all strips: a row's even pairs, then its odd ones.
constexpr int kWideRow = 2 * kMaxGroup;

inline Rows tile_activations(const int8_t* q, int64_t stride, int n_rows, int inputs, int8_t* wide) {
  for (int r = 0; r < n_rows; ++r)
    for (int i = 0; i < inputs; i += ORCASERVE_VECTOR_BYTES) {
      IntVec bytes;
      __builtin_memcpy(&bytes, q + r * stride + i, sizeof bytes);
      const Pairs pairs = prepare_quad(bytes);
      __builtin_memcpy(wide + r * kWideRow + i, &pairs.even, sizeof pairs.even);
      __builtin_memcpy(wide + r * kWideRow + kMaxGroup + i, &pairs.odd, sizeof pairs.odd);
    }
  return make_rows(wide, kWideRow);
}

// The even products are added before the odd ones are made: both at once would take a register too many.
template <int ROW>
inline __attribute__((always_inline)) void add_products(IntVec (&acc)[kStrip], const Weights (&w)[kStrip],
                                                        const Rows& rows) {
  const IntVec even = load_quad<ROW, 0>(rows);
#pragma GCC unroll 8
  for (int v = 0; v < kStrip; ++v) acc[v] = keep(acc[v] + multiply_pairs(w[v].even, (ShortVec)even));
  const IntVec odd = load_quad<ROW, kMaxGroup>(rows);
#pragma GCC unroll 8
  for (int v = 0; v < kStrip; ++v) acc[v] = keep(acc[v] + multiply_pairs(w[v].odd, (ShortVec)odd));
}

#endif

template <int ROWS, int ROW>
inline __attribute__((always_inline)) void dot_rows(IntVec (&acc)[ROWS][kStrip], const Weights (&w)[kStrip],
                                                    const Rows& rows) {
  if constexpr (ROW < ROWS) {
    add_products<ROW>(acc[ROW], w, rows);
    dot_rows<ROWS, ROW + 1>(acc, w, rows);
  }
}

template <int ROWS>
inline __attribute__((always_inline)) void tile(const Group& g, Stream& stream) {
  IntVec acc[ROWS][kStrip];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r) {
    const IntVec start = -(broadcast(g.sums + r * g.n_groups) << 7);
#pragma GCC unroll 8
    for (int v = 0; v < kStrip; ++v) acc[r][v] = start;
  }

  const uint8_t* w = g.w;
  Rows q = g.q;
  Stream s = stream;
  for (int i = 0; i < g.inputs; i += kFetchSteps * kStep) {
    fetch(s);
    // Not unrolled: the compiler would mix the steps until the accumulators no longer fit the registers.
#pragma GCC unroll 1
    for (int step = 0; step < kFetchSteps; ++step) {
      Weights weights[kStrip];
#pragma GCC unroll 8
      for (int v = 0; v < kStrip; ++v) weights[v] = prepare_weights(load_bytes(w + v * ORCASERVE_VECTOR_BYTES));
      dot_rows<ROWS, 0>(acc, weights, q);
      w += kStep * kPanel;
      advance(q, kStep);
    }
  }
  stream = s;

  Vec w_scales[kStrip];
#pragma GCC unroll 8
  for (int v = 0; v < kStrip; ++v) w_scales[v] = load(g.w_scales + v * kLanes);
  const float* __restrict before = g.before;
  float* __restrict out = g.out;
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r) {
    const Vec scale = splat(g.scales[r * g.n_groups]);
#pragma GCC unroll 8
    for (int v = 0; v < kStrip; ++v) {
      const int i = r * kPanel + v * kLanes;
      store(out + i, multiply_add(to_floats(acc[r][v]), w_scales[v] * scale, load(before + i)));
    }
  }
}

inline __attribute__((always_inline)) void tile(int rows, const Group& g, Stream& stream) {
  static_assert(kTileRows8 <= 8);
  switch (rows) {
    case 1: return tile<1>(g, stream);
    case 2: return tile<2>(g, stream);
    case 3: return tile<3>(g, stream);
    case 4: return tile<4>(g, stream);
#if ORCASERVE_REGISTERS == 32
    case 5: return tile<5>(g, stream);
    case 6: return tile<6>(g, stream);
    case 7: return tile<7>(g, stream);
    case 8: return tile<8>(g, stream);
#endif
  }
}

}  // namespace

void multiply_int8(const Matrix& w, int panel, const Operand& x, int row, int n_rows, float* out,
                   const uint8_t* ahead) {
  if (w.n_exact > 0) multiply_exact(w, panel, x, row, n_rows, out);
  const uint8_t* weights = w.panels + panel * w.panel_bytes;
  const int n_groups = w.n_in_padded / w.group;
  const int n_tiles = (n_rows + kTileRows8 - 1) / kTileRows8;
  Stream stream = make_stream(ahead, w.panel_bytes, n_tiles * kStrips * (w.n_in_padded / (kFetchSteps * kStep)));
  alignas(64) int8_t wide[kTileRows8 * kWideRow + 1];
  for (int g = 0; g < n_groups; ++g) {
    const auto* w_scales = reinterpret_cast<const float*>(weights + w.group * kPanel);
    for (int done = 0, rows = 0; done < n_rows; done += rows) {
      rows = tile_rows(n_rows - done, kTileRows8);
      const int64_t first = row + done;
      const Rows q = tile_activations(x.q + first * x.q_stride + g * w.group, x.q_stride, rows, w.group, wide);
      for (int output = 0; output < kPanel; output += kStrip * kLanes) {
        float* sums = out + done * kPanel + output;
        tile(rows,
             {weights + kStep * output, w_scales + output, w.group, q, x.sums + first * x.n_groups + g,
              x.scales + first * x.n_groups + g, x.n_groups, g == 0 && w.n_exact == 0 ? kZeros : sums, sums},
             stream);
      }
    }
    weights += w.group * kPanel + kPanel * static_cast<int>(sizeof(float));
  }
}

void end_multiply() {}

}  // namespace orcaserve::ORCASERVE_ISA

#endif
