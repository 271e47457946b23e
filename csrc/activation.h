// Activation functions of vectors.
//
// With e = e^-|x|, which never overflows, the sigmoid is 1 / (1 + e) or, of negative x, e / (1 + e). All functions are
// x times such a factor in 0..1, so nothing cancels: far out at the negative end, too, results are accurate to a few
// units in the last place, and to 2^-24 of an exponent that had to be computed first.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

// 1 / x for x from 1 to 2. A division takes as long as all the rest of an activation; an approximation to 14 bits, made
// better once, is off by a unit or so in the last place.
inline Vec inverse(Vec x) {
#if defined(__AVX512F__)
  const Vec y = _mm512_rcp14_ps(x);
  return multiply_add(y, multiply_add(-x, y, splat(1.0f)), y);
#else
  return 1.0f / x;
#endif
}

inline Vec sigmoid(Vec x) {
  const Vec e = exp_nonpositive(-absolute(x));
  const Vec one = splat(1.0f);
  return (x < Vec{} ? e : one) * inverse(one + e);
}

template <Activation ACT>
inline Vec activate(Vec x) {
  if constexpr (ACT == Activation::kSilu) {
    return x * sigmoid(x);
  } else if constexpr (ACT == Activation::kGelu) {
    // The normal distribution function of -a, a = |x|, is e^(-a^2 / 2) t p(t) with t = 1 / (1 + 0.3 a). The coefficients of
    // p were fitted to the least relative error over 0 <= a <= 13.3, which is 1.2e-7; beyond, the exponential is zero.
    const Vec a = absolute(x);
    const Vec one = splat(1.0f);
    const Vec t = one / multiply_add(a, splat(0.3f), one);
    Vec p = splat(0.036036246f);
    p = multiply_add(p, t, splat(-0.15871339f));
    p = multiply_add(p, t, splat(0.20896423f));
    p = multiply_add(p, t, splat(-0.056095574f));
    p = multiply_add(p, t, splat(0.12984326f));
    p = multiply_add(p, t, splat(0.099523105f));
    p = multiply_add(p, t, splat(0.12081689f));
    p = multiply_add(p, t, splat(0.11962517f));
    const Vec below = exp_nonpositive(a * a * splat(-0.5f)) * (t * p);
    return x * (x < Vec{} ? below : one - below);
  } else if constexpr (ACT == Activation::kGeluTanh) {
    // (1 + tanh u) / 2 is the sigmoid of 2 u; u = sqrt(2 / pi) (x + 0.044715 x^3).
    const Vec twice_u = x * multiply_add(x * x, splat(1.5957691f * 0.044715f), splat(1.5957691f));
    return x * sigmoid(twice_u);
  } else {
    return x < Vec{} ? Vec{} : x;
  }
}

}  // namespace
}  // namespace orcaserve::ORCASERVE_ISA
