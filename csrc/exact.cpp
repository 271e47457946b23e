// The exact inputs of an int8 Linear (Matrix::exact): their products, in float32, are what a panel's sums begin with.
//
// Order of sums of an output: inputs upwards, from 0.
#include "linear_amx.h"
#include "simd.h"

#if !ORCASERVE_AMX  // there: exact_amx.cpp

namespace orcaserve::ORCASERVE_ISA {
namespace {

// Rows that share the loading of weights, and vectors of a panel at a time: their sums fit the registers.
constexpr int kRows = 4;
constexpr int kVecs = ORCASERVE_REGISTERS == 32 ? 3 : 2;
static_assert(kPanel % (kVecs * kLanes) == 0);

template <int ROWS>
void multiply_rows(const Float16* weights, const float* inputs, int n_exact, float* out) {
  for (int col = 0; col < kPanel; col += kVecs * kLanes) {
    Vec sum[ROWS][kVecs] = {};
    for (int e = 0; e < n_exact; ++e) {
      Vec weight[kVecs];
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) weight[v] = load_half(weights + e * kPanel + col + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; ++r) {
        const Vec input = splat(inputs[r * n_exact + e]);
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) sum[r][v] = multiply_add(input, weight[v], sum[r][v]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) store(out + r * kPanel + col + v * kLanes, sum[r][v]);
  }
}

}  // namespace

int exact_floats(int n_exact) { return n_exact; }

void take_exact(const Matrix& w, const float* x, float* to) {
  for (int e = 0; e < w.n_exact; ++e) to[e] = x[w.exact[e]];
}

void multiply_exact(const Matrix& w, int panel, const Operand& x, int row, int n_rows, float* out) {
  const Float16* weights = w.exact_weights + int64_t{panel} * w.n_exact * kPanel;
  const float* inputs = x.exact + int64_t{row} * w.n_exact;
  int r = 0;
  for (; r + kRows <= n_rows; r += kRows)
    multiply_rows<kRows>(weights, inputs + int64_t{r} * w.n_exact, w.n_exact, out + r * kPanel);
  for (; r < n_rows; ++r) multiply_rows<1>(weights, inputs + int64_t{r} * w.n_exact, w.n_exact, out + r * kPanel);
}

}  // namespace orcaserve::ORCASERVE_ISA

#endif
