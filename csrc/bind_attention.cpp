// Binding of attention alone and of the cutting of its work, in the instruction set in use; for tests and benchmarks.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "attention.h"
#include "blocks.h"
#include "buffer.h"
#include "isa.h"
#include "team.h"

namespace orcaserve {
#define ORCASERVE_SET(isa)                     \
  namespace isa {                              \
  extern const AttentionTable attention_table; \
  }
#include "instruction_sets.inc"
#undef ORCASERVE_SET
}  // namespace orcaserve

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <typename T, int DIMENSIONS>
using Array = nb::ndarray<T, nb::ndim<DIMENSIONS>, nb::c_contig, nb::device::cpu>;
using Ints = Array<const int32_t, 1>;
using Scales = std::optional<Array<float, 4>>;
using AnyArray = nb::ndarray<nb::c_contig, nb::device::cpu>;

void require(bool ok, const char* message) {
  if (!ok) throw std::invalid_argument(message);
}

const orcaserve::AttentionTable& table() {
  static const orcaserve::AttentionTable* const kTables[] = {
#define ORCASERVE_SET(isa) &orcaserve::isa::attention_table,
#include "instruction_sets.inc"
#undef ORCASERVE_SET
  };
  for (const orcaserve::AttentionTable* t : kTables)
    if (std::strcmp(t->isa, orcaserve::kernels().isa) == 0) return *t;
  throw std::logic_error("no table of the instruction set in use");
}

// The layout of an iteration with what the kernels need beside it.
struct Layout {
  orcaserve::Iteration it{};
  std::vector<int32_t> request_of;
  std::vector<orcaserve::Block> blocks;

  Layout(const Ints& starts, const Ints& contexts, const Array<const int32_t, 2>& tables) {
    const size_t n = contexts.size();
    require(n > 0 && starts.size() == n + 1 && tables.shape(0) == n,
            "starts, contexts and page tables disagree on the number of requests, or there is none");
    it.n_requests = static_cast<int>(n);
    it.n_tokens = starts.data()[n];
    it.starts = starts.data();
    it.contexts = contexts.data();
    it.table = tables.data();
    it.table_width = static_cast<int64_t>(tables.shape(1));
  }

  // After the check of the layout.
  void cut(const orcaserve::Model& m, int n_threads) {
    request_of.resize(static_cast<size_t>(it.n_tokens));
    for (int r = 0; r < it.n_requests; ++r)
      std::fill(request_of.begin() + it.starts[r], request_of.begin() + it.starts[r + 1], r);
    it.request_of = request_of.data();
    const int group = m.n_heads / m.n_kv_heads;
    blocks = orcaserve::cut_blocks(it.starts, it.contexts, it.n_requests, group, m.n_kv_heads, n_threads);
    it.blocks = blocks.data();
    it.n_blocks = static_cast<int64_t>(blocks.size());
  }
};

// keys, values: [layers, pages, kv heads, ...]; scales: [layers, pages, kv heads, page_size] of int8, else None.
orcaserve::KVRegion region(int storage, int page_size, int head_dim, const AnyArray& keys, const AnyArray& values,
                           const Scales& key_scales, const Scales& value_scales) {
  require(storage >= 0 && storage <= 2, "no such storage");
  require(keys.ndim() >= 5 && keys.nbytes() == values.nbytes() && keys.shape(0) == values.shape(0),
          "keys and values must be [layers, pages, kv heads, ...] of the same size");
  orcaserve::KVRegion kv{};
  kv.storage = static_cast<orcaserve::Storage>(storage);
  kv.page_size = page_size;
  kv.n_pages = static_cast<int64_t>(keys.shape(1));
  kv.keys = static_cast<uint8_t*>(keys.data());
  kv.values = static_cast<uint8_t*>(values.data());
  kv.layer_scales = kv.n_pages * static_cast<int64_t>(keys.shape(2)) * page_size;
  kv.layer_bytes = kv.layer_scales * head_dim * (storage == 0 ? 4 : storage == 1 ? 2 : 1);
  require(keys.nbytes() == keys.shape(0) * static_cast<size_t>(kv.layer_bytes), "keys do not have the region's sizes");
  if (storage != 2) return kv;
  const size_t scales = keys.shape(0) * static_cast<size_t>(kv.layer_scales);
  require(key_scales && value_scales && key_scales->size() == scales && value_scales->size() == scales,
          "int8 K/V needs scales, one per token and head");
  kv.key_scales = key_scales->data();
  kv.value_scales = value_scales->data();
  return kv;
}

void attend(orcaserve::Team& team, const Array<const float, 2>& qkv, const Array<float, 2>& out, int head_dim,
            float scale, int storage, int page_size, const AnyArray& keys, const AnyArray& values,
            const Scales& key_scales, const Scales& value_scales, int first_layer, int n_layers, const Ints& starts,
            const Ints& contexts, const Array<const int32_t, 2>& tables, int rope_dim, float rope_amplitude,
            const std::optional<Array<const float, 2>>& frequencies, const std::optional<Ints>& frequency_set,
            int cut_for, bool shares, int window, float softcap, const std::optional<Array<const float, 1>>& alibi) {
  require(head_dim > 0 && head_dim % 4 == 0, "head_dim must be a positive multiple of 4");
  const orcaserve::KVRegion kv = region(storage, page_size, head_dim, keys, values, key_scales, value_scales);
  require(first_layer >= 0 && n_layers > 0 && first_layer + n_layers <= static_cast<int>(keys.shape(0)),
          "a layer lies outside the region");
  orcaserve::Model m{};
  m.head_dim = head_dim;
  m.n_kv_heads = static_cast<int>(keys.shape(2));
  m.n_heads = static_cast<int>(out.shape(1)) / head_dim;
  const orcaserve::Rope rope{rope_dim, rope_amplitude};
  orcaserve::Frequencies turned_by{};
  require(m.n_heads > 0 && m.n_heads % m.n_kv_heads == 0, "n_heads must be a multiple of n_kv_heads");
  require(rope_dim >= 0 && rope_dim <= head_dim && rope_dim % 2 == 0, "rope_dim must be even and at most head_dim");

  Layout layout(starts, contexts, tables);
  orcaserve::Iteration& it = layout.it;
  require(window >= 0 && softcap >= 0, "window and softcap must not be negative");
  require(!alibi || alibi->size() == static_cast<size_t>(m.n_heads), "alibi must have a slope for every head");
  check_layout(it, kv, window);
  require(qkv.shape(0) == static_cast<size_t>(it.n_tokens) && out.shape(0) == qkv.shape(0) &&
              qkv.shape(1) == static_cast<size_t>((m.n_heads + 2 * m.n_kv_heads) * head_dim) &&
              out.shape(1) == static_cast<size_t>(m.n_heads * head_dim),
          "qkv must be [tokens, (n_heads + 2 n_kv_heads) * head_dim], and out [tokens, n_heads * head_dim]");
  if (rope_dim > 0) {
    require(frequencies && frequencies->shape(1) == static_cast<size_t>(rope_dim / 2) && frequencies->shape(0) > 0,
            "frequencies must be [sets, rope_dim / 2]");
    turned_by.values = frequencies->data();
  }
  if (frequency_set) {
    require(frequency_set->size() == contexts.size(), "there must be one set of frequencies per request");
    for (size_t r = 0; r < frequency_set->size(); ++r)
      require(frequencies && frequency_set->data()[r] >= 0 &&
                  static_cast<size_t>(frequency_set->data()[r]) < frequencies->shape(0),
              "a request names a set of frequencies that does not exist");
    turned_by.set = frequency_set->data();
  }
  layout.cut(m, cut_for > 0 ? cut_for : team.size());
  it.shares = shares;

  nb::gil_scoped_release released;
  const orcaserve::KernelTable& kernels = orcaserve::kernels();
  const size_t turned = static_cast<size_t>(it.n_tokens) * static_cast<size_t>(rope_dim / 2);
  std::vector<float> cos(turned), sin(turned);
  table().rope_rows(rope, turned_by, it, 0, rope_dim > 0 ? it.n_tokens : 0, cos.data(), sin.data());
  const size_t scratch_floats = (kernels.attention_scratch_floats(m, kv) + 15) / 16 * 16;
  std::vector<float> partial(kernels.attention_partial_floats(m, it, kv));
  orcaserve::Buffer scratch;
  orcaserve::AttentionCall call{};
  call.n_heads = m.n_heads;
  call.n_kv_heads = m.n_kv_heads;
  call.head_dim = head_dim;
  call.scale = scale;
  call.softcap = softcap;
  call.alibi = alibi ? alibi->data() : nullptr;
  call.window = window;
  call.it = &it;
  call.qkv = qkv.data();
  call.out = out.data();
  call.rope_dim = rope_dim;
  call.cos = cos.data();
  call.sin = sin.data();
  call.kv = &kv;
  call.scratch_floats = scratch_floats;
  // Of all threads: every layer is a run, and between runs members may come back.
  const size_t scratch_bytes = scratch_floats * sizeof(float) * static_cast<size_t>(team.n_threads());
  call.scratch = static_cast<float*>(scratch.reserve(scratch_bytes));
  call.partial = partial.data();
  for (int layer = first_layer; layer < first_layer + n_layers; ++layer) {
    call.layer = layer;
    kernels.attend(call, team);
  }
}

using BlockTuple = std::tuple<int, int, int, int, int, int, int64_t, int>;

std::vector<BlockTuple> cut_blocks(const Ints& starts, const Ints& contexts, int group, int n_kv_heads, int n_threads) {
  require(contexts.size() > 0 && starts.size() == contexts.size() + 1 && group > 0, "starts and contexts disagree");
  std::vector<BlockTuple> blocks;
  const int n = static_cast<int>(contexts.size());
  for (const orcaserve::Block& b :
       orcaserve::cut_blocks(starts.data(), contexts.data(), n, group, n_kv_heads, n_threads))
    blocks.emplace_back(b.request, b.first, b.n, b.part, b.n_parts, b.split, b.partial, b.home);
  return blocks;
}

}  // namespace

void bind_attention(nb::module_& m) {
  nb::module_ a = m.def_submodule("attention", "Attention alone, in the set in use; for tests and benchmarks.");
  a.attr("PART_KEYS") = orcaserve::kPartKeys;
  a.attr("BLOCK_ROWS") = orcaserve::kBlockRows;
  a.def("attend", &attend, "team"_a, "qkv"_a.noconvert(), "out"_a.noconvert(), "head_dim"_a, "scale"_a, "storage"_a,
        "page_size"_a, "keys"_a.noconvert(), "values"_a.noconvert(), "key_scales"_a.noconvert().none(),
        "value_scales"_a.noconvert().none(), "first_layer"_a, "n_layers"_a, "starts"_a.noconvert(),
        "contexts"_a.noconvert(), "tables"_a.noconvert(), "rope_dim"_a, "rope_amplitude"_a,
        "frequencies"_a.noconvert().none(), "frequency_set"_a.noconvert().none(), "cut_for"_a, "shares"_a = false,
        "window"_a = 0, "softcap"_a = 0.0f, "alibi"_a.noconvert().none() = nb::none());
  a.def("cut_blocks", &cut_blocks, "starts"_a.noconvert(), "contexts"_a.noconvert(), "group"_a, "n_kv_heads"_a,
        "n_threads"_a);
}
