// The bfloat16 Linear on AMX, 32 inputs at a time.
//
// The instruction multiplies bfloat16 by bfloat16. Activations rounded to that would change results far beyond the last
// bits of floats in which instruction sets may differ. So each is cut into three bfloat16 numbers whose sum it is, its
// 24 bits being three times 8, and each of them is multiplied by the weights; products are exact and summed as floats.
// Three multiplications of tiles and the cutting are still a fraction of what takes vectors 256 multiplications.
//
// Order of sums: that of the instruction, from input 0 upwards, the largest third of the activations first. It is the
// same for any number of rows, so a row's bits do not depend on their number. Parts of activations below 2^-126 count
// as 0, and infinite ones give NaN.
#include "linear_amx.h"

#if ORCASERVE_AMX

#include "amx_tiles.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

constexpr int kStep = 32;    // inputs of a tile
constexpr int kChunk = 128;  // inputs whose activations are cut at a time: they stay in the first level of the cache

// Activations of a chunk, cut.
struct Cut {
  alignas(64) BFloat16 parts[kParts][kTileRows][kChunk];
};

constexpr int64_t kCutRow = kChunk * sizeof(BFloat16);

using WordVec = uint16_t __attribute__((vector_size(ORCASERVE_VECTOR_BYTES)));

// The upper halves of x's floats, then those of y's.
inline WordVec upper_halves(Vec x, Vec y) {
  WordVec odd;
  for (int i = 0; i < 2 * kLanes; ++i) odd[i] = static_cast<uint16_t>(2 * i + 1);
  return __builtin_shuffle((WordVec)x, (WordVec)y, odd);
}

inline Vec upper_half(Vec x) { return (Vec)((UIntVec)x & 0xffff0000u); }

// x [n] or, behind the last of them, zeros.
inline Vec load_some(const float* x, int n) {
  return n >= kLanes ? load(x) : n > 0 ? load_first(x, n) : Vec{};
}

// Cuts x [n], n <= kChunk; fills up with zeros to whole steps. A float's upper half is the bfloat16 next to it on the
// side of 0; what it leaves is exact, and after two of them fits a third.
void cut_row(const float* x, int n, Cut& cut, int row) {
  static_assert(kStep == 2 * kLanes);
  for (int i = 0; i < n; i += kStep) {
    Vec first = load_some(x + i, n - i), second = load_some(x + i + kLanes, n - i - kLanes);
#pragma GCC unroll 3
    for (int part = 0; part < kParts; ++part) {
      const WordVec halves = upper_halves(first, second);
      __builtin_memcpy(cut.parts[part][row] + i, &halves, sizeof halves);
      first -= upper_half(first);
      second -= upper_half(second);
    }
  }
}

// The panel's last rows, fewer than a tile has, with zeros behind them: `to` holds a whole tile.
const uint8_t* filled_up(const uint8_t* w, int n_rows, uint8_t* to) {
  __builtin_memset(to, 0, kSide * kWeightRow);
  __builtin_memcpy(to, w, static_cast<unsigned>(n_rows * kWeightRow));
  return to;
}

}  // namespace

void multiply_bfloat16_amx(const Matrix& w, int panel, const Operand& x, int row, int n_rows, float* out,
                           const uint8_t* ahead) {
  Cut cut;
  alignas(64) uint8_t last[kSide * kWeightRow];
  const Runs runs(n_rows);
  const uint8_t* weights = w.panels + panel * w.panel_bytes;
  const float* rows = x.x + row * x.stride;
  Ahead fetched(ahead, w.panel_bytes, (w.n_in + kStep - 1) / kStep);
  configure_tiles(runs.height);
  zero_sums(runs.two);
  for (int from = 0; from < w.n_in; from += kChunk) {
    const int n = w.n_in - from < kChunk ? w.n_in - from : kChunk;
    settle(&cut);
    for (int r = 0; r < n_rows; ++r) cut_row(rows + r * x.stride + from, n, cut, r);
    settle(&cut);
    for (int i = 0; i < n; i += kStep, weights += kSide * kWeightRow) {
      fetch(fetched);
      const int pairs = (n - i + 1) / 2;
      const uint8_t* tile = pairs >= kSide ? weights : filled_up(weights, pairs, last);
      settle(last);
      const BFloat16* a = cut.parts[0][0] + i;
      const BFloat16* b = cut.parts[0][runs.second] + i;
      constexpr int64_t kPart = sizeof cut.parts[0];
      runs.two ? add_parts<true>(tile, a, b, kPart, kCutRow) : add_parts<false>(tile, a, b, kPart, kCutRow);
    }
  }
  store_sums(runs, out);
  settle(out);
}

}  // namespace orcaserve::ORCASERVE_ISA

#endif
