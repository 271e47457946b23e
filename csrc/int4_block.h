// Quantisation of a block of 32 floats to nibbles with a float16 scale and minimum. Included by pack.cpp.
#pragma once

#include <cstdint>
#include <cstring>

#include "model.h"

namespace orcaserve {
namespace {

using Floats = float __attribute__((vector_size(16)));
using Words = uint32_t __attribute__((vector_size(16)));
constexpr int kFloats = 4;

inline Floats splat(float x) { return x - Floats{}; }
inline Floats smaller(Floats a, Floats b) { return a < b ? a : b; }
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }
inline float sum_of(Floats x) { return (x[0] + x[1]) + (x[2] + x[3]); }

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// To the nearest float16, ties to even; beyond the largest one, that one. For numbers only.
inline uint16_t to_half(float x) {
  constexpr float kLargest = 65504;
  const uint32_t sign = bits_of(x) >> 31 << 15;
  float magnitude = float_of(bits_of(x) & 0x7fffffff);
  if (magnitude > kLargest) magnitude = kLargest;
  if (magnitude < 0x1p-14f) {
    // Subnormal: added to 0.5, whose last bit is worth the 2^-24 that theirs is worth, it is rounded to that bit.
    return static_cast<uint16_t>(sign | (bits_of(magnitude + 0.5f) - bits_of(0.5f)));
  }
  const uint32_t bits = bits_of(magnitude);
  return static_cast<uint16_t>(sign | ((bits + 0xfff + (bits >> 13 & 1) - (112u << 23)) >> 13));
}

// For numbers only.
inline float half_to_float(uint16_t half) {
  const float magnitude = float_of((half & 0x7fffu) << 13) * 0x1p112f;
  return float_of(bits_of(magnitude) | (half & 0x8000u) << 16);
}

struct Int4Block {
  uint8_t nibbles[kInt4Block / 2];  // input j in the low half of byte j, input 16 + j in the high half
  uint16_t scale;
  uint16_t minimum;
};

constexpr int kBlockVectors = kInt4Block / kFloats;

// The nearest nibbles for a scale and a minimum, as floats. Added to 2^23, a number is rounded to an integer.
inline void nearest_nibbles(const Floats* w, float scale, float minimum, Floats* nibbles) {
  const Floats inverse = splat(scale > 0 ? 1 / scale : 0), low = splat(minimum), shift = splat(0x1p23f);
  for (int i = 0; i < kBlockVectors; ++i) {
    const Floats x = (w[i] - low) * inverse;
    nibbles[i] = (smaller(larger(x, splat(0)), splat(15)) + shift) - shift;
  }
}

// The scale and the minimum with the least squared error for these nibbles.
inline void fit(const Floats* w, const Floats* nibbles, float* scale, float* minimum) {
  Floats n{}, nn{}, nw{}, total{};
  for (int i = 0; i < kBlockVectors; ++i) {
    n += nibbles[i];
    nn += nibbles[i] * nibbles[i];
    nw += nibbles[i] * w[i];
    total += w[i];
  }
  const float sum_n = sum_of(n), sum_w = sum_of(total);
  const float variance = kInt4Block * sum_of(nn) - sum_n * sum_n;
  if (variance <= 0) return;
  *scale = (kInt4Block * sum_of(nw) - sum_n * sum_w) / variance;
  *minimum = (sum_w - *scale * sum_n) / kInt4Block;
}

inline float squared_error(const Floats* w, const Floats* nibbles, float scale, float minimum) {
  Floats sum{};
  for (int i = 0; i < kBlockVectors; ++i) {
    const Floats difference = nibbles[i] * splat(scale) + splat(minimum) - w[i];
    sum += difference * difference;
  }
  return sum_of(sum);
}

// Tries ranges from the whole of the block's inwards, each with the scale and minimum fitted to the nibbles it gives:
// the ends of the range are rarely worth the precision that they cost all others.
inline Int4Block quantise_block(const Floats* w) {
  constexpr int kTries = 3;
  constexpr float kInwards = 1.0f / 64;  // of the range, on each side
  Floats low = w[0], high = w[0];
  for (int i = 1; i < kBlockVectors; ++i) {
    low = smaller(low, w[i]);
    high = larger(high, w[i]);
  }
  const Floats low2 = smaller(low, __builtin_shuffle(low, Words{2, 3, 0, 1}));
  const Floats high2 = larger(high, __builtin_shuffle(high, Words{2, 3, 0, 1}));
  const float lowest = low2[0] < low2[1] ? low2[0] : low2[1], highest = high2[0] > high2[1] ? high2[0] : high2[1];
  const float range = highest - lowest;

  Int4Block block{};
  Floats nibbles[kBlockVectors], best[kBlockVectors] = {};
  float least = 0;
  for (int t = 0; t < kTries; ++t) {
    const float cut = static_cast<float>(t) * kInwards * range;
    float scale = (range - 2 * cut) / 15, minimum = lowest + cut;
    nearest_nibbles(w, scale, minimum, nibbles);
    fit(w, nibbles, &scale, &minimum);
    uint16_t half_scale = to_half(scale);
    if (half_scale == 0 && range > 0) half_scale = 1;  // the smallest there is
    const uint16_t half_minimum = to_half(minimum);
    scale = half_to_float(half_scale);
    minimum = half_to_float(half_minimum);
    nearest_nibbles(w, scale, minimum, nibbles);
    const float error = squared_error(w, nibbles, scale, minimum);
    if (t == 0 || error < least) {
      least = error;
      block.scale = half_scale;
      block.minimum = half_minimum;
      std::memcpy(best, nibbles, sizeof best);
    }
  }
  for (int i = 0; i < kBlockVectors / 2; ++i)
    for (int j = 0; j < kFloats; ++j)
      block.nibbles[i * kFloats + j] = static_cast<uint8_t>(best[i][j] + 16 * best[i + kBlockVectors / 2][j]);
  return block;
}

}  // namespace
}  // namespace orcaserve
