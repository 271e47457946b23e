// Vectors for attention over int8 K/V: exact dot products of bytes on every instruction set, weights in two digits,
// powers of two, maxima of rows, and the turning of heads.
#pragma once

#include "attention_units.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

// The same four bytes in every lane.
inline IntVec broadcast_quad(const void* p) {
  int32_t x;
  __builtin_memcpy(&x, p, sizeof x);
  return x - IntVec{};
}

// The low byte of every lane, and bytes as lanes. (Of the compiler's own conversions g++ 12 makes single moves.)
inline void store_low_bytes(void* p, IntVec x) {
#if defined(__AVX512F__)
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)x));
#elif defined(__AVX2__)
  const __m256i pairs = _mm256_packus_epi32((__m256i)(x & 255), (__m256i)IntVec{});
  const __m256i bytes = _mm256_packus_epi16(pairs, pairs);
  const int32_t low = _mm256_extract_epi32(bytes, 0), high = _mm256_extract_epi32(bytes, 4);
  __builtin_memcpy(p, &low, sizeof low);
  __builtin_memcpy(static_cast<uint8_t*>(p) + 4, &high, sizeof high);
#else
  for (int i = 0; i < kLanes; ++i) static_cast<uint8_t*>(p)[i] = static_cast<uint8_t>(x[i]);
#endif
}

inline UIntVec widen_bytes(const void* p) {
#if defined(__AVX512F__)
  return (UIntVec)_mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128(static_cast<const __m128i*>(p)));
#elif defined(__AVX2__)
  return (UIntVec)_mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
#else
  UIntVec x;
  for (int i = 0; i < kLanes; ++i) x[i] = static_cast<const uint8_t*>(p)[i];
  return x;
#endif
}

// Four vectors of numbers in 0..65535 come apart into high and low bytes. The quads of bytes (4 keys, neighbours before
// and after) change places on the way: quad_place(j) is where quad j of a step is then.
#if defined(__AVX512BW__) && ORCASERVE_VECTOR_BYTES == 64
inline void store_digits(const IntVec* x, void* high, void* low) {
  const __m512i a = _mm512_packus_epi32((__m512i)x[0], (__m512i)x[1]);
  const __m512i b = _mm512_packus_epi32((__m512i)x[2], (__m512i)x[3]);
  const __m512i ones = _mm512_set1_epi16(255);
  _mm512_storeu_si512(high, _mm512_packus_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8)));
  _mm512_storeu_si512(low, _mm512_packus_epi16(_mm512_and_si512(a, ones), _mm512_and_si512(b, ones)));
}
inline int quad_place(int j) { return j % 4 * 4 + j / 4; }
#elif defined(__AVX2__)
inline void store_digits(const IntVec* x, void* high, void* low) {
  const __m256i a = _mm256_packus_epi32((__m256i)x[0], (__m256i)x[1]);
  const __m256i b = _mm256_packus_epi32((__m256i)x[2], (__m256i)x[3]);
  const __m256i ones = _mm256_set1_epi16(255);
  const __m256i upper = _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
  const __m256i lower = _mm256_packus_epi16(_mm256_and_si256(a, ones), _mm256_and_si256(b, ones));
  _mm256_storeu_si256(static_cast<__m256i*>(high), upper);
  _mm256_storeu_si256(static_cast<__m256i*>(low), lower);
}
inline int quad_place(int j) { return j / 8 * 8 + j % 2 * 4 + j % 8 / 2; }
#else
inline void store_digits(const IntVec* x, void* high, void* low) {
  for (int v = 0; v < 4; ++v) {
    store_low_bytes(static_cast<uint8_t*>(high) + v * kLanes, x[v] >> 8);
    store_low_bytes(static_cast<uint8_t*>(low) + v * kLanes, x[v]);
  }
}
inline int quad_place(int j) { return j; }
#endif

inline Vec to_floats(IntVec x) { return __builtin_convertvector(x, Vec); }

// `dot`: every lane of acc grows by the products of its four unsigned bytes of u and four signed bytes of s.
// Unsigned and Signed are what u and s are made into beforehand, once for several uses.
#if (defined(__AVX512VNNI__) && ORCASERVE_VECTOR_BYTES == 64) || (defined(__AVXVNNI__) && ORCASERVE_VECTOR_BYTES == 32)

constexpr int kDotTile = kQueryTile;
using Unsigned = IntVec;
using Signed = IntVec;

inline Unsigned as_unsigned(IntVec x) { return x; }
inline Signed as_signed(IntVec x) { return x; }

inline IntVec dot(IntVec acc, Unsigned u, Signed s) {
#if ORCASERVE_VECTOR_BYTES == 64
  return (IntVec)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)u, (__m512i)s);
#else
  return (IntVec)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)u, (__m256i)s);
#endif
}

#else

// The instruction that multiplies bytes saturates the sum of two products. So bytes 0 and 2 of a lane become one vector
// of 16-bit numbers, bytes 1 and 3 another, and pairs of those are multiplied and summed in 32 bits.
constexpr int kDotTile = 4;
using ShortVec = int16_t __attribute__((vector_size(ORCASERVE_VECTOR_BYTES)));
using UShortVec = uint16_t __attribute__((vector_size(ORCASERVE_VECTOR_BYTES)));

struct Pairs {
  ShortVec even, odd;
};
using Unsigned = Pairs;
using Signed = Pairs;

inline Unsigned as_unsigned(IntVec x) { return {(ShortVec)((UShortVec)x & 255), (ShortVec)((UShortVec)x >> 8)}; }
inline Signed as_signed(IntVec x) { return {(ShortVec)((UShortVec)x << 8) >> 8, (ShortVec)x >> 8}; }

inline IntVec multiply_pairs(ShortVec a, ShortVec b) {
#if defined(__AVX512BW__) && ORCASERVE_VECTOR_BYTES == 64
  return (IntVec)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__) && ORCASERVE_VECTOR_BYTES == 32
  return (IntVec)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (IntVec)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  const IntVec x = (IntVec)a, y = (IntVec)b;
  return (IntVec)((UIntVec)x << 16) / 65536 * ((IntVec)((UIntVec)y << 16) / 65536) + (x >> 16) * (y >> 16);
#endif
}

inline IntVec dot(IntVec acc, Unsigned u, Signed s) {
  return acc + (multiply_pairs(u.even, s.even) + multiply_pairs(u.odd, s.odd));
}

#endif

// 2^x for x < 100, within 3e-6 of itself, and nearly or exactly 0 below -126; NaN for NaN.
#if defined(__AVX512DQ__) && ORCASERVE_VECTOR_BYTES == 64

inline Vec power_of_2(Vec x) {
  const Vec r = _mm512_maskz_reduce_ps(0xffff, x, 0x09);  // x - floor(x)
  Vec p = splat(0.013534167781472206f);
  p = multiply_add(p, r, splat(0.052011460065841675f));
  p = multiply_add(p, r, splat(0.2414427548646927f));
  p = multiply_add(p, r, splat(0.6930038332939148f));
  p = multiply_add(p, r, splat(1.0000026226043701f));
  return _mm512_maskz_scalef_ps(0xffff, p, x);  // p 2^floor(x)
}

#else

inline Vec power_of_2(Vec x) {
  const Vec lowest = splat(-126.0f);
  const Vec clamped = x < lowest ? lowest : x;
  const IntVec n = nearest(clamped);
  const Vec r = clamped - to_floats(n);
  Vec p = splat(0.009570102207362652f);
  p = multiply_add(p, r, splat(0.05591785907745361f));
  p = multiply_add(p, r, splat(0.240247443318367f));
  p = multiply_add(p, r, splat(0.6931217908859253f));
  p = multiply_add(p, r, splat(0.9999992847442627f));
  return (Vec)((UIntVec)p + ((UIntVec)n << 23));
}

#endif

// Lane i of the result is the greatest lane of row i. From round to round, two vectors become one whose lanes come from
// both.
template <int DISTANCE, int ROWS>
inline Vec row_maxima(const Vec (&rows)[ROWS]) {
  if constexpr (DISTANCE == kLanes) {
    return rows[0];
  } else {
    IntVec index;
    for (int i = 0; i < kLanes; ++i) index[i] = i & DISTANCE;
    Vec merged[(ROWS + 1) / 2];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r += 2) {
      const Vec a = rows[r], b = rows[r + 1 < ROWS ? r + 1 : r];
      merged[r / 2] = maximum(index == 0 ? a : b, swap_lanes<DISTANCE>(index == 0 ? b : a));
    }
    return row_maxima<2 * DISTANCE>(merged);
  }
}

// The least integer e with |x| < 2^e for a finite x; at least -60.
inline float exponent_above(float x) {
  int32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  const int exponent = (bits >> 23 & 255) - 126;
  return static_cast<float>(most(exponent, -60));
}

// Lanes from n on become `other`.
inline Vec keep_first(Vec x, int n, Vec other) {
  IntVec index;
  for (int i = 0; i < kLanes; ++i) index[i] = i;
  return index < n - IntVec{} ? x : other;
}

// Lanes before n become `other`.
inline Vec keep_from(Vec x, int n, Vec other) {
  IntVec index;
  for (int i = 0; i < kLanes; ++i) index[i] = i;
  return index < n - IntVec{} ? other : x;
}

// Numbers of a head that one Hadamard matrix turns: the largest power of two that divides them, at most kHadamard.
inline int turned_at_once(int head_dim) {
  int n = 1;
  while (n < kHadamard && head_dim % (2 * n) == 0) n *= 2;
  return n;
}

// x = H x of each `at_once` of n numbers, without the factor. A product of two heads that were both turned is that of
// the heads, times at_once; and what is large in few dimensions, as keys are, becomes middling in many, which bytes
// hold well.
inline void turn_head(float* x, int n, int at_once) {
  for (int distance = 1; distance < at_once; distance *= 2)
    for (int i = 0; i < n; ++i)
      if (!(i & distance)) {
        const float a = x[i], b = x[i + distance];
        x[i] = a + b;
        x[i + distance] = a - b;
      }
}

// Dimensions of a head in whole blocks of round_block.
inline int whole_blocks(int head_dim) { return (head_dim + kInt4Block - 1) / kInt4Block * kInt4Block; }

}  // namespace
}  // namespace orcaserve::ORCASERVE_ISA
