// Whole models on mixed batches: the oracle's logits, and the same bits for a request whatever runs beside it, however
// its text was cut, on any number of threads, and in one worker or several.
#include <algorithm>
#include <map>
#include <numeric>

#include "checks.h"
#include "compare.h"
#include "host.h"
#include "oracle.h"
#include "toy_model.h"

namespace orcaserve::check {
namespace {

using Script = std::vector<Batch>;  // iterations

// The iterations of a script, given as how many tokens of which request, with random tokens.
Script write_script(const std::vector<std::vector<std::pair<int, int>>>& iterations, int vocab) {
  Random random(23);
  Script script;
  for (const auto& iteration : iterations) {
    Batch batch;
    for (const auto& [request, n] : iteration) {
      batch.push_back({request, {}});
      for (int i = 0; i < n; ++i) batch.back().tokens.push_back(random.below(vocab));
    }
    script.push_back(std::move(batch));
  }
  return script;
}

// Initiations, chunks of one, increments; requests come, go and change places.
Script mixed(int vocab) {
  return write_script({{{0, 7}, {1, 33}},
                       {{0, 1}, {1, 1}, {2, 50}},
                       {{2, 45}, {0, 1}, {3, 1}, {1, 1}},
                       {{3, 1}, {2, 1}, {0, 1}, {4, 5}},
                       {{4, 1}},
                       {{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}}},
                      vocab);
}

// Texts of more than one part of the keys (512), beside short ones; iterations of more rows than go through a Linear
// together.
Script long_texts(int vocab) {
  return write_script({{{0, 600}, {3, 460}, {1, 3}},
                       {{1, 1}, {0, 1}},
                       {{0, 423}, {1, 1}, {2, 90}},
                       {{0, 1}},
                       {{0, 40}, {2, 1}},
                       {{1, 1}, {2, 1}, {0, 1}}},
                      vocab);
}

// Logits of every iteration.
std::vector<Logits> play(const ToyModel& toy, Storage storage, const Script& script, int n_threads,
                         const std::vector<int>& layers_of_workers) {
  std::vector<NativeModel> workers;
  int first = 0;
  for (int n : layers_of_workers) {
    workers.push_back(toy.native(first, n));
    first += n;
  }
  std::vector<NativeModel*> stages;
  for (NativeModel& worker : workers) stages.push_back(&worker);
  Host host(toy.model(), storage, 240, toy.adapters());
  Team team(n_threads);
  std::vector<Logits> all;
  for (const Batch& batch : script) all.push_back(host.run(stages, team, batch, toy.turns()));
  return all;
}

std::vector<Logits> play(const ToyModel& toy, Storage storage, const Script& script, int n_threads = 1) {
  return play(toy, storage, script, n_threads, {toy.model().n_layers});
}

bool same_bits(const std::vector<Logits>& a, const std::vector<Logits>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t r = 0; r < a[i].size(); ++r)
      if (!check::same_bits(a[i][r], b[i][r])) return false;
  return a.size() == b.size();
}

// What the oracle says of every iteration and request.
using Truth = std::vector<std::vector<Doubles>>;

Truth ask_oracle(const ToyModel& toy, Storage storage, const Script& script) {
  const Oracle oracle(toy.model(), storage);
  std::map<int, Remembered> requests;
  Truth truth;
  for (const Batch& batch : script) {
    truth.emplace_back();
    for (const Piece& piece : batch) {
      Doubles logits;
      const ToyAdapter* adapter = adapter_of(piece.request, toy.adapters());
      for (int token : piece.tokens)
        logits = oracle.step(requests[piece.request], token, toy.turns(), piece.request % 2, adapter);
      truth.back().push_back(std::move(logits));
    }
  }
  return truth;
}

// Prompts that begin alike, in one iteration: the later ones have the first one's pages in their page tables while it
// fills them. So long that the iteration goes through the layers in two pieces, and that some blocks are cut into parts.
struct SharedBeginnings {
  Script shared, apart;

  explicit SharedBeginnings(int vocab) {
    Random random(31);
    const int lengths[] = {600, 1, 37, 480, 1}, shares[] = {0, 592, 592, 48, 16};
    std::vector<int> first;
    Batch together;
    for (int r = 0; r < 5; ++r) {
      Piece own{2 * r, {}};  // all take the same set of frequencies
      for (int i = 0; i < lengths[r]; ++i) own.tokens.push_back(random.below(vocab));
      if (r == 0) first = own.tokens;
      Piece whole = own;
      whole.tokens.insert(whole.tokens.begin(), first.begin(), first.begin() + shares[r]);
      if (r > 0) {
        own.before = 0;
        own.n_shared = shares[r];
      }
      together.push_back(own);
      apart.push_back({whole});
    }
    shared.push_back(together);
    for (int step = 0; step < 2; ++step) {  // and then on pages that nobody fills any more
      Batch next;
      for (int r = 0; r < 5; ++r) {
        next.push_back({2 * r, {random.below(vocab)}});
        apart.push_back({next.back()});
      }
      shared.push_back(next);
    }
  }
};

void expect_same_with_shared_pages(const ToyModel& toy, Storage storage) {
  const SharedBeginnings scripts(toy.model().vocab);
  const std::vector<Logits> apart = play(toy, storage, scripts.apart);
  for (int n_threads : {1, 2, 4}) {
    const std::vector<Logits> shared = play(toy, storage, scripts.shared, n_threads);
    for (size_t i = 0; i < shared.size(); ++i)
      for (size_t r = 0; r < shared[i].size(); ++r)
        expect(check::same_bits(shared[i][r], apart[i * 5 + r][0]),
               "request " + std::to_string(2 * r) + " has other logits with shared pages, on " +
                   std::to_string(n_threads) + " threads");
  }
}

// The sums of squares that the kernels and the oracle collect over some tokens.
void expect_observed(const Shape& shape) {
  const ToyModel toy(shape, Format::kInt8, Format::kInt8);
  NativeModel model = toy.native();
  Host host(toy.model(), Storage::kFloat32, 4);
  Team team(2);
  Script script;
  for (int token : {3, 1, 4, 1, 5, 9, 2, 6}) script.push_back({{0, {token}}});
  const Oracle oracle(toy.model(), Storage::kFloat32);
  Remembered request;
  for (const Batch& batch : script) oracle.step(request, batch[0].tokens[0], toy.turns(), 0);
  std::vector<Doubles> sums;
  std::vector<double*> observed;
  for (size_t i = 0; i < request.squares.size(); ++i) sums.emplace_back(1024);  // more than a matrix has inputs
  for (Doubles& sum : sums) observed.push_back(sum.data());
  for (const Batch& batch : script) host.run({&model}, team, batch, toy.turns(), observed.data());
  for (size_t i = 0; i < sums.size(); ++i)
    if (!request.squares[i].empty())
      expect(distance(sums[i], request.squares[i]) < 0.05, "wrong sums of squares of matrix " + std::to_string(i));
}

struct Case {
  const Shape& shape;
  Format layers, head;
  Storage storage;
  bool adapted = false;

  std::string text() const {
    const std::string other = head == layers ? "" : std::string(", head ") + name(head);
    return shape.name + " " + name(layers) + other + ", K/V " + name(storage) + (adapted ? ", adapters" : "");
  }
};

// The oracle's word for a case does not depend on the instruction set: it is asked once.
const Truth& truth_of(const Case& c, const ToyModel& toy, const Script& script) {
  static std::map<std::string, Truth> known;
  const std::string key = c.text() + std::to_string(script[0][0].tokens.size());
  const auto found = known.find(key);
  return found != known.end() ? found->second : known.emplace(key, ask_oracle(toy, c.storage, script)).first->second;
}

void expect_oracles_logits(const Case& c, const ToyModel& toy, const Script& script,
                           const std::vector<Logits>& logits) {
  const bool rounded = c.storage != Storage::kFloat32 || c.layers == Format::kInt8 || c.layers == Format::kInt4;
  Closeness closeness;
  const Truth& truth = truth_of(c, toy, script);
  for (size_t i = 0; i < truth.size(); ++i)
    for (size_t r = 0; r < truth[i].size(); ++r) closeness.add(logits[i][r], truth[i][r]);
  closeness.expect_within(rounded ? 1e-3 : 1e-5, rounded ? 0.1 : 1e-5);
}

// Each request on its own, its text in the same pieces, or token by token.
void expect_same_alone(const ToyModel& toy, Storage storage, const Script& script, const std::vector<Logits>& logits) {
  std::map<int, std::vector<std::pair<Piece, Array<float>>>> requests;
  for (size_t i = 0; i < script.size(); ++i)
    for (size_t r = 0; r < script[i].size(); ++r)
      requests[script[i][r].request].emplace_back(script[i][r], logits[i][r]);
  for (const auto& [request, pieces] : requests) {
    Script alone, single;
    for (const auto& [piece, row] : pieces) {
      alone.push_back({piece});
      for (int token : piece.tokens) single.push_back({{piece.request, {token}}});
    }
    const std::vector<Logits> same = play(toy, storage, alone), slow = play(toy, storage, single);
    size_t token = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      token += pieces[i].first.tokens.size();
      const std::string who = "request " + std::to_string(request) + " has other logits ";
      expect(check::same_bits(same[i][0], pieces[i].second), who + "alone");
      expect(check::same_bits(slow[token - 1][0], pieces[i].second), who + "token by token");
    }
  }
}

// thorough: also request by request.
void check_case(const Case& c, Script (*write)(int), bool thorough) {
  const ToyModel toy(c.shape, c.layers, c.head, c.adapted);
  const Script script = write(toy.model().vocab);
  const std::vector<Logits> logits = play(toy, c.storage, script);
  expect_oracles_logits(c, toy, script, logits);
  for (int n_threads : {2, 4}) {
    const std::vector<Logits> same = play(toy, c.storage, script, n_threads);
    expect(same_bits(same, logits), std::to_string(n_threads) + " threads change bits");
  }
  const int n_layers = toy.model().n_layers;
  if (n_layers > 1)
    expect(same_bits(play(toy, c.storage, script, 2, {1, n_layers - 1}), logits), "two workers change bits");
  if (thorough) expect_same_alone(toy, c.storage, script, logits);
}

}  // namespace

void check_models(Report& report) {
  const Case cases[] = {
      {kLlama, Format::kFloat32, Format::kFloat32, Storage::kFloat32},
      {kLlama, Format::kInt8, Format::kInt8, Storage::kFloat32},
      {kLlama, Format::kInt4, Format::kInt8, Storage::kFloat32},
      // What is quantised in every place at once: with more layers all rows would differ from the oracle's by some
      // step.
      {kShallow, Format::kInt8, Format::kInt8, Storage::kInt8},
      {kShallow, Format::kInt4, Format::kInt8, Storage::kInt8},
      {kGpt2, Format::kBFloat16, Format::kBFloat16, Storage::kBFloat16},
      {kGpt2, Format::kInt8, Format::kInt8, Storage::kFloat32},
      {kGpt2, Format::kInt4, Format::kFloat32, Storage::kBFloat16},
      {kOdd, Format::kFloat32, Format::kFloat32, Storage::kInt8},
      {kOdd, Format::kInt8, Format::kBFloat16, Storage::kBFloat16},
      {kSandwich, Format::kFloat32, Format::kFloat32, Storage::kFloat32},
      {kSandwich, Format::kInt8, Format::kInt8, Storage::kFloat32},
      {kSandwich, Format::kInt4, Format::kInt8, Storage::kFloat32},
      {kParallel, Format::kFloat32, Format::kFloat32, Storage::kFloat32},
      {kParallel, Format::kFloat32, Format::kFloat32, Storage::kInt8},
      {kWindows, Format::kFloat32, Format::kFloat32, Storage::kInt8},
      {kParallel, Format::kInt8, Format::kFloat32, Storage::kBFloat16},
      {kExperts, Format::kFloat32, Format::kFloat32, Storage::kFloat32},
      {kExperts, Format::kBFloat16, Format::kBFloat16, Storage::kFloat32},
      {kExperts, Format::kInt8, Format::kInt8, Storage::kFloat32},
      {kExperts, Format::kInt4, Format::kInt8, Storage::kFloat32},
      {kManyExperts, Format::kFloat32, Format::kFloat32, Storage::kFloat32},
      {kShallowExperts, Format::kInt8, Format::kInt8, Storage::kInt8},
      {kLlama, Format::kFloat32, Format::kFloat32, Storage::kFloat32, true},
      {kGpt2, Format::kBFloat16, Format::kBFloat16, Storage::kBFloat16, true},
      {kShallow, Format::kInt8, Format::kInt8, Storage::kFloat32, true},
      {kShallow, Format::kInt4, Format::kInt8, Storage::kFloat32, true},
      {kOdd, Format::kInt8, Format::kBFloat16, Storage::kFloat32, true},
      {kParallel, Format::kFloat32, Format::kFloat32, Storage::kFloat32, true},
  };
  for (const Case& c : cases) report.check(c.text(), [&] { check_case(c, mixed, true); });
  for (const Shape* shape : {&kShallow, &kShallowExperts})
    report.check("squares of inputs, " + shape->name, [&] { expect_observed(*shape); });
}

void check_long_texts(Report& report, bool quick) {
  const Case cases[] = {
      {kOdd, Format::kFloat32, Format::kFloat32, Storage::kFloat32},
      {kOdd, Format::kFloat32, Format::kFloat32, Storage::kBFloat16},
      {kOdd, Format::kFloat32, Format::kFloat32, Storage::kInt8},
      {kWindows, Format::kFloat32, Format::kFloat32, Storage::kFloat32},
      {kWindows, Format::kFloat32, Format::kFloat32, Storage::kBFloat16},
      {kWindows, Format::kFloat32, Format::kFloat32, Storage::kInt8},
      {kSandwich, Format::kFloat32, Format::kFloat32, Storage::kInt8},
      {kExperts, Format::kFloat32, Format::kFloat32, Storage::kInt8},
      {kShallow, Format::kInt8, Format::kInt8, Storage::kInt8, true},
  };
  for (const Case& c : cases)
    if (!quick || c.storage == Storage::kInt8)
      report.check("long texts, " + c.text(), [&] { check_case(c, long_texts, !quick); });
  for (const Case& c : cases)
    if (!c.adapted) report.check("shared pages, " + c.text(),
                 [&] { expect_same_with_shared_pages(ToyModel(c.shape, c.layers, c.head), c.storage); });
}

}  // namespace orcaserve::check
