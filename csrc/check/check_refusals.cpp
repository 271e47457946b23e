// What would read or write elsewhere is refused with std::invalid_argument before a kernel sees it.
#include <functional>
#include <stdexcept>

#include "../isa.h"
#include "checks.h"
#include "host.h"
#include "toy_model.h"

namespace orcaserve::check {
namespace {

void expect_refused(const std::string& what, const std::function<void()>& work) {
  try {
    work();
  } catch (const std::invalid_argument&) {
    return;
  }
  throw std::runtime_error(what + " was accepted");
}

// A sound iteration of two requests, to be spoilt.
struct Sound {
  Array<int32_t> starts{0, 2, 3}, contexts{0, 16}, table{0, 1, 2, 3}, tokens{1, 2, 3}, rows{1, 2}, sets{0, 1};
  Array<float> logits;
  Iteration it{};

  explicit Sound(const ToyModel& toy) : logits(static_cast<size_t>(2 * toy.model().vocab)) {
    it.n_requests = 2;
    it.n_tokens = 3;
    it.starts = starts.data();
    it.contexts = contexts.data();
    it.table = table.data();
    it.table_width = 2;
    it.token_ids = tokens.data();
    it.n_logits = 2;
    it.logit_rows = rows.data();
    it.logits = logits.data();
    it.frequencies[0] = {toy.turns()[0].data(), sets.data()};
  }
};

void refuses_layouts() {
  const ToyModel toy(kLlama, Format::kFloat32, Format::kFloat32);
  NativeModel model = toy.native();
  Host host(toy.model(), Storage::kFloat32, 4);
  Team team(2);
  const auto run = [&](const std::function<void(Sound&)>& spoil) {
    Sound sound(toy);
    spoil(sound);
    model.run(sound.it, host.region(), team);
  };
  run([](Sound&) {});
  const std::pair<const char*, std::function<void(Sound&)>> kSpoilt[] = {
      {"a token id outside the embedding", [](Sound& s) { s.tokens[1] = 151; }},
      {"a negative token id", [](Sound& s) { s.tokens[0] = -1; }},
      {"a page outside the region", [](Sound& s) { s.table[2] = 4; }},
      {"a negative page", [](Sound& s) { s.table[3] = -1; }},
      {"a negative context", [](Sound& s) { s.contexts[0] = -1; }},
      {"a context beyond the page table", [](Sound& s) { s.contexts[0] = 32; }},
      {"starts that do not begin with 0", [](Sound& s) { s.starts[0] = 1; }},
      {"starts that do not increase", [](Sound& s) { s.starts[1] = 3; }},
      {"starts that end elsewhere", [](Sound& s) { s.it.n_tokens = 2; }},
      {"a row of logits outside the batch", [](Sound& s) { s.rows[1] = 3; }},
      {"no room for logits", [](Sound& s) { s.it.logits = nullptr; }},
      {"no token ids", [](Sound& s) { s.it.token_ids = nullptr; }},
      {"no frequencies", [](Sound& s) { s.it.frequencies[0].values = nullptr; }},
  };
  for (const auto& [what, spoil] : kSpoilt) expect_refused(what, [&] { run(spoil); });
  expect_refused("pages of 8 slots", [&] {
    Sound sound(toy);
    KVRegion kv = host.region();
    kv.page_size = 8;
    model.run(sound.it, kv, team);
  });
  expect_refused("int8 K/V without scales", [&] {
    Sound sound(toy);
    KVRegion kv = host.region();
    kv.storage = Storage::kInt8;
    model.run(sound.it, kv, team);
  });
}

// Where all layers have windows, pages before all of them have been given back: nothing is asked of their numbers.
void refuses_pages_in_windows() {
  const ToyModel toy(kLlama, Format::kFloat32, Format::kFloat32);
  for (int window : {9, 17, 0}) {
    std::vector<Layer> layers(toy.model().layers, toy.model().layers + toy.model().n_layers);
    layers[0].window = window;
    layers[1].window = 8;
    NativeModel model(toy.model(), layers);
    Host host(toy.model(), Storage::kFloat32, 4);
    Team team(2);
    Sound sound(toy);
    sound.contexts[1] = 24;  // with a window of 9 it sees keys from 16 on: none of its first page
    sound.table[2] = -1;
    const auto run = [&] { model.run(sound.it, host.region(), team); };
    if (window == 9)
      run();
    else
      expect_refused("a page in a window that is none", run);
  }
}

void refuses_models() {
  const ToyModel toy(kLlama, Format::kInt8, Format::kInt8);
  const auto build = [&](const std::function<void(Model&, Layer&)>& spoil) {
    Model model = toy.model();
    std::vector<Layer> layers(model.layers, model.layers + model.n_layers);
    spoil(model, layers[1]);
    NativeModel native(model, layers);
  };
  build([](Model&, Layer&) {});
  const std::pair<const char*, std::function<void(Model&, Layer&)>> kSpoilt[] = {
      {"a matrix of another size", [](Model&, Layer& layer) { layer.down.n_in -= 1; }},
      {"too few panels", [](Model&, Layer& layer) { layer.up.n_panels -= 1; }},
      {"panels of another size", [](Model&, Layer& layer) { layer.qkv.panel_bytes -= 64; }},
      {"panels off the cache line", [](Model&, Layer& layer) { layer.out.panels += 4; }},
      {"no norm before the head", [](Model& model, Layer&) { model.norm_out.weight = nullptr; }},
      {"a norm of queries alone", [](Model& model, Layer& layer) { layer.q_norm = model.norm_out; }},
      {"a way to turn that does not exist", [](Model&, Layer& layer) { layer.rope = kRopes; }},
      {"a negative window", [](Model&, Layer& layer) { layer.window = -1; }},
      {"logits that all become 0", [](Model& model, Layer&) { model.logit_scale = 0; }},
      {"heads that do not share evenly", [](Model& model, Layer&) { model.n_kv_heads = 3; }},
      {"a head of 10 dimensions", [](Model& model, Layer&) { model.head_dim = 10; }},
      {"more turned dimensions than a head has", [](Model& model, Layer&) { model.ropes[0].dim = 22; }},
      {"no embedding", [](Model& model, Layer&) { model.embedding.rows = nullptr; }},
  };
  for (const auto& [what, spoil] : kSpoilt) expect_refused(what, [&] { build(spoil); });
}

void refuses_experts() {
  const ToyModel toy(kExperts, Format::kInt8, Format::kInt8);
  const auto build = [&](const std::function<void(Model&, Layer&, std::vector<Expert>&)>& spoil) {
    Model model = toy.model();
    std::vector<Layer> layers(model.layers, model.layers + model.n_layers);
    std::vector<Expert> experts(layers[1].experts, layers[1].experts + model.n_experts);
    layers[1].experts = experts.data();
    spoil(model, layers[1], experts);
    NativeModel native(model, layers);
  };
  build([](Model&, Layer&, std::vector<Expert>&) {});
  const std::pair<const char*, std::function<void(Model&, Layer&, std::vector<Expert>&)>> kSpoilt[] = {
      {"a row that goes nowhere", [](Model& m, Layer&, std::vector<Expert>&) { m.n_chosen = 0; }},
      {"more experts of a row than there are", [](Model& m, Layer&, std::vector<Expert>&) { m.n_chosen = 6; }},
      {"too many experts", [](Model& m, Layer&, std::vector<Expert>&) { m.n_experts = kMostExperts + 1; }},
      {"a router of integers", [](Model&, Layer& l, std::vector<Expert>&) { l.router = l.qkv; }},
      {"a router of other experts", [](Model&, Layer& l, std::vector<Expert>&) { l.router.n_out = 4; }},
      {"an expert of another size", [](Model&, Layer&, std::vector<Expert>& e) { e[3].down.n_in -= 1; }},
      {"an expert without panels", [](Model&, Layer&, std::vector<Expert>& e) { e[4].up.n_panels = 0; }},
      {"experts beside attention", [](Model& m, Layer&, std::vector<Expert>&) { m.parallel = true; }},
  };
  for (const auto& [what, spoil] : kSpoilt) expect_refused(what, [&] { build(spoil); });
}

void refuses_sets() {
  const std::string before = kernels().isa;
  expect_refused("an instruction set of no machine", [] { set_isa("sse5"); });
  expect(before == kernels().isa, "a refused set is in use");
  // There is no machine without a set: `plain` asks for nothing beyond the architecture.
  expect(available_isas()[0] == "plain", "plain is not the first of the sets");
}

}  // namespace

void check_refusals(Report& report) {
  report.check("layouts that reach elsewhere are refused", refuses_layouts);
  report.check("pages before all windows are not asked for", refuses_pages_in_windows);
  report.check("models whose sizes disagree are refused", refuses_models);
  report.check("experts whose sizes disagree are refused", refuses_experts);
  report.check("unknown instruction sets are refused", refuses_sets);
}

}  // namespace orcaserve::check
