// The sampler against a naive one: sort everything, weigh in double precision, walk.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "../isa.h"
#include "../sampler.h"
#include "array.h"
#include "checks.h"

namespace orcaserve::check {
namespace {

// A row and what it points to.
struct Wish {
  Array<float> logits;
  std::vector<int32_t> seen, counted, counts, bias_ids, excluded;
  std::vector<float> bias;
  Array<uint32_t> mask;
  TokenLogprobs logprobs{};
  SampleRow row{};

  // Everything of the row but the logits, which a call overwrites.
  void point() {
    row.logits = logits.data();
    row.seen = seen.data();
    row.n_seen = static_cast<int64_t>(seen.size());
    row.counted = counted.data();
    row.counts = counts.data();
    row.n_counted = static_cast<int64_t>(counted.size());
    row.bias_ids = bias_ids.data();
    row.bias = bias.data();
    row.n_bias = static_cast<int64_t>(bias_ids.size());
    row.excluded = excluded.data();
    row.n_excluded = static_cast<int64_t>(excluded.size());
    row.mask = mask.empty() ? nullptr : mask.data();
  }
};

std::vector<int32_t> some_ids(Random& random, int vocab, int n) {
  std::vector<int32_t> ids;
  for (int i = 0; i < n; ++i) ids.push_back(random.below(vocab + 3));  // a few lie outside the vocabulary
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::unique_ptr<Wish> make_wish(Random& random, int vocab) {
  auto wish = std::make_unique<Wish>();
  wish->logits.resize(static_cast<size_t>(vocab));
  random.fill(wish->logits, random.below(3) == 0 ? 0.1 : 3.0);  // flat ones and peaked ones
  SampleRow& row = wish->row;
  const auto often = [&] { return random.below(2) == 0; };
  row.temperature = random.below(4) == 0 ? 0 : static_cast<float>(0.3 + 1.5 * random.uniform());
  row.top_k = often() ? 0 : 1 + random.below(vocab + 5);
  row.top_p = often() ? 1 : random.uniform();
  row.min_p = often() ? 0 : static_cast<float>(0.3 * random.uniform());
  row.uniform = random.uniform();
  row.repetition_penalty = 1.3f;
  row.presence_penalty = 0.5;
  row.frequency_penalty = 0.25;
  if (often()) wish->seen = some_ids(random, vocab, 20);
  if (often()) wish->counted = some_ids(random, vocab, 20);
  for (size_t i = 0; i < wish->counted.size(); ++i) wish->counts.push_back(1 + random.below(4));
  if (often()) wish->bias_ids = some_ids(random, vocab, 5);
  wish->bias.resize(wish->bias_ids.size());
  random.fill(wish->bias, 2.0);
  if (often()) wish->excluded = some_ids(random, vocab, 5);
  if (often()) {
    wish->mask.resize(static_cast<size_t>(vocab + 31) / 32);
    const bool few = often();
    for (uint32_t& word : wish->mask) word = few && random.below(8) ? 0 : static_cast<uint32_t>(random.bits() | random.bits());
    row.again = often();
  }
  if (often()) row.logprobs = &wish->logprobs;
  wish->logprobs.n_top = random.below(kMaxTopLogprobs + 1);
  wish->point();
  return wish;
}

constexpr double kExcluded = -INFINITY;

// In float, as the kernels, so that equal logits stay equal.
std::vector<double> adjusted(const Wish& wish) {
  Array<float> x = wish.logits;
  const auto vocab = static_cast<int32_t>(x.size());
  const SampleRow& row = wish.row;
  const auto at = [&](int32_t id) -> float& { return x[static_cast<size_t>(id)]; };
  if (row.mask)
    for (int32_t id = 0; id < vocab; ++id)
      if (!(row.mask[id / 32] >> (id % 32) & 1)) at(id) = -INFINITY;
  for (int32_t id : wish.seen)
    if (id < vocab) at(id) = at(id) > 0 ? at(id) / row.repetition_penalty : at(id) * row.repetition_penalty;
  for (size_t i = 0; i < wish.counted.size(); ++i)
    if (wish.counted[i] < vocab)
      at(wish.counted[i]) += static_cast<float>(-row.presence_penalty - row.frequency_penalty * wish.counts[i]);
  for (size_t i = 0; i < wish.bias_ids.size(); ++i)
    if (wish.bias_ids[i] < vocab) at(wish.bias_ids[i]) += wish.bias[i];
  for (int32_t id : wish.excluded)
    if (id < vocab) at(id) = -INFINITY;
  return {x.begin(), x.end()};
}

// The token, or -1 if all are excluded.
int32_t choose(const Wish& wish) {
  const std::vector<double> x = adjusted(wish);
  std::vector<int32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](int32_t id) { return x[static_cast<size_t>(id)]; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
  const SampleRow& row = wish.row;
  const double best = logit(order[0]);
  if (best == kExcluded) return -1;
  if (row.temperature == 0) return order[0];
  const auto weight = [&](int32_t id) { return std::exp((logit(id) - best) / double{row.temperature}); };
  const bool limited = row.top_k > 0 && static_cast<size_t>(row.top_k) < order.size();
  if (limited) order.resize(static_cast<size_t>(row.top_k));
  double mass = 0;
  for (int32_t id : order) mass += weight(id);
  if (row.top_p < 1) {
    double reached = 0;
    size_t n = 0;
    while (n < order.size() && reached < row.top_p * mass) reached += weight(order[n++]);
    order.resize(std::max<size_t>(n, 1));
  }
  while (weight(order.back()) < double{row.min_p}) order.pop_back();
  if (row.top_k == 0 && row.top_p == 1 && row.min_p == 0) std::sort(order.begin(), order.end());
  double total = 0, passed = 0;
  for (int32_t id : order) total += weight(id);
  for (int32_t id : order)
    if ((passed += weight(id)) > row.uniform * total) return id;
  return order.back();
}

void check_logprobs(const Wish& wish, const TokenLogprobs& given, int32_t token) {
  double mass = 0;
  for (float x : wish.logits) mass += std::exp(double{x});
  const auto logprob = [&](int32_t id) { return double{wish.logits[static_cast<size_t>(id)]} - std::log(mass); };
  expect(std::abs(given.logprob - logprob(token)) < 1e-4, "a wrong logprob");
  const auto likelier = [&](int32_t id) {
    const float limit = wish.logits[static_cast<size_t>(id)];
    return std::count_if(wish.logits.begin(), wish.logits.end(), [&](float x) { return x > limit; });
  };
  expect(given.rank == 1 + likelier(token), "a wrong rank");
  expect(given.n_top == std::min<int32_t>(wish.logprobs.n_top, static_cast<int32_t>(wish.logits.size())),
         "a wrong number of best tokens");
  for (int i = 0; i < given.n_top; ++i) {
    expect(likelier(given.top_ids[i]) <= i, "the best tokens are not in order");
    expect(std::abs(given.top_logprobs[i] - logprob(given.top_ids[i])) < 1e-4, "a wrong logprob of a best token");
  }
}

// Calls the kernel on copies of the wishes, which then hold the answers.
std::vector<std::unique_ptr<Wish>> sample(const std::vector<std::unique_ptr<Wish>>& wishes, int vocab, Team& team) {
  std::vector<std::unique_ptr<Wish>> answers;
  std::vector<SampleRow> rows;
  for (const auto& wish : wishes) {
    answers.push_back(std::make_unique<Wish>(*wish));
    Wish& answer = *answers.back();
    answer.point();
    if (answer.row.logprobs) answer.row.logprobs = &answer.logprobs;
    rows.push_back(answer.row);
  }
  SampleCall call{rows.data(), static_cast<int>(rows.size()), vocab, nullptr, 0};
  call.scratch_bytes = (kSampleBytesPerToken * static_cast<size_t>(vocab) + kSampleBytes + 63) / 64 * 64;
  Array<uint8_t> scratch(call.scratch_bytes * static_cast<size_t>(team.size()), 0xff);
  call.scratch = scratch.data();
  kernels().sample(call, team);
  for (size_t i = 0; i < rows.size(); ++i) answers[i]->row = rows[i];
  return answers;
}

void against_naive(int vocab) {
  Random random(static_cast<uint64_t>(vocab));
  std::vector<std::unique_ptr<Wish>> wishes;
  for (int i = 0; i < 60; ++i) wishes.push_back(make_wish(random, vocab));
  for (int n_threads : {1, 3}) {
    Team team(n_threads);
    const auto answers = sample(wishes, vocab, team);
    for (size_t i = 0; i < wishes.size(); ++i) {
      const int32_t token = choose(*wishes[i]);
      const SampleRow& row = answers[i]->row;
      const std::string where = "row " + std::to_string(i) + " of " + std::to_string(vocab) + " tokens: ";
      expect((row.status == SampleStatus::kAllExcluded) == (token < 0), where + "a wrong status");
      if (token < 0) continue;
      expect(row.token == token, where + "token " + std::to_string(row.token) + ", must be " + std::to_string(token));
      if (row.logprobs) check_logprobs(*wishes[i], answers[i]->logprobs, token);
    }
  }
}

void odd_rows() {
  Random random(3);
  std::vector<std::unique_ptr<Wish>> wishes;
  for (float odd : {NAN, INFINITY, -INFINITY}) {
    wishes.push_back(make_wish(random, 151));
    wishes.back()->logits[150] = odd;
    wishes.back()->row.again = false;
  }
  Team team(2);
  for (const auto& answer : sample(wishes, 151, team))
    expect(answer->row.status == SampleStatus::kNotANumber, "a row with something that is not a number was sampled");
}

SamplingSettings settings_of(int64_t id) {
  SamplingSettings settings{};
  settings.temperature = id % 3 == 0 ? 0 : 0.8;
  settings.top_k = 40;
  settings.top_p = 0.95;
  settings.min_p = 0.01;
  settings.repetition_penalty = 1.2;
  settings.presence_penalty = 0.3;
  settings.frequency_penalty = 0.2;
  settings.bias_ids = {5, 96};
  settings.bias = {2.0f, -1.0f};
  settings.min_tokens = 4;
  settings.stop_ids = {7, 8};
  settings.largest_id = 96;
  settings.seed = static_cast<uint64_t>(id);
  return settings;
}

// Several steps of some requests, with everything that the sampler remembers. Row i belongs to request i.
std::vector<std::vector<int32_t>> tokens_of(const std::vector<int64_t>& requests, int n_threads) {
  constexpr int kVocab = 97, kSteps = 12;
  Team team(n_threads);
  Sampler sampler;
  std::vector<std::vector<int32_t>> chosen(requests.size());
  for (int64_t id : requests) {
    sampler.admit(id, settings_of(id), 10 + id, {1, 2, 3, 2}, {});
  }
  for (int step = 0; step < kSteps; ++step) {
    Array<float> logits;
    std::vector<SampleWish> wishes;
    for (int64_t id : requests) {
      Array<float> row(kVocab);
      Random random(static_cast<uint64_t>(1000 * id + step));
      random.fill(row, 2.0);
      logits.insert(logits.end(), row.begin(), row.end());
      wishes.push_back({id, static_cast<int>(wishes.size()), nullptr, nullptr});
    }
    std::vector<int32_t> tokens(requests.size());
    std::vector<SampleOutcome> outcomes(requests.size());
    sampler.sample(logits.data(), static_cast<int>(requests.size()), kVocab, wishes.data(), tokens.data(),
                   outcomes.data(), team);
    for (size_t i = 0; i < requests.size(); ++i) {
      expect(outcomes[i] == SampleOutcome::kOk, "a row could not be sampled");
      expect(tokens[i] >= 0 && tokens[i] < kVocab, "a token outside the vocabulary");
      expect(step >= 4 || (tokens[i] != 7 && tokens[i] != 8), "a stop token before min_tokens");
      chosen[i].push_back(tokens[i]);
    }
  }
  for (int64_t id : requests) sampler.drop(id);
  expect(!sampler.knows(requests[0]), "a dropped request is still known");
  return chosen;
}

void alone_and_together() {
  std::vector<int64_t> requests(9);
  std::iota(requests.begin(), requests.end(), 0);
  const auto together = tokens_of(requests, 1);
  expect(tokens_of(requests, 4) == together, "four threads choose other tokens than one");
  for (int64_t id : requests)
    expect(tokens_of({id}, 2)[0] == together[static_cast<size_t>(id)], "a request alone gets other tokens");
}

}  // namespace

void check_sampling(Report& report) {
  report.check("sampling as a naive sampler does", [] {
    for (int vocab : {1, 2, 50, 151, 1000, 4999}) against_naive(vocab);
  });
  report.check("rows that cannot be sampled", odd_rows);
  report.check("tokens of requests alone and together", alone_and_together);
}

}  // namespace orcaserve::check
