// Binding of NativeModel. Weights come as the arrays of orcaserve.native.packing.PackedMatrix and are kept alive here.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "native_model.h"
#include "shared_numbers.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Floats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Halves = nb::ndarray<const uint16_t, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IntRows = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Longs = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using AnyArray = nb::ndarray<nb::c_contig, nb::device::cpu>;

void require(bool ok, const char* message) {
  if (!ok) throw std::invalid_argument(message);
}

template <typename T>
T get(nb::handle object, const char* name) {
  return nb::cast<T>(object.attr(name));
}

// Reads Python objects and remembers the arrays that the result points into.
class Reader {
 public:
  Reader(nb::list& kept, std::deque<std::vector<orcaserve::Expert>>& experts) : kept_(kept), experts_(experts) {}

  const float* floats(nb::handle array, size_t n) {
    if (array.is_none()) return nullptr;
    const auto a = nb::cast<Floats>(array);
    require(a.size() == n, "a vector of weights has a wrong length");
    kept_.append(array);
    return a.data();
  }

  orcaserve::Matrix matrix(nb::handle packed) {
    orcaserve::Matrix w{};
    w.format = static_cast<orcaserve::Format>(get<int>(packed, "format"));
    w.n_out = get<int>(packed, "n_out");
    w.n_in = get<int>(packed, "n_in");
    w.n_in_padded = get<int>(packed, "n_in_padded");
    w.group = get<int>(packed, "group");
    const auto panels = nb::cast<Bytes>(packed.attr("panels"));
    w.n_panels = static_cast<int>(panels.shape(0));
    w.panel_bytes = static_cast<int64_t>(panels.shape(1));
    w.panels = panels.data();
    w.bias = floats(packed.attr("bias"), static_cast<size_t>(w.n_panels) * orcaserve::kPanel);
    kept_.append(packed);
    const nb::object exact = packed.attr("exact");
    if (!exact.is_none()) {
      const auto inputs = nb::cast<Ints>(exact.attr("inputs"));
      w.n_exact = static_cast<int>(inputs.size());
      w.exact = inputs.data();
      const auto weights = nb::cast<Halves>(exact.attr("weights").attr("view")("uint16"));
      require(weights.size() == size_t(w.n_panels) * w.n_exact * orcaserve::kPanel, "exact weights have a wrong size");
      w.exact_weights = weights.data();
      w.kept = floats(exact.attr("kept"), static_cast<size_t>(w.n_in_padded));
      kept_.append(exact);
    }
    return w;
  }

  // A pair (weight, bias or None), or None.
  orcaserve::NormWeights norm(nb::handle pair, size_t n) {
    if (pair.is_none()) return {};
    return {floats(pair[0], n), floats(pair[1], n)};
  }

  // `layer`: an object with the fields of orcaserve.native.model.NativeLayer.
  orcaserve::Layer layer(nb::handle layer, const orcaserve::Model& m) {
    const auto hidden = static_cast<size_t>(m.hidden), dim = static_cast<size_t>(m.head_dim);
    const auto together = [&](int n_heads) { return m.norms_all_heads ? static_cast<size_t>(n_heads) * dim : dim; };
    orcaserve::Layer built{};
    built.attention_norm = norm(layer.attr("attention_norm"), hidden);
    built.qkv = matrix(layer.attr("qkv"));
    built.out = matrix(layer.attr("out"));
    built.mlp_norm = norm(layer.attr("mlp_norm"), hidden);
    const nb::object router = layer.attr("router");
    if (router.is_none()) {
      built.up = matrix(layer.attr("up"));
      built.down = matrix(layer.attr("down"));
    } else {
      built.router = matrix(router);
      experts_.emplace_back();
      for (nb::handle expert : layer.attr("experts")) experts_.back().push_back({matrix(expert.attr("up")), matrix(expert.attr("down"))});
      require(static_cast<int>(experts_.back().size()) == m.n_experts, "a layer has another number of experts than its model");
      built.experts = experts_.back().data();
    }
    built.post_attention_norm = norm(layer.attr("post_attention_norm"), hidden);
    built.post_mlp_norm = norm(layer.attr("post_mlp_norm"), hidden);
    built.q_norm = norm(layer.attr("q_norm"), together(m.n_heads));
    built.k_norm = norm(layer.attr("k_norm"), together(m.n_kv_heads));
    built.rope = get<int>(layer, "rope");
    built.window = get<int>(layer, "window");
    return built;
  }

  // A pair (row format, bytes [rows, bytes of a row]), or None.
  orcaserve::Table table(nb::handle pair) {
    if (pair.is_none()) return {};
    const auto rows = nb::cast<Bytes>(pair[1]);
    kept_.append(pair[1]);
    return {static_cast<orcaserve::RowFormat>(nb::cast<int>(pair[0])), static_cast<int64_t>(rows.shape(0)),
            static_cast<int64_t>(rows.shape(1)), rows.data()};
  }

 private:
  nb::list& kept_;
  std::deque<std::vector<orcaserve::Expert>>& experts_;  // of each layer that has some; a deque: what lies in it never moves
};

struct BoundModel {
  nb::list kept;
  std::deque<std::vector<orcaserve::Expert>> experts;
  std::optional<orcaserve::NativeModel> model;
};

// spec: an object with the sizes of orcaserve.native.model.Shape; layers: objects as NativeLayer there; embedding and head:
// None where another worker has them; head_table: the head's rows as the checkpoint stores them, if it has them in a table.
void make_model(BoundModel* self, nb::handle spec, nb::handle embedding, nb::handle positions, const nb::list& layers,
                nb::handle norm, nb::handle head, nb::handle head_table, nb::handle embedding_norm) {
  new (self) BoundModel();
  Reader read(self->kept, self->experts);
  orcaserve::Model m{};
  m.hidden = get<int>(spec, "hidden");
  m.n_heads = get<int>(spec, "n_heads");
  m.n_kv_heads = get<int>(spec, "n_kv_heads");
  m.head_dim = get<int>(spec, "head_dim");
  m.intermediate = get<int>(spec, "intermediate");
  m.vocab = get<int>(spec, "vocab");
  m.norm = static_cast<orcaserve::Norm>(get<int>(spec, "norm"));
  m.norm_eps = get<float>(spec, "norm_eps");
  m.activation = static_cast<orcaserve::Activation>(get<int>(spec, "activation"));
  m.gated = get<bool>(spec, "gated");
  m.attention_scale = get<float>(spec, "attention_scale");
  m.attention_softcap = get<float>(spec, "attention_softcap");
  const auto ropes = get<std::vector<std::pair<int, float>>>(spec, "ropes");
  require(ropes.size() <= orcaserve::kRopes, "positions turn in more ways than the kernels know");
  for (size_t i = 0; i < ropes.size(); ++i) m.ropes[i] = {ropes[i].first, ropes[i].second};
  m.norms_all_heads = get<bool>(spec, "norms_all_heads");
  m.parallel = get<bool>(spec, "parallel");
  m.n_experts = get<int>(spec, "n_experts");
  m.n_chosen = get<int>(spec, "n_chosen");
  m.expert_columns = get<int>(spec, "expert_columns");
  m.shares_of_chosen = get<bool>(spec, "shares_of_chosen");
  m.embedding_scale = get<float>(spec, "embedding_scale");
  m.residual_scale = get<float>(spec, "residual_scale");
  m.logit_scale = get<float>(spec, "logit_scale");
  m.logit_softcap = get<float>(spec, "logit_softcap");
  m.first = !embedding.is_none();
  m.last = !head.is_none();
  m.alibi = read.floats(spec.attr("alibi"), static_cast<size_t>(m.n_heads));
  m.embedding = read.table(embedding);
  m.positions = read.table(positions);
  const auto hidden = static_cast<size_t>(m.hidden);
  m.embedding_norm = read.norm(embedding_norm, hidden);
  std::vector<orcaserve::Layer> built;
  for (nb::handle layer : layers) built.push_back(read.layer(layer, m));
  if (m.last) {
    m.norm_out = read.norm(norm, hidden);
    m.head = read.matrix(head);
    if (m.head.format == orcaserve::Format::kInt8) m.head_rows = read.table(head_table);
  }
  self->model.emplace(m, std::move(built));
}

struct BoundAdapter {
  nb::list kept;
  const orcaserve::NativeModel* model = nullptr;
  std::vector<orcaserve::AdaptedLayer> layers;
  orcaserve::Adapter adapter{};
};

// Bytes of n rows of `columns` numbers.
size_t adapter_bytes(orcaserve::AdapterNumbers numbers, size_t n, size_t columns) {
  switch (numbers) {
    case orcaserve::AdapterNumbers::kFloat32: return n * columns * 4;
    case orcaserve::AdapterNumbers::kBFloat16: return (n + 1) / 2 * columns * 4;
    case orcaserve::AdapterNumbers::kInt8: return n * columns;
  }
  throw std::invalid_argument("an adapter's numbers are of an unknown kind");
}

// given: an orcaserve.native.adapter.PackedLinear, or None.
orcaserve::AdaptedLinear adapted_linear(nb::list& kept, nb::handle given, const orcaserve::Matrix& w) {
  using orcaserve::AdapterNumbers;
  orcaserve::AdaptedLinear linear{};
  if (given.is_none()) return linear;
  const auto a = get<AnyArray>(given, "a"), b = get<AnyArray>(given, "b");
  const auto a_scales = get<Floats>(given, "a_scales"), exact = get<Floats>(given, "exact"), scales = get<Floats>(given, "scales");
  const auto first = get<Ints>(given, "first"), n = get<Ints>(given, "n");
  const auto at = get<Longs>(given, "at");
  linear.numbers = static_cast<AdapterNumbers>(get<int>(given, "numbers"));
  linear.n_in = w.n_in;
  linear.width = static_cast<int>(scales.size());
  const bool int8 = linear.numbers == AdapterNumbers::kInt8;
  require(int8 == (w.format == orcaserve::Format::kInt8 || w.format == orcaserve::Format::kInt4),
          "an adapter is of eight bits where its matrix is of eight or four, and only there");
  const auto n_in = static_cast<size_t>(int8 ? w.n_in_padded : w.n_in), width = scales.size();
  require(a.nbytes() == adapter_bytes(linear.numbers, n_in, width), "the first product of an adapter has a wrong size");
  require(!int8 || (a_scales.size() == n_in / static_cast<size_t>(w.group) * width &&
                    exact.size() == static_cast<size_t>(w.n_exact) * width),
          "the scales of an adapter have a wrong size");
  const auto n_panels = static_cast<size_t>(w.n_panels);
  require(first.size() == n_panels && n.size() == n_panels && at.size() == n_panels, "an adapter has a wrong number of panels");
  const int whole = int8 ? orcaserve::kAdapterLanes : linear.numbers == AdapterNumbers::kBFloat16 ? 2 : 1;
  for (size_t p = 0; p < n_panels; ++p) {
    const int columns = n.data()[p];
    require(columns >= 0 && columns % whole == 0 && at.data()[p] >= 0 && (!int8 || first.data()[p] % whole == 0),
            "a panel of an adapter has a wrong number of columns");
    const size_t scale_bytes = int8 ? size_t(columns / whole) * orcaserve::kPanel * 2 : 0;
    const size_t bytes = adapter_bytes(linear.numbers, static_cast<size_t>(columns), orcaserve::kPanel) + scale_bytes;
    require(static_cast<size_t>(at.data()[p]) + bytes <= b.nbytes(), "a panel of an adapter reaches beyond its numbers");
  }
  linear.a = a.data();
  linear.a_scales = a_scales.data();
  linear.exact = exact.data();
  linear.scales = scales.data();
  linear.first = first.data();
  linear.n = n.data();
  linear.at = at.data();
  linear.b = static_cast<const uint8_t*>(b.data());
  kept.append(given);
  return linear;
}

// layers: tuples (qkv, out, up, down), one for each of the model's layers.
void make_adapter(BoundAdapter* self, nb::handle of, const nb::list& layers) {
  new (self) BoundAdapter();
  const orcaserve::NativeModel& model = *nb::cast<BoundModel&>(of).model;
  const orcaserve::Model& m = model.model();
  require(layers.size() == static_cast<size_t>(m.n_layers), "an adapter has another number of layers than its model");
  self->kept.append(of);
  self->model = &model;
  for (int i = 0; i < m.n_layers; ++i) {
    const auto given = nb::cast<nb::tuple>(layers[static_cast<size_t>(i)]);
    const orcaserve::Layer& layer = m.layers[i];
    self->layers.push_back({adapted_linear(self->kept, given[0], layer.qkv), adapted_linear(self->kept, given[1], layer.out),
                            adapted_linear(self->kept, given[2], layer.up), adapted_linear(self->kept, given[3], layer.down)});
    const orcaserve::AdaptedLayer& own = self->layers.back();
    for (const orcaserve::AdaptedLinear* linear : {&own.qkv, &own.out, &own.up, &own.down})
      self->adapter.width = std::max(self->adapter.width, linear->width);
  }
  model.check_adapter(self->layers.data());
  self->adapter.layers = self->layers.data();
}

struct BoundRegion {
  nb::list kept;
  orcaserve::KVRegion region{};
};

// keys, values: [layers, ...] of equal bytes; scales: float32 [layers, ...] for int8, else None.
void make_region(BoundRegion* self, int storage, int page_size, int64_t n_pages, nb::handle keys, nb::handle values,
                 nb::handle key_scales, nb::handle value_scales) {
  new (self) BoundRegion();
  const auto k = nb::cast<AnyArray>(keys), v = nb::cast<AnyArray>(values);
  require(k.ndim() > 1 && k.shape(0) > 0 && k.nbytes() == v.nbytes() && k.shape(0) == v.shape(0),
          "keys and values must be arrays [layers, ...] of the same size");
  orcaserve::KVRegion& region = self->region;
  region.storage = static_cast<orcaserve::Storage>(storage);
  region.page_size = page_size;
  region.n_pages = n_pages;
  region.keys = static_cast<uint8_t*>(k.data());
  region.values = static_cast<uint8_t*>(v.data());
  region.layer_bytes = static_cast<int64_t>(k.nbytes() / k.shape(0));
  for (nb::handle array : {keys, values, key_scales, value_scales}) self->kept.append(array);
  if (key_scales.is_none() || value_scales.is_none()) return;
  const auto ks = nb::cast<Floats>(key_scales), vs = nb::cast<Floats>(value_scales);
  require(ks.size() == vs.size() && ks.size() % k.shape(0) == 0, "key and value scales must have the same size");
  region.key_scales = const_cast<float*>(ks.data());
  region.value_scales = const_cast<float*>(vs.data());
  region.layer_scales = static_cast<int64_t>(ks.size() / k.shape(0));
}

// The region must have a part for every layer, of the model's sizes.
void check_region(const BoundRegion& bound, const orcaserve::Model& m) {
  const orcaserve::KVRegion& kv = bound.region;
  const auto keys = nb::cast<AnyArray>(bound.kept[0]);
  const int64_t slots = kv.n_pages * kv.page_size * m.n_kv_heads;
  const int bytes = kv.storage == orcaserve::Storage::kFloat32 ? 4 : kv.storage == orcaserve::Storage::kBFloat16 ? 2 : 1;
  require(static_cast<int>(keys.shape(0)) >= m.n_layers && kv.layer_bytes == slots * m.head_dim * bytes,
          "the K/V region does not have the model's sizes");
  require(!kv.key_scales || kv.layer_scales == slots, "the scales do not have the K/V region's sizes");
}

// A Python callable on its way through the kernels, which must not be thrown through: its first error waits here.
struct AllReduce {
  nb::callable function;
  std::exception_ptr error;
};

void call_all_reduce(void* context, float* x, int64_t n, int64_t n_next) {
  auto& reduce = *static_cast<AllReduce*>(context);
  if (reduce.error) return;
  nb::gil_scoped_acquire held;
  try {
    reduce.function(reinterpret_cast<uintptr_t>(x), n, n_next);
  } catch (...) {
    reduce.error = std::current_exception();
  }
}

// Inputs of what is observed (Iteration::observed); 0 where a layer has no such matrix.
std::vector<int> observed_lengths(const orcaserve::Model& m) {
  std::vector<int> lengths;
  for (int i = 0; i < m.n_layers; ++i) {
    const orcaserve::Layer& layer = m.layers[i];
    lengths.insert(lengths.end(), {layer.qkv.n_in, layer.out.n_in, m.hidden});
    if (!layer.experts) lengths.push_back(layer.down.n_in);
    for (int e = 0; layer.experts && e < m.n_experts; ++e) lengths.push_back(layer.experts[e].down.n_in);
    lengths.resize(static_cast<size_t>((i + 1) * orcaserve::observed_matrices(m.n_experts)));
  }
  lengths.push_back(m.hidden);
  return lengths;
}

void add_in_shared_memory(void* context, float* x, int64_t n, int64_t) { static_cast<orcaserve::SharedSums*>(context)->add(x, n); }

// frequencies, frequency_sets: of each of the model's ropes [sets, dim / 2], and which set each request takes, or None.
// all_reduce: SharedSums, which the kernels call by themselves, or what is called with address, numbers and next numbers.
void run(BoundModel& self, orcaserve::Team& team, const BoundRegion& kv, const Ints& starts, const Ints& contexts,
         const IntRows& tables, std::optional<Ints> token_ids,
         std::optional<nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>> hidden,
         std::optional<Ints> logit_rows,
         std::optional<nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>> logits,
         const std::vector<nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>>& frequencies,
         const std::vector<std::optional<Ints>>& frequency_sets, nb::handle all_reduce,
         std::optional<std::vector<nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>>> observed, bool shares,
         std::optional<nb::list> adapters) {
  const orcaserve::Model& m = self.model->model();
  const size_t n = contexts.size();
  require(n > 0 && starts.size() == n + 1 && tables.shape(0) == n,
          "starts, contexts and page tables disagree on the number of requests");
  orcaserve::Iteration it{};
  it.n_requests = static_cast<int>(n);
  it.n_tokens = starts.data()[n];
  it.starts = starts.data();
  it.contexts = contexts.data();
  it.table = tables.data();
  it.table_width = static_cast<int64_t>(tables.shape(1));
  it.shares = shares;
  const auto n_tokens = static_cast<size_t>(it.n_tokens < 0 ? 0 : it.n_tokens);
  if (token_ids) {
    require(token_ids->size() == n_tokens, "there must be as many token ids as the layout has rows");
    it.token_ids = token_ids->data();
  }
  if (hidden) {
    require(hidden->shape(0) == n_tokens && hidden->shape(1) == static_cast<size_t>(m.hidden),
            "hidden states must be [tokens, hidden]");
    it.hidden = hidden->data();
  }
  if (logits && logit_rows) {
    require(logits->shape(0) == logit_rows->size() && logits->shape(1) == static_cast<size_t>(m.vocab),
            "logits must be [rows wanted, vocabulary]");
    it.n_logits = static_cast<int>(logit_rows->size());
    it.logit_rows = logit_rows->data();
    it.logits = logits->data();
  }
  require(frequencies.size() <= orcaserve::kRopes && frequency_sets.size() == frequencies.size(),
          "frequencies belong to the model's ropes, and sets to frequencies");
  for (size_t i = 0; i < frequencies.size(); ++i) {
    require(frequencies[i].shape(0) > 0 && frequencies[i].shape(1) == static_cast<size_t>(m.ropes[i].dim / 2),
            "frequencies must be [sets, rope_dim / 2]");
    it.frequencies[i].values = frequencies[i].data();
    const std::optional<Ints>& set = frequency_sets[i];
    if (!set) continue;
    require(set->size() == n, "there must be one set of frequencies per request");
    for (size_t r = 0; r < n; ++r)
      require(set->data()[r] >= 0 && static_cast<size_t>(set->data()[r]) < frequencies[i].shape(0),
              "a request names a set of frequencies that does not exist");
    it.frequencies[i].set = set->data();
  }
  AllReduce reduce{};
  if (nb::isinstance<orcaserve::SharedSums>(all_reduce)) {
    it.all_reduce = add_in_shared_memory;
    it.all_reduce_context = nb::cast<orcaserve::SharedSums*>(all_reduce);
  } else if (!all_reduce.is_none()) {
    reduce.function = nb::cast<nb::callable>(all_reduce);
    it.all_reduce = call_all_reduce;
    it.all_reduce_context = &reduce;
  }
  std::vector<double*> sums;
  if (observed) {
    const std::vector<int> lengths = observed_lengths(m);
    require(observed->size() == lengths.size(), "there must be a vector for every matrix");
    for (size_t i = 0; i < observed->size(); ++i) {
      require((*observed)[i].size() == static_cast<size_t>(lengths[i]), "a vector to observe in has a wrong length");
      sums.push_back((*observed)[i].data());
    }
    it.observed = sums.data();
  }
  std::vector<const orcaserve::Adapter*> adapter_of;
  if (adapters) {
    require(adapters->size() == n, "there must be one adapter per request, or None");
    for (nb::handle each : *adapters) {
      const BoundAdapter* bound = each.is_none() ? nullptr : nb::cast<BoundAdapter*>(each);
      require(!bound || bound->model == &*self.model, "an adapter belongs to another model");
      adapter_of.push_back(bound ? &bound->adapter : nullptr);
    }
  }
  check_region(kv, m);
  {
    nb::gil_scoped_release released;
    self.model->run(it, kv.region, team, adapter_of.empty() ? nullptr : adapter_of.data());
  }
  if (reduce.error) std::rethrow_exception(reduce.error);
}

}  // namespace

void bind_model(nb::module_& m) {
  nb::class_<BoundRegion>(m, "KVRegion")
      .def("__init__", &make_region, "storage"_a, "page_size"_a, "n_pages"_a, "keys"_a, "values"_a,
           "key_scales"_a.none(), "value_scales"_a.none());
  nb::class_<BoundModel>(m, "Model")
      .def("__init__", &make_model, "spec"_a, "embedding"_a.none(), "positions"_a.none(), "layers"_a, "norm"_a.none(),
           "head"_a.none(), "head_table"_a.none() = nb::none(), "embedding_norm"_a.none() = nb::none())
      .def("run", &run, "team"_a, "kv"_a, "starts"_a.noconvert(), "contexts"_a.noconvert(), "page_tables"_a.noconvert(),
           "token_ids"_a.noconvert().none(), "hidden"_a.noconvert().none(), "logit_rows"_a.noconvert().none(),
           "logits"_a.noconvert().none(), "frequencies"_a.noconvert(), "frequency_sets"_a.noconvert(),
           "all_reduce"_a.none() = nb::none(), "observed"_a.none() = nb::none(), "shares"_a = false,
           "adapters"_a.none() = nb::none());
  nb::class_<BoundAdapter>(m, "Adapter").def("__init__", &make_adapter, "model"_a, "layers"_a);
}
