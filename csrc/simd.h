// Vectors of the instruction set this file is compiled for, by the compiler's vector extensions.
//
// Everything sits in an unnamed namespace and calls no library function: the linker may merge functions of the same name
// from different files, and a merged one might use instructions that the machine lacks.
#pragma once

#include <cstdint>

#if defined(__FMA__)
#include <immintrin.h>
#endif

namespace orcaserve::ORCASERVE_ISA {
namespace {

constexpr int kLanes = ORCASERVE_VECTOR_BYTES / 4;

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

// a * b + c. Said in so many words, and the compiler may fuse nothing on its own (-ffp-contract=off): what it chose to fuse
// would differ from one copy of an unrolled loop to the next, and with it the last bit.
#if defined(__AVX512F__)
inline Vec multiply_add(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
#elif defined(__FMA__)
inline Vec multiply_add(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
#else
inline Vec multiply_add(Vec a, Vec b, Vec c) { return a * b + c; }
#endif

#if defined(__FMA__)
inline float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
inline float multiply_add(float a, float b, float c) { return a * b + c; }
#endif

inline Vec maximum(Vec a, Vec b) { return a > b ? a : b; }

inline float horizontal_max(Vec x) {
  float lanes[kLanes];
  __builtin_memcpy(lanes, &x, sizeof lanes);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
  return lanes[0];
}

inline float horizontal_sum(Vec x) {
  float lanes[kLanes];
  __builtin_memcpy(lanes, &x, sizeof lanes);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
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

}  // namespace
}  // namespace orcaserve::ORCASERVE_ISA
