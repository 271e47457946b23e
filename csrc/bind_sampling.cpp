// Binding of Sampler; Python's door to it is orcaserve/native/sampler.py.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "sampler.h"
#include "team.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Logits = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Mask = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ids = std::vector<int32_t>;

class BoundSampler {
 public:
  explicit BoundSampler(orcaserve::Team& team) : team_(team) {}

  void admit(int64_t request_id, double temperature, int32_t top_k, double top_p, double min_p,
             double repetition_penalty, double presence_penalty, double frequency_penalty, Ids bias_ids,
             std::vector<float> bias, int64_t min_tokens, Ids stop_ids, int64_t largest_id, uint64_t seed,
             int64_t n_prompt, Ids seen, const Ids& output) {
    if (bias_ids.size() != bias.size()) throw std::invalid_argument("as many biases as their ids are needed");
    sampler_.admit(request_id,
                   {temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty,
                    std::move(bias_ids), std::move(bias), min_tokens, std::move(stop_ids), largest_id, seed},
                   n_prompt, std::move(seen), output);
  }

  void drop(const std::vector<int64_t>& request_ids) {
    for (const int64_t id : request_ids) sampler_.drop(id);
  }

  void take_back(const std::vector<int64_t>& request_ids) {
    for (const int64_t id : request_ids)
      if (!sampler_.knows(id) || !sampler_.take_back(id))
        throw std::invalid_argument("no token can be taken back of request " + std::to_string(id));
  }

  // rows: of the logits, each request's; empty: there are as many as requests. masks, n_top: of the requests at these
  // places.
  nb::tuple sample(const Logits& logits, const std::vector<int64_t>& request_ids,
                   const std::vector<std::pair<int, Mask>>& masks, const std::vector<std::pair<int, int>>& n_top,
                   const std::vector<int>& rows) {
    const size_t n = request_ids.size(), n_rows = rows.empty() ? n : rows.size();
    if (n_rows != n || (rows.empty() && logits.shape(0) != n))
      throw std::invalid_argument("there must be a row of logits per request");
    const size_t vocab = logits.shape(1);
    wishes_.assign(n, {});
    logprobs_.resize(n_top.size());
    for (size_t i = 0; i < n; ++i) {
      if (!sampler_.knows(request_ids[i])) throw nb::key_error(std::to_string(request_ids[i]).c_str());
      wishes_[i].request_id = request_ids[i];
      wishes_[i].row = rows.empty() ? static_cast<int>(i) : rows[i];
      if (wishes_[i].row < 0 || static_cast<size_t>(wishes_[i].row) >= logits.shape(0))
        throw std::invalid_argument("there is no such row of logits");
    }
    for (const auto& [place, mask] : masks) {
      if (mask.size() != (vocab + 31) / 32)
        throw std::invalid_argument("a mask must have a bit per token of the vocabulary");
      wishes_.at(static_cast<size_t>(place)).mask = mask.data();
    }
    for (size_t i = 0; i < n_top.size(); ++i) {
      const auto [place, count] = n_top[i];
      if (count < 0 || count > orcaserve::kMaxTopLogprobs)
        throw std::invalid_argument("logprobs are given of 0 to " + std::to_string(orcaserve::kMaxTopLogprobs) +
                                    " tokens");
      logprobs_[i].n_top = count;
      wishes_.at(static_cast<size_t>(place)).logprobs = &logprobs_[i];
    }
    tokens_.resize(n);
    outcomes_.resize(n);
    {
      nb::gil_scoped_release released;
      sampler_.sample(logits.data(), static_cast<int>(n), static_cast<int>(vocab), wishes_.data(), tokens_.data(),
                      outcomes_.data(), team_);
    }
    return nb::make_tuple(tokens_, failures(), described(n_top));
  }

 private:
  // Pairs (place, outcome) of those that failed.
  nb::list failures() const {
    nb::list failed;
    for (size_t i = 0; i < outcomes_.size(); ++i)
      if (outcomes_[i] != orcaserve::SampleOutcome::kOk)
        failed.append(nb::make_tuple(i, static_cast<int>(outcomes_[i])));
    return failed;
  }

  // Tuples (place, logprob, rank, ids of the best, their logprobs) of those that were asked for and did not fail.
  nb::list described(const std::vector<std::pair<int, int>>& n_top) const {
    nb::list all;
    for (size_t i = 0; i < n_top.size(); ++i) {
      const orcaserve::TokenLogprobs& l = logprobs_[i];
      const int place = n_top[i].first;
      if (outcomes_[static_cast<size_t>(place)] != orcaserve::SampleOutcome::kOk) continue;
      all.append(nb::make_tuple(place, l.logprob, l.rank, Ids(l.top_ids, l.top_ids + l.n_top),
                                std::vector<float>(l.top_logprobs, l.top_logprobs + l.n_top)));
    }
    return all;
  }

  orcaserve::Team& team_;
  orcaserve::Sampler sampler_;
  std::vector<orcaserve::SampleWish> wishes_;
  std::vector<orcaserve::TokenLogprobs> logprobs_;
  std::vector<int32_t> tokens_;
  std::vector<orcaserve::SampleOutcome> outcomes_;
};

}  // namespace

void bind_sampling(nb::module_& m) {
  m.def("uniform", &orcaserve::uniform, "seed"_a, "index"_a);
  nb::class_<BoundSampler>(m, "Sampler")
      .def(nb::init<orcaserve::Team&>(), "team"_a, nb::keep_alive<1, 2>())
      .def("admit", &BoundSampler::admit, "request_id"_a, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a,
           "repetition_penalty"_a, "presence_penalty"_a, "frequency_penalty"_a, "bias_ids"_a, "bias"_a, "min_tokens"_a,
           "stop_ids"_a, "largest_id"_a, "seed"_a, "n_prompt"_a, "seen"_a, "output"_a)
      .def("drop", &BoundSampler::drop, "request_ids"_a)
      .def("take_back", &BoundSampler::take_back, "request_ids"_a)
      .def("sample", &BoundSampler::sample, "logits"_a.noconvert(), "request_ids"_a,
           "masks"_a.noconvert(), "n_top"_a, "rows"_a);
}
