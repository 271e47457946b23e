// Comparisons of vectors as bits, one per lane.
#pragma once

#include <cstdint>

#include "simd.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace orcaserve::ORCASERVE_ISA {
namespace {

// Of the result of a comparison: all bits of a lane are set, or none.
inline uint32_t true_lanes(IntVec compared) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)compared);
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps((Vec)compared));
#elif defined(__SSE2__)
  return static_cast<uint32_t>(_mm_movemask_ps((Vec)compared));
#else
  uint32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= uint32_t{compared[i] != 0} << i;
  return bits;
#endif
}

// x >= y
inline uint32_t at_least(Vec x, Vec y) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(x, y, _CMP_GE_OQ);
#else
  return true_lanes(x >= y);
#endif
}

}  // namespace
}  // namespace orcaserve::ORCASERVE_ISA
