// Tokens from rows of logits; see sampling.h for what is done in which order.
#include "sampling.h"

#include "kernels.h"
#include "sampling_order.h"
#include "sampling_row.h"
#include "simd.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

constexpr double kNoTarget = __builtin_inf();
constexpr int kFirstLook = 128;   // the best tokens that top_p looks at first
constexpr double kMargin = 0.85;  // of the mass that top_p leaves out, where it is estimated from a part of the tokens
// Some 30 microseconds of work, in logits read: not worth waking the team for.
constexpr int64_t kAloneAtMost = int64_t{1} << 19;

// A member's piece of scratch, cut into arrays.
struct Scratch {
  Row row;
  float* sums;    // [n_groups]
  float* x;       // of candidates, beside order.all
  float* raw;     // [n_blocks * kBlock]
  Order order;
};

class Cutter {
 public:
  explicit Cutter(uint8_t* p) : p_(p) {}
  template <typename T>
  T* cut(int64_t n) {
    T* start = reinterpret_cast<T*>(p_);
    p_ += (n * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return start;
  }
  Entries entries(int64_t n) { return {cut<int32_t>(n), cut<float>(n), cut<int32_t>(n), 0}; }
  Histogram histogram() { return {0, 0, 0, cut<double>(kManyBins), cut<int32_t>(kManyBins)}; }

 private:
  uint8_t* p_;
};

Scratch lay_out(uint8_t* piece, float* logits, int vocab) {
  Cutter c(piece);
  Scratch m;
  Row& r = m.row;
  r.x = logits;
  r.n = vocab;
  r.n_whole = vocab / kBlock;
  r.n_blocks = (vocab + kBlock - 1) / kBlock;
  r.n_groups = (r.n_blocks + kGroup - 1) / kGroup;
  // What every row uses comes first, so that it shares few pages.
  r.tail = c.cut<float>(kBlock);
  r.maxima = c.cut<float>(static_cast<int64_t>(r.n_groups) * kGroup * kLanes);
  r.coarse = c.cut<float>(static_cast<int64_t>(r.n_groups) * kLanes);
  r.changed = c.cut<uint8_t>(r.n_blocks);
  m.sums = c.cut<float>(r.n_groups);
  m.order.outer = c.histogram();
  m.order.inner = c.histogram();
  const int64_t room = static_cast<int64_t>(r.n_blocks) * kBlock + kLanes;
  m.x = c.cut<float>(room);
  m.order.all = c.entries(room);
  m.order.band = c.entries(room);
  m.raw = c.cut<float>(room);
  return m;
}

// Penalties, bias and exclusions. What overflows stays finite.
void adjust(Row& r, const SampleRow& s) {
  for (int64_t i = 0; i < s.n_seen; ++i)
    if (float* p = change(r, s.seen[i])) {
      const float x = *p > 0 ? *p / s.repetition_penalty : *p * s.repetition_penalty;
      *p = x < kLargest ? x : kLargest;
    }
  for (int64_t i = 0; i < s.n_counted; ++i)
    if (float* p = change(r, s.counted[i]))
      *p += static_cast<float>(-s.presence_penalty - s.frequency_penalty * static_cast<double>(s.counts[i]));
  for (int64_t i = 0; i < s.n_bias; ++i)
    if (float* p = change(r, s.bias_ids[i])) *p += s.bias[i];
  for (int64_t i = 0; i < s.n_excluded; ++i)
    if (float* p = change(r, s.excluded[i])) *p = kMinusInfinity;
}

// The first token, by id, at which the weights summed so far exceed the share `uniform` of them all.
int32_t draw_from_all(Scratch& m, const SampleRow& s) {
  const Row& r = m.row;
  const double total = weigh(r, s.temperature, m.sums);
  const double share = s.uniform * total, most = below(total);
  const double target = share < most ? share : most;
  double mass = 0;
  int g = 0;
  for (; g + 1 < r.n_groups && mass + static_cast<double>(m.sums[g]) <= target; ++g)
    mass += static_cast<double>(m.sums[g]);
  const Vec best = splat(r.best), t = splat(s.temperature);
  int32_t last = 0;
  for (int b = g * kGroup; b < (g + 1) * kGroup && b < r.n_blocks; ++b) {
    float weights[kBlock];
    for (int i = 0; i < kBlock; i += kLanes) store(weights + i, weight(distance(load(block(r, b) + i), best, t)));
    for (int i = 0; i < kBlock; ++i) {
      if (weights[i] <= 0) continue;
      mass += static_cast<double>(weights[i]);
      last = b * kBlock + i;
      if (mass > target) return last;
    }
  }
  return last;  // the group's sum, taken in another order, promised a little more
}

// Makes the m.order.all.n candidates in m.x ready for `find`; those of less than min_p weigh nothing.
void weigh_candidates(Scratch& m, float limit, float temperature, float min_p) {
  Entries& all = m.order.all;
  const Vec best = splat(m.row.best), t = splat(temperature), least = splat(min_p);
  for (int i = 0; i < all.n; i += kLanes) {
    const Vec d = distance(load(m.x + i), best, t);
    const Vec w = weight(d);
    const IntVec key = key_of(d);
    store(all.weight + i, w >= least ? w : Vec{});
    __builtin_memcpy(all.key + i, &key, sizeof key);
  }
  build(m.order.outer, all, 0, key_of(distance(splat(limit), best, t))[0]);
}

double mass_of_candidates(const Histogram& h) {
  double mass = 0;
  for (int i = 0; i < h.n_bins; ++i) mass += h.mass[i];
  return mass;
}

// A logit under which no token is kept by min_p; a little less than it need be, for rounding.
float lowest_kept(float best, float temperature, float min_p) {
  const float weighed = lowest_weighed(best, temperature);
  if (min_p <= 0) return weighed;
  const double log = static_cast<double>(__builtin_logf(min_p)) - 1e-3;
  const float kept = static_cast<float>(static_cast<double>(best) + static_cast<double>(temperature) * log);
  return kept > weighed ? kept : weighed;
}

// A logit such that the tokens under it have together about, and rather less than, the mass that top_p leaves out; from
// a sample of one vector in eight. No less than `lowest`.
float estimated_limit(Scratch& m, const SampleRow& s, float lowest, double mass) {
  m.order.all.n = collect(m.row, lowest, kBlockVectors, m.x, m.order.all.id);
  weigh_candidates(m, lowest, s.temperature, 0);
  const Histogram& h = m.order.outer;
  const double most = kMargin * (1 - s.top_p) * mass / kBlockVectors;
  double left_out = 0;
  int bin = h.n_bins;
  while (bin > 0 && left_out + h.mass[bin - 1] <= most) left_out += h.mass[--bin];
  const double nearest = static_cast<double>(bin) * (int64_t{1} << h.shift) / kKeysPerUnit;
  const double t = s.temperature, best = m.row.best;
  const float limit = static_cast<float>(best - nearest * t);
  return limit > lowest ? limit : lowest;
}

// Down to which logit top_p looks, the `look`-th time.
float nucleus_limit(Scratch& m, const SampleRow& s, float lowest, double mass, int look) {
  if (look == 0 && s.top_p * mass < kFirstLook) return reached_by(m.row, kFirstLook, lowest);
  return look <= 1 ? estimated_limit(m, s, lowest, mass) : lowest;
}

// From the tokens that top_k, top_p and min_p keep, best first. Each of the three keeps a prefix of that order, so the
// shortest one is what all three keep. top_p's share is of what top_k leaves, whatever min_p takes away.
int32_t draw_from_best(Scratch& m, const SampleRow& s) {
  const Row& r = m.row;
  const bool limited = 0 < s.top_k && s.top_k < r.n;
  const bool nucleus = s.top_p < 1;
  const bool shares_of_limited = limited && nucleus;
  const float lowest = shares_of_limited ? lowest_weighed(r.best, s.temperature)
                                         : lowest_kept(r.best, s.temperature, s.min_p);
  double mass = nucleus && !limited ? weigh(r, s.temperature, m.sums) : 0;
  for (int look = 0;; ++look) {
    const float limit = limited   ? reached_by(r, s.top_k, lowest)
                        : nucleus ? nucleus_limit(m, s, lowest, mass, look)
                                  : lowest;
    m.order.all.n = collect(r, limit, 1, m.x, m.order.all.id);
    weigh_candidates(m, limit, s.temperature, shares_of_limited ? 0 : s.min_p);
    Prefix kept{INT32_MAX, INT32_MAX, kNoTarget};
    if (limited) {
      kept = find(m.order, s.top_k, kNoTarget);
      mass = kept.mass;
      if (nucleus && s.min_p > 0) weigh_candidates(m, limit, s.temperature, s.min_p);
    }
    if (nucleus) {
      const double target = below(s.top_p * mass);
      const Prefix reaching = find(m.order, kNoRank, target);
      if (!limited && reaching.mass <= target && limit > lowest) continue;
      kept = shorter(kept, reaching);
    }
    const double left = mass_of_candidates(m.order.outer);
    const double total = kept.mass < left ? kept.mass : left;
    const double share = s.uniform * total, most = below(total);
    return shorter(kept, find(m.order, kNoRank, share < most ? share : most)).id;
  }
}

// The best tokens of the row as it came, and (returned) the logarithm of its mass relative to e^0.
double describe(Scratch& m, TokenLogprobs& l) {
  const Row& r = m.row;
  const double log_mass = static_cast<double>(r.best) + __builtin_log(weigh(r, 1.0f, m.sums));
  const int wanted = l.n_top < r.n ? l.n_top : r.n;
  int32_t* ids = m.order.all.id;
  l.n_top = 0;
  if (wanted == 0) return log_mass;
  int n = collect(r, reached_by(r, wanted, lowest_weighed(r.best, 1.0f)), 1, m.x, ids);
  if (n < wanted) n = collect(r, -kLargest, 1, m.x, ids);
  float top[kMaxTopLogprobs];
  for (int i = 0; i < n; ++i) {
    if (l.n_top == wanted && m.x[i] <= top[wanted - 1]) continue;
    int j = l.n_top < wanted ? l.n_top++ : wanted - 1;
    for (; j > 0 && top[j - 1] < m.x[i]; --j) {
      top[j] = top[j - 1];
      l.top_ids[j] = l.top_ids[j - 1];
    }
    top[j] = m.x[i];
    l.top_ids[j] = ids[i];
  }
  for (int i = 0; i < wanted; ++i) l.top_logprobs[i] = static_cast<float>(static_cast<double>(top[i]) - log_mass);
  return log_mass;
}

// What is said of the chosen token; raw: the row as it came.
void describe_token(const Row& r, const float* raw, double log_mass, int32_t token, TokenLogprobs& l) {
  const Vec chosen = splat(raw[token]);
  int64_t unlikelier = 0;
  const int64_t n = static_cast<int64_t>(r.n_blocks) * kBlock;
  for (int64_t i = 0; i < n; i += kLanes) unlikelier += __builtin_popcount(at_least(chosen, load(raw + i)));
  l.rank = static_cast<int32_t>(1 + n - unlikelier);
  l.logprob = static_cast<float>(static_cast<double>(raw[token]) - log_mass);
}

constexpr int kFew = 1024;

// Whether only the few tokens that the mask allows need to be looked at: all numbers of the row are known to be finite,
// and nothing but the mask changes them.
bool is_among_few(const SampleRow& s, int vocab) {
  if (!s.again || !s.mask || s.logprobs || s.n_seen | s.n_counted | s.n_bias | s.n_excluded) return false;
  if (s.temperature > 0 && (s.top_k > 0 || s.top_p < 1 || s.min_p > 0)) return false;
  int n = 0;
  for (int word = 0; word < (vocab + 31) / 32 && n <= kFew; ++word) n += __builtin_popcount(s.mask[word]);
  return n <= kFew;
}

// The ids that a mask allows, ascending, with their logits in m.x.
int collect_few(Scratch& m, const uint32_t* mask) {
  const Row& r = m.row;
  int n = 0;
  for (int word = 0; word < (r.n + 31) / 32; ++word) {
    for (uint32_t bits = mask[word]; bits; bits &= bits - 1) {
      const int id = word * 32 + __builtin_ctz(bits);
      if (id >= r.n) break;
      m.order.all.id[n] = id;
      m.x[n++] = r.x[id];
    }
  }
  return n;
}

// The best of n collected tokens, or one draw from them.
int32_t choose_from_few(Scratch& m, const SampleRow& s, int n) {
  const int32_t* ids = m.order.all.id;
  int best = 0;
  for (int i = 1; i < n; ++i)
    if (m.x[i] > m.x[best]) best = i;
  if (s.temperature == 0) return ids[best];
  const Vec top = splat(m.x[best]), t = splat(s.temperature);
  float* weights = m.order.all.weight;
  for (int i = n; i % kLanes; ++i) m.x[i] = kMinusInfinity;
  for (int i = 0; i < n; i += kLanes) store(weights + i, weight(distance(load(m.x + i), top, t)));
  double total = 0, mass = 0;
  for (int i = 0; i < n; ++i) total += static_cast<double>(weights[i]);
  const double share = s.uniform * total, most = below(total), target = share < most ? share : most;
  for (int i = 0; i < n; ++i)
    if ((mass += static_cast<double>(weights[i])) > target) return ids[i];
  return ids[best];
}

// The mask goes before all else.
void sample_row(SampleRow& s, int vocab, uint8_t* piece) {
  Scratch m = lay_out(piece, s.logits, vocab);
  Row& r = m.row;
  s.token = 0;
  if (is_among_few(s, vocab)) {
    const int n = collect_few(m, s.mask);
    s.status = n ? SampleStatus::kOk : SampleStatus::kAllExcluded;
    if (n) s.token = choose_from_few(m, s, n);
    return;
  }
  s.status = SampleStatus::kNotANumber;
  if (!scan(r)) return;
  double log_mass = 0;
  if (s.logprobs) {
    for (int b = 0; b < r.n_blocks; ++b)
      __builtin_memcpy(m.raw + static_cast<int64_t>(b) * kBlock, block(r, b), kBlock * sizeof(float));
    summarise(r);
    log_mass = describe(m, *s.logprobs);
  }
  const bool greedy = s.temperature == 0;
  if (s.mask) apply_mask(r, s.mask);
  if (s.n_seen | s.n_counted | s.n_bias | s.n_excluded) {
    __builtin_memset(r.changed, 0, static_cast<size_t>(r.n_blocks));
    adjust(r, s);
    take_changed_maxima(r);
  }
  summarise(r);
  s.status = SampleStatus::kAllExcluded;
  if (r.best == kMinusInfinity) return;
  const bool cut = s.top_k > 0 || s.top_p < 1 || s.min_p > 0;
  s.token = greedy ? first_best(r) : cut ? draw_from_best(m, s) : draw_from_all(m, s);
  s.status = SampleStatus::kOk;
  if (s.logprobs) describe_token(r, m.raw, log_mass, s.token, *s.logprobs);
}

struct Work {
  const SampleCall* call;
  Team* team;
};

void take_rows(void* context, int member) {
  const auto& work = *static_cast<const Work*>(context);
  const SampleCall& call = *work.call;
  uint8_t* piece = call.scratch + static_cast<size_t>(member) * call.scratch_bytes;
  for (int64_t i = work.team->take(); i < call.n_rows; i = work.team->take())
    sample_row(call.rows[i], call.vocab, piece);
}

// In logits read: a row that needs the mass of them all takes about as long as four that do not.
int64_t work_of(const SampleCall& call) {
  int64_t work = 0;
  for (int i = 0; i < call.n_rows; ++i) {
    const SampleRow& s = call.rows[i];
    if (is_among_few(s, call.vocab)) continue;
    const bool weighs = s.temperature > 0 && s.top_k == 0 && (s.top_p < 1 || s.min_p == 0);
    work += int64_t{call.vocab} * (weighs || s.logprobs ? 4 : 1);
  }
  return work;
}

}  // namespace

void sample(const SampleCall& call, Team& team) {
  if (call.n_rows == 1 || work_of(call) <= kAloneAtMost) {
    for (int i = 0; i < call.n_rows; ++i) sample_row(call.rows[i], call.vocab, call.scratch);
    return;
  }
  Work work{&call, &team};
  team.run(take_rows, &work);
}

}  // namespace orcaserve::ORCASERVE_ISA
