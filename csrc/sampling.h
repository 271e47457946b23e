// What a call of `sample` is given and gives back: plain data, shared by the host and every instruction set's code.
//
// A row of logits goes through, in this order: mask of allowed tokens; repetition penalty (prompt and output), presence
// and frequency penalties (output), logit bias, excluded tokens; then the best token, or temperature, top_k, top_p,
// min_p and one draw. No result depends on the other rows or on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace orcaserve {

enum class SampleStatus : int32_t { kOk = 0, kNotANumber = 1, kAllExcluded = 2 };

constexpr int kMaxTopLogprobs = 20;

// Of the model's own distribution: the softmax of the logits as they came, before masks, penalties and temperature.
struct TokenLogprobs {
  int32_t n_top;      // in: how many of the best tokens are wanted; out: how many there are
  float logprob;      // of the token that was chosen
  int32_t rank;       // 1 + the number of tokens that are likelier than it
  int32_t top_ids[kMaxTopLogprobs];  // best first, of equal ones the lower id first
  float top_logprobs[kMaxTopLogprobs];
};

// One row. Token ids outside the vocabulary are passed over.
struct SampleRow {
  float* logits;  // [vocab], overwritten

  float temperature;  // 0: the best token
  int32_t top_k;      // 0: no limit
  double top_p;       // 1: no limit
  float min_p;        // 0: no limit
  double uniform;     // what the draw is made of, in [0, 1)

  float repetition_penalty;  // of `seen`, each id once
  const int32_t* seen;
  int64_t n_seen;
  double presence_penalty;  // of `counted`, each id once: subtracts presence + frequency * count
  double frequency_penalty;
  const int32_t* counted;
  const int32_t* counts;
  int64_t n_counted;
  const int32_t* bias_ids;  // each id once
  const float* bias;
  int64_t n_bias;
  const int32_t* excluded;
  int64_t n_excluded;
  const uint32_t* mask;  // bit i % 32 of word i / 32: token i is allowed; null: all are
  bool again;            // a token was chosen from this row before: it holds numbers only

  TokenLogprobs* logprobs;  // null: not asked for

  int32_t token;  // out; 0 unless the status is kOk
  SampleStatus status;
};

struct SampleCall {
  SampleRow* rows;
  int n_rows;
  int vocab;
  uint8_t* scratch;      // a piece per member of the team, 64-byte aligned
  size_t scratch_bytes;  // of a piece: see below
};

// A piece of scratch has kSampleBytesPerToken * vocab + kSampleBytes bytes, rounded up to 64. Most of it is touched
// only by distributions so flat that thousands of tokens matter.
constexpr size_t kSampleBytesPerToken = 36;
constexpr size_t kSampleBytes = size_t{128} << 10;

}  // namespace orcaserve
