// The int8 Linear on AMX, 64 inputs at a time.
//
// The integer sums are exact, so only the order in which they become floats matters, and that is linear_int8.cpp's:
// what the exact inputs give, then group by group float(sum) * (weight scale * row scale) added to what was there.
//
// A *stage* is one group of inputs for one run of rows. Three stages are under way at a time, instruction by instruction:
// tiles are multiplied for one, the sums of the one before are stored, those of the one before that become floats. Done one
// after the other, each of the three takes about as long as the others.
#include "linear_amx.h"

#if ORCASERVE_AMX

#include "amx_tiles.h"
#include "int_tile.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

static_assert(kHadamard == kTileBytes, "groups of inputs are whole tiles");

// Stages use one of two sets of three tiles of sums in turn: 0 to 2, and 3 to 5.
template <int SET>
inline void zero_set() {
  if constexpr (SET == 0) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
  } else {
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
  }
}

// Adds 64 inputs of a run of rows from q on.
template <int SET>
inline void add_inputs(const uint8_t* w, const int8_t* q, int64_t stride) {
  _tile_loadd(6, q, stride);
  _tile_loadd(7, w, kWeightRow);
  if constexpr (SET == 0)
    _tile_dpbsud(0, 6, 7);
  else
    _tile_dpbsud(3, 6, 7);
  _tile_loadd(7, w + kTileBytes, kWeightRow);
  if constexpr (SET == 0)
    _tile_dpbsud(1, 6, 7);
  else
    _tile_dpbsud(4, 6, 7);
  _tile_loadd(7, w + 2 * kTileBytes, kWeightRow);
  if constexpr (SET == 0)
    _tile_dpbsud(2, 6, 7);
  else
    _tile_dpbsud(5, 6, 7);
}

// Tile `i` of a set to columns 16 i and on of sums.
template <int SET>
inline void store_tile_of(int i, int32_t* sums) {
  if constexpr (SET == 0) {
    if (i == 0)
      _tile_stored(0, sums, kWeightRow);
    else if (i == 1)
      _tile_stored(1, sums + kSide, kWeightRow);
    else
      _tile_stored(2, sums + 2 * kSide, kWeightRow);
  } else {
    if (i == 0)
      _tile_stored(3, sums, kWeightRow);
    else if (i == 1)
      _tile_stored(4, sums + kSide, kWeightRow);
    else
      _tile_stored(5, sums + 2 * kSide, kWeightRow);
  }
}

inline IntVec load_sums(const int32_t* p) {
  IntVec x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}

// A stage's sums on their way to floats: rows `from` to `to` of a run, its weights' scales, and the rows' scales and sums
// of q, n_groups apart.
struct Stage {
  int32_t* sums;
  const float* w_scales;
  const float* scales;
  const int32_t* q_sums;
  int n_groups;
  int from, to;
  float* out;
  bool is_first;  // with nothing in out
};

// out = sums as floats, on top of those of earlier groups, for rows `from` to `to`. Weights are stored 128 too large.
inline void flush(const Stage& s, int from, int to) {
  constexpr int kVecs = kPanel / kLanes;
  Vec w_scales[kVecs];
#pragma GCC unroll 8
  for (int v = 0; v < kVecs; ++v) w_scales[v] = load(s.w_scales + v * kLanes);
  for (int r = from; r < to; ++r) {
    const IntVec excess = broadcast(s.q_sums + r * s.n_groups) << 7;
    const Vec scale = splat(s.scales[r * s.n_groups]);
    const int32_t* sums = s.sums + r * kPanel;
    float* y = s.out + r * kPanel;
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      const Vec sum = __builtin_convertvector(load_sums(sums + v * kLanes) - excess, Vec);
      const Vec before = s.is_first ? Vec{} : load(y + v * kLanes);
      store(y + v * kLanes, multiply_add(sum, w_scales[v] * scale, before));
    }
  }
}

// Multiplies the tiles of a stage, and meanwhile stores the sums of the last one and flushes the one before that.
template <int SET>
inline void run_stage(const uint8_t* w, const int8_t* q, int64_t stride, int n_steps, int rows_a_step, Ahead& ahead,
                      const Stage* last, const Stage* second_last) {
  zero_set<SET>();
  int flushed = second_last ? second_last->from : 0;
  for (int step = 0; step < n_steps; ++step) {
    fetch(ahead);
    add_inputs<SET>(w + step * kSide * kWeightRow, q + step * kTileBytes, stride);
    if (last)
      for (int i = step; i < 3; i += n_steps) store_tile_of<1 - SET>(i, last->sums);
    if (second_last) {
      const int from = flushed;
      flushed = from + rows_a_step < second_last->to ? from + rows_a_step : second_last->to;
      flush(*second_last, from, flushed);
    }
  }
}

// The operand of LDTILECFG.
struct alignas(64) TileConfig {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

thread_local int tile_height = 0;  // 0: not configured

}  // namespace

void configure_tiles(int height) {
  if (height == tile_height) return;
  tile_height = height;
  TileConfig config{};
  config.palette = 1;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = kTileBytes;
    config.rows[tile] = static_cast<uint8_t>(tile == 7 ? kSide : height);
  }
  settle(&config);
  _tile_loadconfig(&config);
}

void end_multiply() {
  if (tile_height == 0) return;
  tile_height = 0;
  _tile_release();
}

void multiply_int8(const Matrix& w, int panel, const Operand& x, int row, int n_rows, float* out, const uint8_t* ahead) {
  if (w.n_exact > 0) multiply_exact(w, panel, x, row, n_rows, out);

  alignas(64) int32_t sums[2][kSide * kPanel];
  Stage stages[2];
  const Runs runs(n_rows);
  const uint8_t* weights = w.panels + panel * w.panel_bytes;
  const int n_groups = w.n_in_padded / w.group, n_steps = w.group / kTileBytes, n_runs = runs.two ? 2 : 1;
  const int64_t group_bytes = int64_t{w.group} * kPanel + kPanel * static_cast<int>(sizeof(float));
  Ahead fetched(ahead, w.panel_bytes, n_runs * w.n_in_padded / kTileBytes);
  configure_tiles(runs.height);
  const int rows_a_step = (runs.height + n_steps - 1) / n_steps;
  int done = 0;
  for (int group = 0; group < n_groups; ++group, weights += group_bytes)
    for (int run = 0; run < n_runs; ++run, ++done) {
      const int first = row + (run ? runs.second : 0);
      const int8_t* q = x.q + first * x.q_stride + group * w.group;
      const Stage* last = done >= 1 ? &stages[(done - 1) & 1] : nullptr;
      const Stage* second_last = done >= 2 ? &stages[done & 1] : nullptr;
      if (done & 1)
        run_stage<1>(weights, q, x.q_stride, n_steps, rows_a_step, fetched, last, second_last);
      else
        run_stage<0>(weights, q, x.q_stride, n_steps, rows_a_step, fetched, last, second_last);
      settle(sums);
      const int64_t at = int64_t{first} * x.n_groups + group;
      stages[done & 1] = {sums[done & 1], reinterpret_cast<const float*>(weights + w.group * kPanel), x.scales + at,
                          x.sums + at, x.n_groups, run ? 2 * runs.height - n_rows : 0, runs.height,
                          out + (first - row) * kPanel, group == 0 && w.n_exact == 0};
    }
  // `done` stages are multiplied, all but one stored, all but two flushed.
  Stage& last = stages[(done - 1) & 1];
  for (int i = 0; i < 3; ++i) done & 1 ? store_tile_of<0>(i, last.sums) : store_tile_of<1>(i, last.sums);
  settle(sums);
  if (done >= 2) flush(stages[done & 1], stages[done & 1].from, stages[done & 1].to);
  flush(last, last.from, last.to);
}

}  // namespace orcaserve::ORCASERVE_ISA

#endif
