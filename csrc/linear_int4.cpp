// y = x W^T for 4-bit weights and int8 activations, both with a scale per block of 32 inputs. The rows of a call pass
// over a panel in tiles, a run of blocks at a time; a tile unpacks a block once.
//
// With weight = nibble * scale + minimum and activation = q * s, a block adds
// sum(nibble * q) * (scale * s) + minimum * (s * sum(q)), where both sums are exact integers.
#include "int_tile.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

constexpr int kTileRows4 = 4;
constexpr int kStrip = ORCASERVE_REGISTERS == 32 ? 3 : 2;  // vectors: twice as many, of unpacked weights, fill registers
constexpr int kStrips = kPanel / (kStrip * kLanes);        // in which a panel is passed over
constexpr int kRunBlocks = 8;  // their weights stay in the first level of the cache for all tiles
constexpr int kQuads = 4;      // [kQuads][kPanel][4] bytes, each with inputs 4 i + j and 16 + 4 i + j
constexpr int kScalesAt = kQuads * kPanel * 4;
constexpr int kMinimaAt = kScalesAt + kPanel * 2;
constexpr int kBlockBytes = kMinimaAt + kPanel * 2;

// `add_products`: acc grows by the products of four nibbles and four signed bytes in every lane; `totals`: the sums of
// a block in 32 bits.
#if defined(ORCASERVE_VNNI)

using Sums = IntVec;
inline Sums add_products(Sums acc, IntVec w, IntVec q) { return dot(acc, w, q); }
inline IntVec totals(Sums acc) { return acc; }

#elif defined(__AVX2__)

// Eight sums of two products of at most 15 * 127 fit 16 bits, so a block's are widened once.
static_assert(kInt4Block / 4 * 2 * 15 * 127 < 1 << 15);
using Sums = ShortVec;
inline Sums add_products(Sums acc, IntVec w, IntVec q) {
#if defined(__AVX512BW__)
  return acc + (ShortVec)_mm512_maddubs_epi16((__m512i)w, (__m512i)q);
#else
  return acc + (ShortVec)_mm256_maddubs_epi16((__m256i)w, (__m256i)q);
#endif
}
inline IntVec totals(Sums acc) { return multiply_pairs(acc, ShortVec{} + 1); }

#else

using Sums = IntVec;
inline Sums add_products(Sums acc, IntVec w, IntVec q) { return dot(acc, prepare_weights(w), prepare_quad(q)); }
inline IntVec totals(Sums acc) { return acc; }

#endif

alignas(64) constexpr float kZeros[kTileRows4 * kPanel] = {};

// A run of blocks of a strip of a panel, and the rows of a tile there.
struct Run {
  const uint8_t* w;       // the first block's bytes, at the first output of the strip
  const uint8_t* halves;  // its scales, likewise
  int n_blocks;
  Rows q;
  const int32_t* sums;  // row r: [r * stride]
  const float* scales;
  int stride;
  const float* before;  // stride kPanel: sums of the blocks before the run
  float* out;
};

template <int ROWS, int ROW>
inline __attribute__((always_inline)) void add_rows(Sums (&acc)[ROWS][kStrip], const IntVec (&low)[kStrip],
                                                    const IntVec (&high)[kStrip], const Rows& rows) {
  if constexpr (ROW < ROWS) {
    const IntVec q_low = load_quad<ROW, 0>(rows);
#pragma GCC unroll 8
    for (int v = 0; v < kStrip; ++v) acc[ROW][v] = add_products(acc[ROW][v], low[v], q_low);
    const IntVec q_high = load_quad<ROW, kInt4Block / 2>(rows);
#pragma GCC unroll 8
    for (int v = 0; v < kStrip; ++v) acc[ROW][v] = add_products(acc[ROW][v], high[v], q_high);
    add_rows<ROWS, ROW + 1>(acc, low, high, rows);
  }
}

// The weights of a block: acc grows by the products with the rows' activations, and `rows` goes on to the next block.
template <int ROWS>
inline __attribute__((always_inline)) void add_block(Sums (&acc)[ROWS][kStrip], const uint8_t* w, Rows& rows) {
  // Not unrolled: the compiler would mix the steps until the accumulators no longer fit the registers.
#pragma GCC unroll 1
  for (int i = 0; i < kQuads; ++i) {
    IntVec low[kStrip], high[kStrip];
#pragma GCC unroll 8
    for (int v = 0; v < kStrip; ++v) {
      const IntVec both = load_bytes(w + (i * kPanel + v * kLanes) * 4);
      low[v] = both & 0x0f0f0f0f;
      high[v] = (both >> 4) & 0x0f0f0f0f;
    }
    add_rows<ROWS, 0>(acc, low, high, rows);
    advance(rows, 4);
  }
  advance(rows, kInt4Block - 4 * kQuads);
}

template <int ROWS>
inline __attribute__((always_inline)) void tile(const Run& run, Stream& stream) {
  const uint8_t* w = run.w;
  const uint8_t* halves = run.halves;
  Rows q = run.q;
  Stream s = stream;
  Vec out[ROWS][kStrip];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kStrip; ++v) out[r][v] = load(run.before + r * kPanel + v * kLanes);
  for (int b = 0; b < run.n_blocks; ++b) {
    fetch(s);
    Sums acc[ROWS][kStrip] = {};
    add_block(acc, w, q);
    Vec scale[kStrip], minimum[kStrip];
#pragma GCC unroll 8
    for (int v = 0; v < kStrip; ++v) {
      scale[v] = load_half(halves + 2 * v * kLanes);
      minimum[v] = load_half(halves + kPanel * 2 + 2 * v * kLanes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
      const Vec q_scale = splat(run.scales[r * run.stride + b]);
      const Vec q_sum = q_scale * to_floats(broadcast(run.sums + r * run.stride + b));
#pragma GCC unroll 8
      for (int v = 0; v < kStrip; ++v) {
        const Vec products = multiply_add(to_floats(totals(acc[r][v])), scale[v] * q_scale, out[r][v]);
        out[r][v] = multiply_add(minimum[v], q_sum, products);
      }
    }
    w += kBlockBytes;
    halves += kBlockBytes;
  }
  stream = s;
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kStrip; ++v) store(run.out + r * kPanel + v * kLanes, out[r][v]);
}

inline __attribute__((always_inline)) void tile(int rows, const Run& run, Stream& stream) {
  switch (rows) {
    case 1: return tile<1>(run, stream);
    case 2: return tile<2>(run, stream);
    case 3: return tile<3>(run, stream);
    case 4: return tile<4>(run, stream);
  }
}

}  // namespace

void multiply_int4(const Matrix& w, int panel, const Operand& x, int row, int n_rows, float* out,
                   const uint8_t* ahead) {
  const uint8_t* weights = w.panels + panel * w.panel_bytes;
  const int n_blocks = w.n_in_padded / kInt4Block;
  const int n_tiles = (n_rows + kTileRows4 - 1) / kTileRows4;
  // With more than one tile the first takes the weights of a run at once.
  const int run_blocks = n_tiles == 1 ? n_blocks : kRunBlocks;
  Stream stream = make_stream(ahead, w.panel_bytes, n_tiles * kStrips * n_blocks);
  for (int b = 0; b < n_blocks; b += run_blocks) {
    const int n = n_blocks - b < run_blocks ? n_blocks - b : run_blocks;
    for (int done = 0, rows = 0; done < n_rows; done += rows) {
      rows = tile_rows(n_rows - done, kTileRows4);
      const int64_t first = row + done;
      const Rows q = make_rows(x.q + first * x.q_stride + b * kInt4Block, x.q_stride);
      for (int output = 0; output < kPanel; output += kStrip * kLanes) {
        float* sums = out + done * kPanel + output;
        tile(rows,
             {weights + 4 * output, weights + kScalesAt + 2 * output, n, q, x.sums + first * x.n_groups + b,
              x.scales + first * x.n_groups + b, x.n_groups, b == 0 ? kZeros : sums, sums},
             stream);
      }
    }
    weights += run_blocks * kBlockBytes;
  }
}

}  // namespace orcaserve::ORCASERVE_ISA
