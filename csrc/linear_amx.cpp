// The int8 Linear on AMX: tiles of 16 rows x 16 outputs, 64 inputs at a time.
//
// A panel's [inputs / 4][kPanel][4] bytes are what the instruction wants of its second operand: 16 rows of a tile are 64
// inputs, 64 bytes of each are 16 outputs. The integer sums are exact, so only their order of conversion matters, and that
// is linear_int8.cpp's: group by group, float(sum) * (weight scale * row scale) added to what was there.
//
// bfloat16 weights do not go this way: the tiles multiply them by bfloat16 activations, and rounding those would change
// results far beyond the last bits of floats that instruction sets may differ in.
#include "linear_amx.h"

#if ORCASERVE_AMX

#include "simd.h"

#include <immintrin.h>

#if defined(ORCASERVE_AMX_SHIM)
#include "check/amx_shim.h"
#endif

namespace orcaserve::ORCASERVE_ISA {
namespace {

constexpr int kSide = 16;      // rows of a tile
constexpr int kTileBytes = 64;  // of a row of a tile: 64 inputs, or 16 sums
constexpr int kWeightRow = 4 * kPanel;  // bytes of four inputs of a panel
constexpr int kLine = 64;

static_assert(kPanel == 3 * kSide && kTileRows == 2 * kSide, "six tiles hold the sums of a call");
static_assert(kHadamard == kTileBytes, "groups of inputs are whole tiles");

// The operand of LDTILECFG.
struct alignas(64) TileConfig {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

// Tiles 0 to 2 are the sums of the first rows, 3 to 5 those of the others; 6 is activations and 7 weights.
void configure(int rows) {
  TileConfig config{};
  config.palette = 1;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = kTileBytes;
    config.rows[tile] = static_cast<uint8_t>(tile == 7 ? kSide : rows);
  }
  // The intrinsic tells the compiler that it reads the first bytes only.
  __asm__ volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

// What is to be fetched while tiles are multiplied.
struct Ahead {
  const uint8_t* next;
  int lines;  // per step
};

inline void fetch(Ahead& ahead) {
  for (int i = 0; i < ahead.lines; ++i, ahead.next += kLine) __builtin_prefetch(ahead.next, 0, 2);
}

// Sums of `n_steps` times 64 inputs, of the rows from q on, of 16 rows at most.
void sum_low(const uint8_t* w, const int8_t* q, int64_t stride, int n_steps, Ahead& ahead) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  for (int step = 0; step < n_steps; ++step, w += kSide * kWeightRow, q += kTileBytes) {
    fetch(ahead);
    _tile_loadd(6, q, stride);
    _tile_loadd(7, w, kWeightRow);
    _tile_dpbsud(0, 6, 7);
    _tile_loadd(7, w + kTileBytes, kWeightRow);
    _tile_dpbsud(1, 6, 7);
    _tile_loadd(7, w + 2 * kTileBytes, kWeightRow);
    _tile_dpbsud(2, 6, 7);
  }
}

// The same for two runs of rows, in an order that loads weights once.
void sum_high(const uint8_t* w, const int8_t* q, const int8_t* q2, int64_t stride, int n_steps, Ahead& ahead) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (int step = 0; step < n_steps; ++step, w += kSide * kWeightRow, q += kTileBytes, q2 += kTileBytes) {
    fetch(ahead);
    _tile_loadd(7, w, kWeightRow);
    _tile_loadd(6, q, stride);
    _tile_dpbsud(0, 6, 7);
    _tile_loadd(6, q2, stride);
    _tile_dpbsud(3, 6, 7);
    _tile_loadd(7, w + kTileBytes, kWeightRow);
    _tile_dpbsud(4, 6, 7);
    _tile_loadd(6, q, stride);
    _tile_dpbsud(1, 6, 7);
    _tile_loadd(7, w + 2 * kTileBytes, kWeightRow);
    _tile_dpbsud(2, 6, 7);
    _tile_loadd(6, q2, stride);
    _tile_dpbsud(5, 6, 7);
  }
}

constexpr int64_t kSumRow = kPanel * sizeof(int32_t);

void store_low(int32_t* sums) {
  _tile_stored(0, sums, kSumRow);
  _tile_stored(1, sums + kSide, kSumRow);
  _tile_stored(2, sums + 2 * kSide, kSumRow);
}

void store_high(int32_t* sums) {
  _tile_stored(3, sums, kSumRow);
  _tile_stored(4, sums + kSide, kSumRow);
  _tile_stored(5, sums + 2 * kSide, kSumRow);
}

inline IntVec load_sums(const int32_t* p) {
  IntVec x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}

// out (+)= sums as floats; corrections and scales are one per row, n_groups apart. Weights are stored 128 too large.
void flush(const int32_t* sums, int n_rows, const float* w_scales, const int32_t* corrections, const float* scales,
           int n_groups, bool first, float* out) {
  constexpr int kVectors = kPanel / kLanes;
  for (int r = 0; r < n_rows; ++r, sums += kPanel, out += kPanel) {
    const IntVec correction = corrections[r * n_groups] * 128 - IntVec{};
    const Vec scale = splat(scales[r * n_groups]);
    for (int v = 0; v < kVectors; ++v) {
      const Vec sum = __builtin_convertvector(load_sums(sums + v * kLanes) - correction, Vec);
      const Vec before = first ? Vec{} : load(out + v * kLanes);
      store(out + v * kLanes, multiply_add(sum, load(w_scales + v * kLanes) * scale, before));
    }
  }
}

}  // namespace

void multiply_int8_amx(const Matrix& w, int panel, const Operand& x, int row, int n_rows, float* out, const uint8_t* ahead) {
  alignas(64) int32_t sums[kTileRows * kPanel];
  // More than 16 rows are two runs of the same height, which share the middle row if there is an odd number of them: all
  // tiles of a multiplication must agree in their rows.
  const bool two = n_rows > kSide;
  const int height = two ? (n_rows + 1) / 2 : n_rows, second = n_rows - height;
  const int n_groups = w.n_in_padded / w.group, n_steps = w.n_in_padded / kTileBytes;
  const int64_t lines = ahead ? w.panel_bytes / kLine : 0;
  Ahead fetched{ahead, static_cast<int>((lines + n_steps - 1) / n_steps)};
  const uint8_t* weights = w.panels + panel * w.panel_bytes;
  configure(height);
  for (int group = 0; group < n_groups; ++group) {
    const int8_t* q = x.q + row * x.q_stride + group * w.group;
    if (two) {
      sum_high(weights, q, q + second * x.q_stride, x.q_stride, w.group / kTileBytes, fetched);
      store_high(sums + second * kPanel);
    } else {
      sum_low(weights, q, x.q_stride, w.group / kTileBytes, fetched);
    }
    store_low(sums);
    weights += w.group * kPanel;
    const int64_t at = int64_t{row} * x.n_groups + group;
    flush(sums, n_rows, reinterpret_cast<const float*>(weights), x.sums + at, x.scales + at, x.n_groups, group == 0, out);
    weights += kPanel * sizeof(float);
  }
  // Not kept for the next call: a thread whose tiles hold something costs the system more to switch.
  _tile_release();
}

}  // namespace orcaserve::ORCASERVE_ISA

#endif
