// Experts of a row: the choice among them, and the sum of what they give.
//
// Order of sums. The weights of all experts are added vector by vector, and then lanes by halves; those of the chosen ones, and
// what these give, in the order of their numbers. So a row's bits depend on its own numbers alone.
#include "kernels.h"
#include "simd.h"

namespace orcaserve::ORCASERVE_ISA {

void choose_experts(const float* logits, int n_experts, int n_chosen, bool shares_of_chosen, int32_t* chosen, float* shares) {
  uint64_t is_chosen[kMostExperts / 64] = {};
  float top = 0;
  for (int i = 0; i < n_chosen; ++i) {
    int best = -1;  // an expert is found whatever the numbers are: also if they are none
    for (int e = 0; e < n_experts; ++e)
      if (!(is_chosen[e / 64] >> (e % 64) & 1) && (best < 0 || logits[e] > logits[best])) best = e;
    is_chosen[best / 64] |= uint64_t{1} << (best % 64);
    if (i == 0) top = logits[best];
  }
  float sum = 0;
  for (int e = 0, i = 0; i < n_chosen; ++e) {
    if (!(is_chosen[e / 64] >> (e % 64) & 1)) continue;
    chosen[i] = e;
    shares[i] = exp_nonpositive(splat(logits[e] - top))[0];
    sum += shares[i++];
  }
  if (!shares_of_chosen) {
    Vec weights{};
    int e = 0;
    for (; e + kLanes <= n_experts; e += kLanes) weights += exp_nonpositive(load(logits + e) - splat(top));
    if (e < n_experts) {
      Vec last = exp_nonpositive(load_first(logits + e, n_experts - e) - splat(top));
      for (int i = n_experts - e; i < kLanes; ++i) last[i] = 0.0f;
      weights += last;
    }
    sum = horizontal_sum(weights);
  }
  for (int i = 0; i < n_chosen; ++i) shares[i] /= sum;
}

void mix_experts(const float* given, int n, const int32_t* places, const float* shares, int n_chosen, float* to) {
  for (int at = 0; at < n; at += kLanes) {
    const int some = n - at < kLanes ? n - at : kLanes;
    Vec sum{};
    for (int i = 0; i < n_chosen; ++i) {
      const float* from = given + int64_t{places[i]} * n + at;
      const Vec own = some == kLanes ? load(from) : load_first(from, some);
      sum = i == 0 ? own * splat(shares[0]) : multiply_add(own, splat(shares[i]), sum);
    }
    if (some == kLanes)
      store(to + at, sum);
    else
      store_first(to + at, sum, some);
  }
}

}  // namespace orcaserve::ORCASERVE_ISA
