#include "sampler.h"

#include <algorithm>

#include "isa.h"

namespace orcaserve {
namespace {

uint64_t splitmix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// A float that stands for every smaller limit: no weight but 0 lies under it.
constexpr float kLeastMinP = 1.2e-38f;

// Makes other random numbers of a seed, for tokens that are chosen a second time.
constexpr uint64_t kSecondChoice = 0x5EC0'1D00'C401'CE00;

int64_t size(const std::vector<int32_t>& ids) { return static_cast<int64_t>(ids.size()); }

}  // namespace

double uniform(uint64_t seed, uint64_t index) {
  return static_cast<double>(splitmix64(splitmix64(seed) ^ index) >> 11) * 0x1p-53;
}

void Sampler::admit(int64_t request_id, SamplingSettings settings, int64_t n_prompt, std::vector<int32_t> seen,
                    const std::vector<int32_t>& output) {
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  State state{std::move(settings), n_prompt, 0, std::move(seen), {}, {}, false};
  for (const int32_t token : output) state.append(token);
  states_.insert_or_assign(request_id, std::move(state));
}

void Sampler::State::append(int32_t token) {
  ++n_text;
  ++n_output;
  again = false;
  if (settings.repetition_penalty != 1) {
    const auto place = std::lower_bound(seen.begin(), seen.end(), token);
    if (place == seen.end() || *place != token) seen.insert(place, token);
  }
  if (settings.presence_penalty != 0 || settings.frequency_penalty != 0) {
    const auto place = std::lower_bound(counted.begin(), counted.end(), token);
    const auto i = place - counted.begin();
    if (place == counted.end() || *place != token) {
      counted.insert(place, token);
      counts.insert(counts.begin() + i, 0);
    }
    ++counts[static_cast<size_t>(i)];
  }
}

bool Sampler::State::take_back() {
  if (settings.repetition_penalty != 1 || settings.presence_penalty != 0 || settings.frequency_penalty != 0) return false;
  --n_text;
  --n_output;
  again = true;
  return true;
}

SampleRow Sampler::State::row(const SampleWish& wish, float* logits) const {
  SampleRow row{};
  row.logits = logits;
  row.temperature = static_cast<float>(settings.temperature);
  row.top_k = settings.top_k;
  row.top_p = settings.top_p;
  row.min_p = settings.min_p > 0 ? std::max(static_cast<float>(settings.min_p), kLeastMinP) : 0;
  const uint64_t seed = again ? settings.seed ^ kSecondChoice : settings.seed;
  row.uniform = settings.temperature == 0 ? 0 : uniform(seed, static_cast<uint64_t>(n_text));
  row.repetition_penalty = static_cast<float>(settings.repetition_penalty);
  row.seen = seen.data();
  row.n_seen = size(seen);
  row.presence_penalty = settings.presence_penalty;
  row.frequency_penalty = settings.frequency_penalty;
  row.counted = counted.data();
  row.counts = counts.data();
  row.n_counted = size(counted);
  row.bias_ids = settings.bias_ids.data();
  row.bias = settings.bias.data();
  row.n_bias = size(settings.bias_ids);
  row.excluded = settings.stop_ids.data();
  row.n_excluded = n_output < settings.min_tokens ? size(settings.stop_ids) : 0;
  row.mask = wish.mask;
  row.again = again;
  row.logprobs = wish.logprobs;
  return row;
}

void Sampler::sample(float* logits, int n, int vocab, const SampleWish* wishes, int32_t* tokens,
                     SampleOutcome* outcomes, Team& team) {
  rows_.clear();
  sampled_.clear();
  for (int i = 0; i < n; ++i) {
    State& state = states_.at(wishes[i].request_id);
    tokens[i] = 0;
    outcomes[i] = SampleOutcome::kOutsideVocabulary;
    if (state.settings.largest_id >= vocab) continue;
    rows_.push_back(state.row(wishes[i], logits + static_cast<int64_t>(wishes[i].row) * vocab));
    sampled_.emplace_back(i, &state);
  }
  if (rows_.empty()) return;
  SampleCall call{rows_.data(), static_cast<int>(rows_.size()), vocab, nullptr, 0};
  call.scratch_bytes = (kSampleBytesPerToken * static_cast<size_t>(vocab) + kSampleBytes + 63) / 64 * 64;
  call.scratch = static_cast<uint8_t*>(scratch_.reserve(call.scratch_bytes * static_cast<size_t>(team.size())));
  kernels().sample(call, team);
  for (size_t i = 0; i < rows_.size(); ++i) {
    const auto [row, state] = sampled_[i];
    tokens[row] = rows_[i].token;
    outcomes[row] = static_cast<SampleOutcome>(rows_[i].status);
    if (rows_[i].status == SampleStatus::kOk) state->append(rows_[i].token);
  }
}

}  // namespace orcaserve
