// Candidates of a draw in their order, best first and of equal ones the lower id first, without sorting them: where in
// that order does a count or a sum of weights reach its limit?
//
// A histogram over the candidates' keys says in which of its bins that happens; only the bin is looked at closer, by a
// finer histogram while it holds many candidates, and sorted when it holds few.
#pragma once

#include <cstdint>

#include "sampling_lanes.h"
#include "simd.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

constexpr int kFewBins = 256, kManyBins = 2048;
constexpr int kManyEntries = 1024;  // from here on kManyBins
constexpr int kSortAtMost = 32;
constexpr int64_t kNoRank = INT64_MAX;

// By ascending id. The arrays have room for kLanes more than n.
struct Entries {
  int32_t* key;  // see key_of: not negative, 0 for the best
  float* weight;
  int32_t* id;
  int n;
};

// Bins of 2^shift keys each, from `base` on.
struct Histogram {
  int32_t base;
  int shift;
  int n_bins;
  double* mass;    // [kManyBins]
  int32_t* count;  // [kManyBins]
};

// The candidates up to and with the one of this key and id.
struct Prefix {
  int32_t key;
  int32_t id;
  double mass;
};

struct Order {
  Entries all;
  Entries band;  // room for as many
  Histogram outer, inner;
};

// The key of a weight e^-distance. Weights within 6e-8 of each other may share one; they then count as equal.
constexpr float kKeysPerUnit = 1 << 24;
constexpr float kFarthest = 100;  // beyond, every weight is 0

inline IntVec key_of(Vec distance) {
  const Vec farthest = splat(kFarthest);
  return __builtin_convertvector((distance < farthest ? distance : farthest) * splat(kKeysPerUnit), IntVec);
}

// The largest double below x; -1 for 0.
inline double below(double x) {
  if (x <= 0) return -1;
  int64_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  --bits;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

inline bool precedes(const Prefix& a, const Prefix& b) { return a.key < b.key || (a.key == b.key && a.id < b.id); }

inline Prefix shorter(const Prefix& a, const Prefix& b) { return precedes(a, b) ? a : b; }

// All keys of `from` lie in lowest..highest.
void build(Histogram& h, const Entries& from, int32_t lowest, int32_t highest) {
  const int most = from.n <= kManyEntries ? kFewBins : kManyBins;
  int shift = 0;
  while (((highest - lowest) >> shift) >= most) ++shift;
  h.base = lowest;
  h.shift = shift;
  h.n_bins = ((highest - lowest) >> shift) + 1;
  for (int i = 0; i < h.n_bins; ++i) h.mass[i] = 0;
  for (int i = 0; i < h.n_bins; ++i) h.count[i] = 0;
  for (int i = 0; i < from.n; ++i) {
    const int32_t bin = (from.key[i] - lowest) >> shift;
    h.mass[bin] += static_cast<double>(from.weight[i]);
    ++h.count[bin];
  }
}

// The entries of one bin, in their order; `to` may be `from`.
void gather(const Entries& from, const Histogram& h, int bin, Entries& to) {
  const IntVec wanted = bin - IntVec{};
  const int n = from.n;
  int found = 0;
  for (int i = 0; i < n; i += kLanes) {
    IntVec key;
    __builtin_memcpy(&key, from.key + i, sizeof key);
    for (uint32_t hits = true_lanes(((key - h.base) >> h.shift) == wanted); hits; hits &= hits - 1) {
      const int at = i + __builtin_ctz(hits);
      if (at >= n) break;
      to.key[found] = from.key[at];
      to.weight[found] = from.weight[at];
      to.id[found++] = from.id[at];
    }
  }
  to.n = found;
}

void insertion_sort(Entries& e) {
  for (int i = 1; i < e.n; ++i) {
    const int32_t key = e.key[i];
    const float weight = e.weight[i];
    const int32_t id = e.id[i];
    int j = i;
    for (; j > 0 && e.key[j - 1] > key; --j) {
      e.key[j] = e.key[j - 1];
      e.weight[j] = e.weight[j - 1];
      e.id[j] = e.id[j - 1];
    }
    e.key[j] = key;
    e.weight[j] = weight;
    e.id[j] = id;
  }
}

// The prefix of all of `e` that weighs anything.
Prefix whole(const Entries& e, double mass) {
  Prefix last{-1, -1, mass};
  for (int i = 0; i < e.n; ++i)
    if (e.weight[i] > 0) {
      const Prefix here{e.key[i], e.id[i], mass};
      if (precedes(last, here)) last = here;
    }
  return last;
}

// The shortest prefix of `rank` candidates, or whose mass exceeds `target`; where there is none, the prefix of all.
Prefix find(Order& o, int64_t rank, double target) {
  const Entries* from = &o.all;
  const Histogram* h = &o.outer;
  int64_t count = 0;
  double mass = 0;
  for (;;) {
    int bin = 0;
    for (; bin < h->n_bins; ++bin) {
      if (count + h->count[bin] >= rank || mass + h->mass[bin] > target) break;
      count += h->count[bin];
      mass += h->mass[bin];
    }
    if (bin == h->n_bins) return whole(*from, mass);
    gather(*from, *h, bin, o.band);
    const bool alike = h->shift == 0;
    if (alike || o.band.n <= kSortAtMost) {
      if (!alike) insertion_sort(o.band);
      break;
    }
    const int32_t lowest = h->base + (bin << h->shift);
    build(o.inner, o.band, lowest, lowest + (1 << h->shift) - 1);
    from = &o.band;
    h = &o.inner;
  }
  for (int i = 0; i < o.band.n; ++i) {
    mass += static_cast<double>(o.band.weight[i]);
    if (++count >= rank || mass > target) return {o.band.key[i], o.band.id[i], mass};
  }
  return whole(o.band, mass);  // the bin's sum, taken in another order, promised a little more
}

}  // namespace
}  // namespace orcaserve::ORCASERVE_ISA
