// The int8 Linear on AMX, 64 inputs at a time.
//
// The integer sums are exact, so only the order in which they become floats matters, and that is linear_int8.cpp's:
// group by group, float(sum) * (weight scale * row scale) added to what was there.
#include "linear_amx.h"

#if ORCASERVE_AMX

#include "amx_tiles.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

static_assert(kHadamard == kTileBytes, "groups of inputs are whole tiles");

// Sums of `n_steps` times 64 inputs, of one run of rows from q on.
void sum_one(const uint8_t* w, const int8_t* q, int64_t stride, int n_steps, Ahead& ahead) {
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
void sum_two(const uint8_t* w, const int8_t* q, const int8_t* q2, int64_t stride, int n_steps, Ahead& ahead) {
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

inline IntVec load_sums(const int32_t* p) {
  IntVec x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}

// The rows' scales and sums of q of a group, n_groups apart.
struct GroupOf {
  const float* w_scales;
  const float* scales;
  const int32_t* sums;
  int n_groups;
  bool is_first;
};

// out = sums as floats, on top of those of earlier groups. Weights are stored 128 too large.
void flush(const int32_t* sums, int n_rows, const GroupOf& group, float* out) {
  for (int r = 0; r < n_rows; ++r, sums += kPanel, out += kPanel) {
    const IntVec excess = group.sums[r * group.n_groups] * 128 - IntVec{};
    const Vec scale = splat(group.scales[r * group.n_groups]);
    for (int v = 0; v < kPanel; v += kLanes) {
      const Vec sum = __builtin_convertvector(load_sums(sums + v) - excess, Vec);
      const Vec before = group.is_first ? Vec{} : load(out + v);
      store(out + v, multiply_add(sum, load(group.w_scales + v) * scale, before));
    }
  }
}

}  // namespace

void multiply_int8_amx(const Matrix& w, int panel, const Operand& x, int row, int n_rows, float* out,
                       const uint8_t* ahead) {
  alignas(64) int32_t sums[kTileRows * kPanel];
  const Runs runs(n_rows);
  const uint8_t* weights = w.panels + panel * w.panel_bytes;
  Ahead fetched(ahead, w.panel_bytes, w.n_in_padded / kTileBytes);
  configure(runs.height);
  for (int group = 0; group < w.n_in_padded / w.group; ++group) {
    const int8_t* q = x.q + row * x.q_stride + group * w.group;
    zero_sums(runs.two);
    if (runs.two)
      sum_two(weights, q, q + runs.second * x.q_stride, x.q_stride, w.group / kTileBytes, fetched);
    else
      sum_one(weights, q, x.q_stride, w.group / kTileBytes, fetched);
    store_sums(runs, sums);
    weights += w.group * kPanel;
    const int64_t at = int64_t{row} * x.n_groups + group;
    const auto* w_scales = reinterpret_cast<const float*>(weights);
    flush(sums, n_rows, {w_scales, x.scales + at, x.sums + at, x.n_groups, group == 0}, out);
    weights += kPanel * sizeof(float);
  }
  // Not kept for the next call: a thread whose tiles hold something costs the system more to switch.
  _tile_release();
}

}  // namespace orcaserve::ORCASERVE_ISA

#endif
