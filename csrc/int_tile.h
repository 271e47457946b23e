// What the integer Linears share: vectors of small integers and their exact dot products on every instruction set, the
// cut of a call's rows into tiles, and the prefetch of the weights that are needed next.
#pragma once

#include "kernels.h"
#include "simd.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace orcaserve::ORCASERVE_ISA {
namespace {


// x, in a register, as it is here: the compiler may not move its making elsewhere, or merge it with what follows.
inline IntVec keep(IntVec x) {
#if defined(__AVX512F__)
  __asm__("" : "+v"(x));
#elif defined(__x86_64__)
  __asm__("" : "+x"(x));
#endif
  return x;
}

// Loads *p into all lanes. The compiler would rather load a scalar, do the arithmetic that follows there, and move it
// to a vector register: on the way it waits behind the products that are queued for the same ports.
inline IntVec broadcast(const int32_t* p) { return keep(*p - IntVec{}); }

inline Vec to_floats(IntVec x) { return __builtin_convertvector(x, Vec); }

// Rows of quantised activations of a tile, at the same four inputs. Addresses are made of three pointers and the
// stride, so that eight rows leave general registers free: spilled ones would go to vector registers, and wait there
// as above.
struct Rows {
  const int8_t* p0;
  const int8_t* p3;
  const int8_t* p6;
  int64_t stride;
};

inline Rows make_rows(const int8_t* q, int64_t stride) {
#if defined(__AVX512VNNI__)
  // What was written before is in memory: load_quad does not say that it reads.
  __asm__ volatile("" : "+r"(q) : : "memory");
#endif
  return {q, q + 3 * stride, q + 6 * stride, stride};
}

inline void advance(Rows& rows, int n) {
  rows.p0 += n;
  rows.p3 += n;
  rows.p6 += n;
}

// The four bytes at OFFSET of row ROW, in every lane.
template <int ROW, int OFFSET>
inline __attribute__((always_inline)) IntVec load_quad(const Rows& rows) {
  static_assert(ROW < 9 && OFFSET % 4 == 0);
  const int8_t* p = ROW < 3 ? rows.p0 : ROW < 6 ? rows.p3 : rows.p6;
#if defined(__AVX512VNNI__)
  // Said in assembly lest the compiler keep a pointer per row.
  IntVec x;
  if constexpr (ROW % 3 == 0)
    __asm__("vpbroadcastd %c2(%1), %0" : "=v"(x) : "r"(p), "i"(OFFSET));
  else
    __asm__("vpbroadcastd %c3(%1,%2,%c4), %0" : "=v"(x) : "r"(p), "r"(rows.stride), "i"(OFFSET), "i"(ROW % 3));
  return x;
#else
  int32_t x;
  __builtin_memcpy(&x, p + (ROW % 3) * rows.stride + OFFSET, sizeof x);
  return x - IntVec{};
#endif
}

// `dot`: every lane of acc grows by the products of its four unsigned bytes of w and four signed bytes of q, exactly.
// prepare_weights and prepare_quad make its operands, once for several uses.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define ORCASERVE_VNNI

using Weights = IntVec;

inline Weights prepare_weights(IntVec w) { return w; }
inline IntVec prepare_quad(IntVec q) { return q; }

inline IntVec dot(IntVec acc, Weights w, IntVec q) {
#if defined(__AVX512VNNI__)
  return (IntVec)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, (__m512i)q);
#else
  return (IntVec)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)w, (__m256i)q);
#endif
}

#else

// The instruction that multiplies bytes saturates the sum of two products. So bytes 0 and 2 of a lane are widened into
// one vector of 16-bit numbers and bytes 1 and 3 into another; pairs of those are multiplied and summed in 32 bits.
using ShortVec = int16_t __attribute__((vector_size(ORCASERVE_VECTOR_BYTES)));
using UShortVec = uint16_t __attribute__((vector_size(ORCASERVE_VECTOR_BYTES)));

struct Pairs {
  ShortVec even;
  ShortVec odd;
};
using Weights = Pairs;

inline Pairs prepare_weights(IntVec w) {
  return {(ShortVec)((UShortVec)w & 0xff), (ShortVec)((UShortVec)w >> 8)};
}
inline Pairs prepare_quad(IntVec q) { return {(ShortVec)((ShortVec)q << 8) >> 8, (ShortVec)q >> 8}; }

// Sums of the products of neighbouring 16-bit numbers.
inline IntVec multiply_pairs(ShortVec a, ShortVec b) {
#if defined(__AVX512BW__)
  return (IntVec)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (IntVec)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (IntVec)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  const IntVec x = (IntVec)a, y = (IntVec)b;
  return ((x << 16) >> 16) * ((y << 16) >> 16) + (x >> 16) * (y >> 16);
#endif
}

inline IntVec dot(IntVec acc, const Pairs& w, const Pairs& q) {
  return acc + (multiply_pairs(w.even, q.even) + multiply_pairs(w.odd, q.odd));
}

#endif

// Prefetch of the weights that are needed next, spread over the work on a panel: into the second level of the cache, since
// the first has no room for them.
struct Stream {
  const uint8_t* next;
  int lines;  // per call of `fetch`
};

constexpr int kCacheLine = 64;

// `ahead`: as many bytes as the panel has, or null: nothing. `n_fetches`: calls of `fetch` over which they are spread.
inline Stream make_stream(const uint8_t* ahead, int64_t bytes, int n_fetches) {
  const int64_t per_fetch = int64_t{n_fetches} * kCacheLine;
  return {ahead, ahead ? static_cast<int>((bytes + per_fetch - 1) / per_fetch) : 0};
}

inline void fetch(Stream& s) {
  for (int i = 0; i < s.lines; ++i) __builtin_prefetch(s.next + i * kCacheLine, 0, 2);
  s.next += s.lines * kCacheLine;
}

// Rows of the next tile, of `left` ones: tiles of nearly equal height, as few as tiles of at most `most` rows can be.
inline int tile_rows(int left, int most) {
  const int n_tiles = (left + most - 1) / most;
  return (left + n_tiles - 1) / n_tiles;
}

}  // namespace
}  // namespace orcaserve::ORCASERVE_ISA
