// Sampler: what is remembered of the requests whose tokens are chosen, and the choice for a whole batch.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "buffer.h"
#include "sampling.h"
#include "team.h"

namespace orcaserve {

// What a request asks for; as in orcaserve.core.SamplingParams, checked there.
struct SamplingSettings {
  double temperature;  // 0: greedy
  int32_t top_k;       // 0: no limit
  double top_p;
  double min_p;
  double repetition_penalty;
  double presence_penalty;
  double frequency_penalty;
  std::vector<int32_t> bias_ids;
  std::vector<float> bias;
  int64_t min_tokens;
  std::vector<int32_t> stop_ids;  // excluded until min_tokens tokens were put out
  int64_t largest_id;             // of those that the client named, -1 without
  uint64_t seed;                  // what the draws are made of
};

// One request's part of a call.
struct SampleWish {
  int64_t request_id;
  int row;                  // of the logits
  const uint32_t* mask;     // allowed tokens, or null
  TokenLogprobs* logprobs;  // or null
};

enum class SampleOutcome : int32_t { kOk = 0, kNotANumber = 1, kAllExcluded = 2, kOutsideVocabulary = 3 };

// Not thread-safe.
class Sampler {
 public:
  // n_prompt: tokens of the prompt; `seen` holds its ids if repetition_penalty is not 1. output: tokens that were put out
  // already, by another sampler.
  void admit(int64_t request_id, SamplingSettings settings, int64_t n_prompt, std::vector<int32_t> seen,
             const std::vector<int32_t>& output);

  // An unknown id is no error.
  void drop(int64_t request_id) { states_.erase(request_id); }

  // Its last token was not to be: the next call chooses that one, by another random number. False if what the token has
  // left behind (penalties) cannot be undone.
  bool take_back(int64_t request_id) { return states_.at(request_id).take_back(); }

  bool knows(int64_t request_id) const { return states_.count(request_id) > 0; }

  // logits [.., vocab], of which each of n wishes has a row of its own, overwritten where there is a mask, a penalty, a
  // bias or an exclusion; a token and an outcome per wish. The token of one that is not kOk is 0 and means nothing. Every
  // request must be known.
  void sample(float* logits, int n, int vocab, const SampleWish* wishes, int32_t* tokens, SampleOutcome* outcomes,
              Team& team);

 private:
  struct State {
    SamplingSettings settings;
    int64_t n_text;
    int64_t n_output;
    std::vector<int32_t> seen;     // ascending, each once
    std::vector<int32_t> counted;  // ascending, each once
    std::vector<int32_t> counts;   // how often each of them was put out
    bool again;                    // the next token was chosen before, and taken back

    void append(int32_t token);
    bool take_back();
    SampleRow row(const SampleWish& wish, float* logits) const;
  };

  std::unordered_map<int64_t, State> states_;
  std::vector<SampleRow> rows_;
  std::vector<std::pair<int, State*>> sampled_;  // row of the call, request
  Buffer scratch_;
};

// A number in [0, 1) that depends on `seed` and `index` only: two rounds of splitmix64.
double uniform(uint64_t seed, uint64_t index);

}  // namespace orcaserve
