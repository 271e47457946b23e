// Vectors of the instruction set this file is compiled for, by the compiler's vector extensions.
//
// Everything sits in an unnamed namespace and calls no library function: the linker may merge functions of the same name
// from different files, and a merged one might use instructions that the machine lacks.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace orcaserve::ORCASERVE_ISA {
namespace {

constexpr int kLanes = ORCASERVE_VECTOR_BYTES / 4;
constexpr int kLine = 64;  // bytes of a cache line

using Vec = float __attribute__((vector_size(ORCASERVE_VECTOR_BYTES)));
using IntVec = int32_t __attribute__((vector_size(ORCASERVE_VECTOR_BYTES)));
using HalfVec = uint16_t __attribute__((vector_size(ORCASERVE_VECTOR_BYTES / 2)));
using UIntVec = uint32_t __attribute__((vector_size(ORCASERVE_VECTOR_BYTES)));

using BFloat16 = uint16_t;  // its bits: the upper half of a float

inline Vec load(const float* p) {
  Vec x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}

inline Vec load(const BFloat16* p) {
  HalfVec bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return (Vec)(__builtin_convertvector(bits, UIntVec) << 16);
}

inline IntVec load_bytes(const void* p) {
  IntVec x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}

inline void store(float* p, Vec x) { __builtin_memcpy(p, &x, sizeof x); }

inline float to_float(float x) { return x; }

inline float to_float(BFloat16 x) {
  const uint32_t bits = uint32_t{x} << 16;
  float f;
  __builtin_memcpy(&f, &bits, sizeof f);
  return f;
}

inline void from_float(float x, float* out) { *out = x; }

// Rounds to nearest, ties to even; a NaN stays one.
inline void from_float(float x, BFloat16* out) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  if (x != x) {
    *out = static_cast<BFloat16>((bits >> 16) | 0x40);
  } else {
    *out = static_cast<BFloat16>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
}

inline Vec splat(float x) { return x - Vec{}; }

// The first n < kLanes floats at p and zeros behind them; nothing beyond them is read.
inline Vec load_first(const float* p, int n) {
#if defined(__AVX512F__)
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
#else
  Vec x{};
  __builtin_memcpy(&x, p, sizeof(float) * static_cast<unsigned>(n));
  return x;
#endif
}

// Stores the first n < kLanes lanes alone.
inline void store_first(float* p, Vec x, int n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), x);
#else
  __builtin_memcpy(p, &x, sizeof(float) * static_cast<unsigned>(n));
#endif
}

// a * b + c. Said in so many words, and the compiler may fuse nothing on its own (-ffp-contract=off): what it chose to fuse
// would differ from one copy of an unrolled loop to the next, and with it the last bit.
#if defined(__AVX512F__)
inline Vec multiply_add(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
#elif defined(__FMA__)
inline Vec multiply_add(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
#elif defined(__ARM_FEATURE_FMA)
inline Vec multiply_add(Vec a, Vec b, Vec c) { return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
#else
inline Vec multiply_add(Vec a, Vec b, Vec c) { return a * b + c; }
#endif

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
constexpr bool kFused = true;
inline float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
constexpr bool kFused = false;
inline float multiply_add(float a, float b, float c) { return a * b + c; }
#endif

// a where it is greater, else b: b also where one of them is no number.
#if defined(__AVX512F__)
inline Vec maximum(Vec a, Vec b) { return _mm512_max_ps(a, b); }
#elif defined(__AVX2__)
inline Vec maximum(Vec a, Vec b) { return _mm256_max_ps(a, b); }
#else
inline Vec maximum(Vec a, Vec b) { return a > b ? a : b; }
#endif

inline IntVec maximum(IntVec a, IntVec b) { return a > b ? a : b; }

// Lane i of the result is lane i ^ DISTANCE of x.
template <int DISTANCE, typename V>
inline V swap_lanes(V x) {
  IntVec from;
  for (int i = 0; i < kLanes; ++i) from[i] = i ^ DISTANCE;
  return __builtin_shuffle(x, from);
}

// The sum and the maximum over the lanes, by halves: lanes i and i + kLanes / 2 first.
template <typename V>
inline auto horizontal_sum(V x) {
#if ORCASERVE_VECTOR_BYTES >= 64
  x += swap_lanes<8>(x);
#endif
#if ORCASERVE_VECTOR_BYTES >= 32
  x += swap_lanes<4>(x);
#endif
  x += swap_lanes<2>(x);
  x += swap_lanes<1>(x);
  return x[0];
}

template <typename V>
inline auto horizontal_max(V x) {
#if ORCASERVE_VECTOR_BYTES >= 64
  x = maximum(x, swap_lanes<8>(x));
#endif
#if ORCASERVE_VECTOR_BYTES >= 32
  x = maximum(x, swap_lanes<4>(x));
#endif
  x = maximum(x, swap_lanes<2>(x));
  x = maximum(x, swap_lanes<1>(x));
  return x[0];
}

inline Vec absolute(Vec x) { return (Vec)((UIntVec)x & 0x7fffffffu); }

// The nearest integer, the even one of two, for |x| < 2^22.
inline IntVec nearest(Vec x) {
#if defined(__AVX512F__)
  // The form without a mask warns of an undefined register in g++ 12.
  return (IntVec)_mm512_maskz_cvtps_epi32(0xffff, x);
#elif defined(__AVX2__)
  return (IntVec)_mm256_cvtps_epi32(x);
#else
  // Added to 1.5 * 2^23, whose last bit is worth 1, x is rounded to that bit.
  constexpr float kShift = 12582912.0f;
  return (IntVec)((UIntVec)(x + splat(kShift)) - (UIntVec)splat(kShift));
#endif
}

// kLanes float16 as floats.
inline Vec load_half(const void* p) {
#if defined(__AVX512F__)
  __m256i bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return _mm512_maskz_cvtph_ps(0xffff, bits);  // the form without a mask trips a false warning of g++ 12
#elif defined(__F16C__)
  __m128i bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return _mm256_cvtph_ps(bits);
#else
  // Exponent and mantissa moved to their place in a float make a number 2^112 times too small, subnormals included; the
  // product is exact. Infinities and NaNs have an exponent of their own.
  HalfVec bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  const UIntVec wide = __builtin_convertvector(bits, UIntVec);
  const UIntVec magnitude = (wide & 0x7fff) << 13;
  const UIntVec special = (UIntVec)((wide & 0x7c00) == 0x7c00);
  const UIntVec scaled = (UIntVec)((Vec)magnitude * 0x1p112f);
  return (Vec)((special & (magnitude | 0x7f800000)) | (~special & scaled) | ((wide & 0x8000) << 16));
#endif
}

// A float16 as a float.
inline float half_to_float(uint16_t half) {
#if defined(__F16C__)
  return _cvtsh_ss(half);
#else
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  uint32_t bits = uint32_t{half & 0x7fffu} << 13;
  if (bits >= 0x0f800000u) {  // infinities, and what is no number
    bits |= 0x7f800000u;
    if (bits & 0x7fffffu) bits |= 0x400000u;
  } else {
    // The exponent counts from another start; the product brings small numbers to their first bit as well.
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    x *= 0x1p112f;
    __builtin_memcpy(&bits, &x, sizeof bits);
  }
  bits |= sign;
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
#endif
}

// e^x for x <= 0, within 2 units in the last place; exactly 1 at 0, exactly 0 below -87 (no denormals), NaN for NaN.
// e^x = 2^n e^r with n the integer nearest to x / ln 2; the remainder |r| <= ln(2)/2 goes through the Taylor polynomial.
inline Vec exp_nonpositive(Vec x) {
  const Vec lowest = splat(-87.0f);
  const Vec clamped = x < lowest ? lowest : x;
  const IntVec n = __builtin_convertvector(multiply_add(clamped, splat(1.44269504f), splat(-0.5f)), IntVec);
  const Vec nf = __builtin_convertvector(n, Vec);
  // ln 2 in two parts; products with the first are exact.
  const Vec r = multiply_add(nf, splat(2.12194440e-4f), clamped - nf * 0.693359375f);
  Vec p = splat(1.0f / 5040);
  p = multiply_add(p, r, splat(1.0f / 720));
  p = multiply_add(p, r, splat(1.0f / 120));
  p = multiply_add(p, r, splat(1.0f / 24));
  p = multiply_add(p, r, splat(1.0f / 6));
  p = multiply_add(p, r, splat(0.5f));
  p = multiply_add(p, r, splat(1.0f));
  p = multiply_add(p, r, splat(1.0f));
  const Vec power = (Vec)((n + 127) << 23);
  return x < lowest ? Vec{} : p * power;
}

// tanh x, within 3e-7 of itself; NaN for NaN. Near 0, where 1 - e^-2|x| would cancel, by its Taylor polynomial.
inline Vec hyperbolic_tangent(Vec x) {
  const Vec a = absolute(x), square = x * x;
  const Vec e = exp_nonpositive(a * -2.0f);
  const Vec far = (1.0f - e) / (1.0f + e);
  Vec p = splat(-17.0f / 315);
  p = multiply_add(p, square, splat(2.0f / 15));
  p = multiply_add(p, square, splat(-1.0f / 3));
  p = multiply_add(p, square, splat(1.0f));
  return a < splat(0.2f) ? x * p : x < Vec{} ? -far : far;
}

}  // namespace
}  // namespace orcaserve::ORCASERVE_ISA
