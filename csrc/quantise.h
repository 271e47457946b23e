// Rows of floats to small integers with a scale per group, the operands of int8 and int4 matrices.
//
// A group's largest magnitude is found by comparing bits: as integers, the bits of magnitudes order as the numbers do,
// with infinity and what is no number on top. So a bad input is never lost, and costs one test per group.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

constexpr int kTurnVecs = kHadamard / kLanes;
constexpr int kChunk = 2048;  // inputs that are turned at a time: they stay in the first cache until they are rounded

inline IntVec magnitude(Vec x) { return (IntVec)((UIntVec)x & 0x7fffffffu); }

// Each lane and the one DISTANCE away become their sum, in the lower one, and their difference. The products are exact,
// so fused or not this is a plain addition.
template <int DISTANCE>
inline Vec turn_lanes(Vec x) {
  Vec sign;
  for (int i = 0; i < kLanes; ++i) sign[i] = i & DISTANCE ? -1.0f : 1.0f;
  return multiply_add(x, sign, swap_lanes<DISTANCE>(x));
}

// v = H v of kHadamard numbers, without the factor: log2(kHadamard) rounds of sums and differences, neighbours first.
// All instruction sets take the rounds in the same order, so their results have the same bits.
inline void turn(Vec (&v)[kTurnVecs]) {
#pragma GCC unroll 16
  for (int i = 0; i < kTurnVecs; ++i) {
    v[i] = turn_lanes<1>(v[i]);
    v[i] = turn_lanes<2>(v[i]);
#if ORCASERVE_VECTOR_BYTES >= 32
    v[i] = turn_lanes<4>(v[i]);
#endif
#if ORCASERVE_VECTOR_BYTES >= 64
    v[i] = turn_lanes<8>(v[i]);
#endif
  }
#pragma GCC unroll 4
  for (int distance = 1; distance < kTurnVecs; distance *= 2)
#pragma GCC unroll 16
    for (int i = 0; i < kTurnVecs; ++i)
      if (!(i & distance)) {
        const Vec a = v[i], b = v[i + distance];
        v[i] = a + b;
        v[i + distance] = a - b;
      }
}

// out[n] = x[n] turned, kHadamard at a time; x has n_in numbers (perhaps none) and is 0 beyond. kept: if MASKED, what they
// are multiplied by before. Returns the bits of the greatest magnitude of each lane.
template <bool MASKED>
inline IntVec turn_chunk(const float* x, const float* kept, int n_in, int n, float* out) {
  IntVec top{};
  for (int i = 0; i < n; i += kHadamard) {
    Vec v[kTurnVecs] = {};
    if (i + kHadamard <= n_in) {
#pragma GCC unroll 16
      for (int j = 0; j < kTurnVecs; ++j) v[j] = load(x + i + j * kLanes);
    } else if (i < n_in) {
      __builtin_memcpy(v, x + i, sizeof(float) * static_cast<unsigned>(n_in - i));
    }
    if constexpr (MASKED)
#pragma GCC unroll 16
      for (int j = 0; j < kTurnVecs; ++j) v[j] *= load(kept + i + j * kLanes);
    turn(v);
#pragma GCC unroll 16
    for (int j = 0; j < kTurnVecs; ++j) {
      top = maximum(top, magnitude(v[j]));
      store(out + i + j * kLanes, v[j]);
    }
  }
  return top;
}

// q[i] = x[i] * inverse, to the nearest, for kInt4Block numbers; the integers are added to `sum` as well.
inline void round_block(const float* x, Vec inverse, int8_t* q, IntVec& sum) {
  constexpr int kVecs = kInt4Block / kLanes;
  IntVec v[kVecs];
#pragma GCC unroll 8
  for (int i = 0; i < kVecs; ++i) {
    v[i] = nearest(load(x + i * kLanes) * inverse);
    sum += v[i];
  }
#if defined(__AVX512F__)
  for (int i = 0; i < kVecs; ++i)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + i * kLanes), _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)v[i]));
#elif defined(__AVX2__)
  // Packing works on halves of vectors: the fours come out as 0 2 4 6 1 3 5 7.
  const __m256i low = _mm256_packs_epi32((__m256i)v[0], (__m256i)v[1]);
  const __m256i high = _mm256_packs_epi32((__m256i)v[2], (__m256i)v[3]);
  const __m256i bytes = _mm256_packs_epi16(low, high);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q),
                      _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
#elif defined(__SSE2__)
  for (int i = 0; i < kVecs; i += 4) {
    const __m128i low = _mm_packs_epi32((__m128i)v[i], (__m128i)v[i + 1]);
    const __m128i high = _mm_packs_epi32((__m128i)v[i + 2], (__m128i)v[i + 3]);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + i * kLanes), _mm_packs_epi16(low, high));
  }
#else
  for (int i = 0; i < kVecs; ++i)
    for (int j = 0; j < kLanes; ++j) q[i * kLanes + j] = static_cast<int8_t>(v[i][j]);
#endif
}

// The scale of a group, and what its numbers are multiplied by to become integers.
struct Scale {
  float scale;
  float inverse;  // 0: all integers are 0
};

// top: bits of the greatest magnitudes, which are still to be multiplied by `factor`, a power of two.
inline Scale scale_of(IntVec top, float factor) {
  const int32_t bits = horizontal_max(top);
  float most;
  __builtin_memcpy(&most, &bits, sizeof most);
  // Too small to be divided by, hence as good as 0; and infinities and worse, which the scale passes on to the results.
  if (most < 0x1p-100f) return {0.0f, 0.0f};
  if (bits >= 0x7f800000) return {most, 0.0f};
  return {most * factor / 127.0f, 127.0f / most};
}

}  // namespace
}  // namespace orcaserve::ORCASERVE_ISA
