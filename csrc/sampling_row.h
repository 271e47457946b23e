// One row of logits on its way to a token: everything that looks at the whole vocabulary.
//
// A row is read in blocks of eight vectors. The first pass leaves the largest logit of every lane of a block behind, an
// eighth of the row, from which a coarser level takes the largest of eight blocks. The k-th largest of these maxima is
// a lower bound of the k-th largest logit, and a tight one if k is small; so the best k are found among the few blocks
// that hold anything that large, and nothing is sorted.
#pragma once

#include <cstdint>

#include "sampling_lanes.h"
#include "simd.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

constexpr int kBlockVectors = 8;
constexpr int kBlock = kBlockVectors * kLanes;
constexpr int kGroup = 8;  // blocks of which a coarse maximum is taken
constexpr float kMinusInfinity = -__builtin_inff();
constexpr float kLargest = 3.402823466e38f;

struct Row {
  float* x;       // [n]
  int n;
  int n_whole;    // blocks that lie in x
  int n_blocks;   // n_whole, or one more: the rest of x, filled up with -infinity, in `tail`
  int n_groups;
  float* tail;    // [kBlock]
  float* maxima;  // [n_groups * kGroup][kLanes]
  float* coarse;  // [n_groups][kLanes]
  uint8_t* changed;  // [n_blocks]: the maxima of the block are to be taken anew
  float best;
};

inline float* block(const Row& r, int b) { return b < r.n_whole ? r.x + static_cast<int64_t>(b) * kBlock : r.tail; }

constexpr uint32_t kAllLanes = (1u << kLanes) - 1;

inline Vec largest_of_block(const float* p) {
  const Vec a = maximum(load(p), load(p + kLanes));
  const Vec b = maximum(load(p + 2 * kLanes), load(p + 3 * kLanes));
  const Vec c = maximum(load(p + 4 * kLanes), load(p + 5 * kLanes));
  const Vec d = maximum(load(p + 6 * kLanes), load(p + 7 * kLanes));
  return maximum(maximum(a, b), maximum(c, d));
}

// The first pass: fills in the tail and the maxima of blocks. False if the row holds anything but finite numbers: 0
// times such a thing is not 0.
bool scan(Row& r) {
  const Vec zero = splat(0.0f);
  Vec odd_a = zero, odd_b = zero, odd_c = zero, odd_d = zero;
  for (int b = 0; b < r.n_whole; ++b) {
    const float* p = r.x + static_cast<int64_t>(b) * kBlock;
    for (int i = 0; i < kBlockVectors; i += 4) {
      odd_a = multiply_add(load(p + i * kLanes), zero, odd_a);
      odd_b = multiply_add(load(p + (i + 1) * kLanes), zero, odd_b);
      odd_c = multiply_add(load(p + (i + 2) * kLanes), zero, odd_c);
      odd_d = multiply_add(load(p + (i + 3) * kLanes), zero, odd_d);
    }
    store(r.maxima + b * kLanes, largest_of_block(p));
  }
  float odd = horizontal_sum((odd_a + odd_b) + (odd_c + odd_d));
  if (r.n_blocks > r.n_whole) {
    const int first = r.n_whole * kBlock;
    for (int i = 0; i < kBlock; ++i) {
      r.tail[i] = first + i < r.n ? r.x[first + i] : kMinusInfinity;
      if (first + i < r.n) odd += r.tail[i] * 0.0f;
    }
    store(r.maxima + r.n_whole * kLanes, largest_of_block(r.tail));
  }
  for (int b = r.n_blocks; b < r.n_groups * kGroup; ++b) store(r.maxima + b * kLanes, splat(kMinusInfinity));
  return odd == 0.0f;
}

// The coarse maxima and the best logit, from the maxima of blocks.
void summarise(Row& r) {
  Vec best = splat(kMinusInfinity);
  for (int g = 0; g < r.n_groups; ++g) {
    const Vec top = largest_of_block(r.maxima + g * kGroup * kLanes);
    store(r.coarse + g * kLanes, top);
    best = maximum(top, best);
  }
  r.best = horizontal_max(best);
}

// Takes tokens out whose bit is not set.
void apply_mask(Row& r, const uint32_t* mask) {
  UIntVec lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = 1u << i;
  constexpr int kWords = kBlock / 32;
  const int n_words = (r.n + 31) / 32;
  for (int b = 0; b < r.n_blocks; ++b) {
    uint32_t words[kWords], all = ~0u;
    for (int i = 0; i < kWords; ++i) {
      words[i] = b * kWords + i < n_words ? mask[b * kWords + i] : 0;
      all &= words[i];
    }
    if (all == ~0u) continue;
    float* p = block(r, b);
    for (int i = 0; i < kBlockVectors; ++i) {
      const uint32_t bits = words[i * kLanes / 32] >> (i * kLanes % 32);
      store(p + i * kLanes, ((bits - UIntVec{}) & lane) != 0 ? load(p + i * kLanes) : splat(kMinusInfinity));
    }
    store(r.maxima + b * kLanes, largest_of_block(p));
  }
}

// Where token `id` is to be changed; null outside the vocabulary.
inline float* change(Row& r, int32_t id) {
  if (static_cast<uint32_t>(id) >= static_cast<uint32_t>(r.n)) return nullptr;
  const int b = id / kBlock;
  r.changed[b] = 1;
  return block(r, b) + id % kBlock;
}

void take_changed_maxima(Row& r) {
  for (int b = 0; b < r.n_blocks; ++b) {
    if (!r.changed[b]) continue;
    store(r.maxima + b * kLanes, largest_of_block(block(r, b)));
    r.changed[b] = 0;
  }
}

// The lowest id of the best logit.
int32_t first_best(const Row& r) {
  const Vec best = splat(r.best);
  for (int b = 0; b < r.n_blocks; ++b) {
    if (!at_least(load(r.maxima + b * kLanes), best)) continue;
    const float* p = block(r, b);
    for (int i = 0; i < kBlockVectors; ++i)
      if (const uint32_t hits = at_least(load(p + i * kLanes), best))
        return b * kBlock + i * kLanes + __builtin_ctz(hits);
  }
  return 0;
}

// How far a token is behind the best one; its weight is e^-distance, the best one's being 1. Less than e^-87 is 0.
inline Vec distance(Vec x, Vec best, Vec temperature) { return (best - x) / temperature; }

inline Vec weight(Vec distance) { return exp_nonpositive(-distance); }

// A logit under which every weight is 0.
inline float lowest_weighed(float best, float temperature) {
  return static_cast<float>(static_cast<double>(best) - 87.5 * static_cast<double>(temperature));
}

// The sum of all weights, and those of the groups of blocks, sums [n_groups]. Fixed order: blocks of a group, lane by
// lane, then lanes, then groups.
double weigh(const Row& r, float temperature, float* sums) {
  const Vec best = splat(r.best), t = splat(temperature), lowest = splat(lowest_weighed(r.best, temperature));
  double total = 0;
  for (int g = 0; g < r.n_groups; ++g) {
    sums[g] = 0;
    if (!at_least(load(r.coarse + g * kLanes), lowest)) continue;
    Vec group{};
    for (int b = g * kGroup; b < (g + 1) * kGroup && b < r.n_blocks; ++b) {
      if (!at_least(load(r.maxima + b * kLanes), lowest)) continue;
      const float* p = block(r, b);
      Vec sum{};
      for (int i = 0; i < kBlockVectors; ++i) sum += weight(distance(load(p + i * kLanes), best, t));
      group += sum;
    }
    sums[g] = horizontal_sum(group);
    total += static_cast<double>(sums[g]);
  }
  return total;
}

inline int64_t count_at_least(const float* x, int n_vectors, float limit) {
  const Vec y = splat(limit);
  int64_t count = 0;
  for (int i = 0; i < n_vectors; ++i) count += __builtin_popcount(at_least(load(x + i * kLanes), y));
  return count;
}

// A number, at least `low`, that `k` logits or more reach, or `low` itself; few more than k if k is small beside the
// number of maxima. By halving the span from `low` to the best until the count of maxima is near k.
float reached_by(const Row& r, int64_t k, float low) {
  const bool is_coarse = 2 * k <= r.n_groups * kLanes;
  if (!is_coarse && 2 * k > r.n_blocks * kLanes) return low;
  const float* maxima = is_coarse ? r.coarse : r.maxima;
  const int n_vectors = is_coarse ? r.n_groups : r.n_blocks;
  double below = low, above = r.best;
  for (int step = 0; step < 20; ++step) {
    const float middle = static_cast<float>(below + (above - below) / 2);
    const int64_t count = count_at_least(maxima, n_vectors, middle);
    if (count < k) {
      above = middle;
      continue;
    }
    below = middle;
    if (count <= k + k / 4 + 4) break;
  }
  return static_cast<float>(below);
}

// Logits of at least `limit` and their ids, by ascending id; returns how many. There must be room for kLanes more.
// Looks at one vector of `step` only; step is 1 or kBlockVectors.
int collect(const Row& r, float limit, int step, float* x, int32_t* ids) {
  const Vec y = splat(limit);
  int n = 0;
  for (int b = 0; b < r.n_blocks; ++b) {
    if (!at_least(load(r.maxima + b * kLanes), y)) continue;
    const float* p = block(r, b);
    for (int i = b % step; i < kBlockVectors; i += step) {
      const Vec v = load(p + i * kLanes);
      uint32_t hits = at_least(v, y);
      const int first = b * kBlock + i * kLanes;
#if defined(__AVX512F__)
      const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
      const auto mask = static_cast<__mmask16>(hits);
      store(x + n, _mm512_maskz_compress_ps(mask, v));
      _mm512_storeu_si512(ids + n, _mm512_maskz_compress_epi32(mask, _mm512_add_epi32(lane, _mm512_set1_epi32(first))));
      n += __builtin_popcount(hits);
#else
      if (hits == kAllLanes) {  // as in distributions so flat that most tokens are candidates
        store(x + n, v);
        for (int lane = 0; lane < kLanes; ++lane) ids[n++] = first + lane;
        continue;
      }
      for (; hits; hits &= hits - 1) {
        const int lane = __builtin_ctz(hits);
        x[n] = p[i * kLanes + lane];
        ids[n++] = first + lane;
      }
#endif
    }
  }
  return n;
}

}  // namespace
}  // namespace orcaserve::ORCASERVE_ISA
