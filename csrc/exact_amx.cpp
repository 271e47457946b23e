// The exact inputs of an int8 Linear (exact.cpp) on AMX, 16 inputs at a time.
//
// As in linear_amx_bfloat16.cpp every input is cut into three numbers of bfloat16 whose sum it is. Weights, float16, are cut
// into two, which take the places of two inputs in a tile: an input stands there as (part, part), its weights as (upper,
// lower).
//
// Order of sums: that of the instruction, 16 inputs at a time, the largest third of the activations first; the same for any
// number of rows.
#include "linear_amx.h"

#if ORCASERVE_AMX

#include "amx_tiles.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

constexpr int kInputs = kSide;                  // of a tile
constexpr int kChunkFloats = kParts * kInputs;  // of a row in Operand::exact: [kParts][kInputs] pairs

inline UIntVec upper_half(Vec x) { return (UIntVec)x & 0xffff0000u; }

// Weights of n inputs [n][kPanel] as pairs; zeros behind them.
void cut_weights(const Float16* weights, int n, uint32_t* to) {
  for (int i = 0; i < n * kPanel; i += kLanes) {
    const Vec w = load_half(weights + i);
    const UIntVec upper = upper_half(w), pair = upper >> 16 | upper_half(w - (Vec)upper);
    __builtin_memcpy(to + i, &pair, sizeof pair);
  }
  for (int i = n * kPanel; i < kInputs * kPanel; i += kLanes) {
    const UIntVec none{};
    __builtin_memcpy(to + i, &none, sizeof none);
  }
}

int count_chunks(int n_exact) { return (n_exact + kInputs - 1) / kInputs; }

}  // namespace

int exact_floats(int n_exact) { return kChunkFloats * count_chunks(n_exact); }

void take_exact(const Matrix& w, const float* x, float* to) {
  for (int from = 0; from < w.n_exact; from += kInputs, to += kChunkFloats) {
    float inputs[kInputs] = {};
    for (int i = 0; i < kInputs && from + i < w.n_exact; ++i) inputs[i] = x[w.exact[from + i]];
    static_assert(kInputs == kLanes);
    Vec rest = load(inputs);
#pragma GCC unroll 3
    for (int part = 0; part < kParts; ++part) {
      const UIntVec upper = upper_half(rest);
      store(to + part * kInputs, (Vec)(upper | upper >> 16));
      rest -= (Vec)upper;
    }
  }
}

void multiply_exact(const Matrix& w, int panel, const Operand& x, int row, int n_rows, float* out) {
  alignas(64) uint32_t pairs[kInputs * kPanel];
  const Runs runs(n_rows);
  const int floats = exact_floats(w.n_exact);
  const int64_t stride = floats * int64_t{sizeof(float)};
  const float* rows = x.exact + int64_t{row} * floats;
  configure_tiles(runs.height);
  zero_sums(runs.two);
  for (int from = 0; from < w.n_exact; from += kInputs, rows += kChunkFloats) {
    const int n = w.n_exact - from < kInputs ? w.n_exact - from : kInputs;
    settle(pairs);
    cut_weights(w.exact_weights + (int64_t{panel} * w.n_exact + from) * kPanel, n, pairs);
    settle(pairs);
    const auto* weights = reinterpret_cast<const uint8_t*>(pairs);
    constexpr int64_t kPart = kInputs * sizeof(float);
    runs.two ? add_parts<true>(weights, rows, rows + int64_t{runs.second} * floats, kPart, stride)
             : add_parts<false>(weights, rows, nullptr, kPart, stride);
  }
  store_sums(runs, out);
  settle(out);
}

}  // namespace orcaserve::ORCASERVE_ISA

#endif
