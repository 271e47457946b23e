// What the Linears on AMX tiles share.
//
// A panel's rows of kPanel times four bytes (four int8 inputs, or two of bfloat16) are what the instructions want of
// their second operand: 16 such rows, 64 bytes of each, are a tile of 16 outputs. Tiles 0 to 2 are the sums of a first
// run of rows for the 48 outputs of a panel, 3 to 5 those of a second run; 6 holds activations and 7 weights.
//
// The compiler's intrinsics must be given numbers of tiles as literals, and do not tell it which memory they read:
// hence `settle`.
#pragma once

#include <immintrin.h>

#include "linear_amx.h"
#include "simd.h"

#if defined(ORCASERVE_AMX_SHIM)
#include "check/amx_shim.h"
#endif

namespace orcaserve::ORCASERVE_ISA {
namespace {

constexpr int kSide = 16;               // most rows of a tile
constexpr int kTileBytes = 64;          // of a row of a tile
constexpr int kWeightRow = 4 * kPanel;  // bytes of a panel's row

static_assert(kPanel == 3 * kSide && kTileRows == 2 * kSide, "six tiles hold the sums of a call");

// What was written before is in memory for the tile instructions behind this, and what follows is written behind those
// before it.
inline void settle(const void* p) { __asm__ volatile("" : : "r"(p) : "memory"); }

// How the rows of a call are cut: more than 16 are two runs of the same height, which share the middle row if there is
// an odd number of them, for all tiles of a multiplication must agree in their rows.
struct Runs {
  bool two;
  int height;
  int second;  // where the second run begins

  explicit Runs(int n_rows) : two(n_rows > kSide), height(two ? (n_rows + 1) / 2 : n_rows), second(n_rows - height) {}
};

inline void zero_sums(bool two) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  if (!two) return;
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
}

// Sums to out, a row of kPanel numbers of four bytes for each row of the call.
template <typename Number>
inline void store_sums(const Runs& runs, Number* out) {
  constexpr int64_t kRow = kPanel * sizeof(Number);
  if (runs.two) {
    Number* second = out + runs.second * kPanel;
    _tile_stored(3, second, kRow);
    _tile_stored(4, second + kSide, kRow);
    _tile_stored(5, second + 2 * kSide, kRow);
  }
  _tile_stored(0, out, kRow);
  _tile_stored(1, out + kSide, kRow);
  _tile_stored(2, out + 2 * kSide, kRow);
}

// Adds the products of a panel's 16 rows of weights from w on with rows of bfloat16 that were cut into kParts parts, a
// part_bytes apart, a row's beginning stride bytes behind the last one's; a: the first run of rows, b: the second, if there
// are two. Spelled out, since the instructions take the numbers of their tiles as they are written.
constexpr int kParts = 3;

template <bool TWO>
inline void add_parts(const uint8_t* w, const void* a, [[maybe_unused]] const void* b, int64_t part_bytes, int64_t stride) {
  const auto* first = static_cast<const uint8_t*>(a);
  [[maybe_unused]] const auto* second = static_cast<const uint8_t*>(b);
  _tile_loadd(7, w, kWeightRow);
  for (int part = 0; part < kParts; ++part) {
    _tile_loadd(6, first + part * part_bytes, stride);
    _tile_dpbf16ps(0, 6, 7);
    if constexpr (TWO) {
      _tile_loadd(6, second + part * part_bytes, stride);
      _tile_dpbf16ps(3, 6, 7);
    }
  }
  _tile_loadd(7, w + kTileBytes, kWeightRow);
  for (int part = 0; part < kParts; ++part) {
    _tile_loadd(6, first + part * part_bytes, stride);
    _tile_dpbf16ps(1, 6, 7);
    if constexpr (TWO) {
      _tile_loadd(6, second + part * part_bytes, stride);
      _tile_dpbf16ps(4, 6, 7);
    }
  }
  _tile_loadd(7, w + 2 * kTileBytes, kWeightRow);
  for (int part = 0; part < kParts; ++part) {
    _tile_loadd(6, first + part * part_bytes, stride);
    _tile_dpbf16ps(2, 6, 7);
    if constexpr (TWO) {
      _tile_loadd(6, second + part * part_bytes, stride);
      _tile_dpbf16ps(5, 6, 7);
    }
  }
}

// What is to be fetched while tiles are multiplied, in `n_steps` steps.
struct Ahead {
  const uint8_t* next;
  int lines;  // per step

  Ahead(const uint8_t* first, int64_t bytes, int n_steps)
      : next(first), lines(first ? static_cast<int>((bytes / kLine + n_steps - 1) / n_steps) : 0) {}
};

inline void fetch(Ahead& ahead) {
  for (int i = 0; i < ahead.lines; ++i, ahead.next += kLine) __builtin_prefetch(ahead.next, 0, 2);
}

}  // namespace
}  // namespace orcaserve::ORCASERVE_ISA
