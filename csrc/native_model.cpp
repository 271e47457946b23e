#include "native_model.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "blocks.h"
#include "isa.h"
#include "pack.h"

namespace orcaserve {
namespace {

void require(bool ok, const std::string& message) {
  if (!ok) throw std::invalid_argument(message);
}

// A shard of an int8 matrix keeps the groups of the whole, or parts of them; else they follow from the format.
bool fits_group(const Matrix& w) {
  if (w.format != Format::kInt8) return w.group == group_inputs(w.format, w.n_in_padded);
  return w.group > 0 && w.group <= kMaxGroup && w.group % kHadamard == 0 && w.n_in_padded % w.group == 0;
}

// A norm that a model may do without.
void check_norm(const NormWeights& norm, Norm kind, const char* what) {
  require(kind == Norm::kLayer || norm.bias == nullptr, std::string(what) + " of kind RMS has a bias");
}

}  // namespace

void check_matrix(const Matrix& w, const char* what, int n_out, int n_in, bool interleaved) {
  const std::string name(what);
  require(w.n_out == n_out && w.n_in == n_in,
          name + " is [" + std::to_string(w.n_out) + ", " + std::to_string(w.n_in) + "], must be [" +
              std::to_string(n_out) + ", " + std::to_string(n_in) + "]");
  require(w.n_in_padded == padded_inputs(w.format, n_in) && fits_group(w), name + " has groups of a wrong size");
  const int parts = interleaved ? 2 : 1;
  require(w.n_panels == parts * ((n_out / parts + kPanel - 1) / kPanel), name + " has a wrong number of panels");
  require(w.panel_bytes == panel_bytes(w.format, w.n_in_padded, w.group), name + " has panels of a wrong size");
  require(w.n_exact == 0 || (w.format == Format::kInt8 && w.exact && w.exact_weights && w.kept),
          name + " has exact inputs, which only int8 has");
  for (int e = 0; e < w.n_exact; ++e)
    require(w.exact[e] >= 0 && w.exact[e] < n_in, name + " names an exact input that it does not have");
  require(reinterpret_cast<uintptr_t>(w.panels) % 64 == 0, name + " does not begin at a multiple of 64 bytes");
}

NativeModel::NativeModel(const Model& model, std::vector<Layer> layers) : model_(model), layers_(std::move(layers)) {
  Model& m = model_;
  m.layers = layers_.data();
  m.n_layers = static_cast<int>(layers_.size());
  require(m.hidden > 0 && m.head_dim > 0 && m.head_dim % 4 == 0, "head_dim must be a multiple of 4");
  require(m.n_kv_heads > 0 && m.n_heads > 0 && m.n_heads % m.n_kv_heads == 0, "n_heads must be a multiple of n_kv_heads");
  for (const Rope& rope : m.ropes)
    require(rope.dim >= 0 && rope.dim <= m.head_dim && rope.dim % 2 == 0, "rope_dim must be even and at most head_dim");
  require(m.logit_scale > 0, "logit_scale must be positive");
  require(m.logit_softcap >= 0 && m.attention_softcap >= 0, "a softcap must not be negative");
  const int q = m.n_heads * m.head_dim, kv = m.n_kv_heads * m.head_dim;
  for (const Layer& layer : layers_) {
    check_norm(layer.attention_norm, m.norm, "attention_norm");
    check_norm(layer.mlp_norm, m.norm, "mlp_norm");
    check_norm(layer.post_attention_norm, m.norm, "post_attention_norm");
    check_norm(layer.post_mlp_norm, m.norm, "post_mlp_norm");
    check_norm(layer.q_norm, m.norm, "q_norm");
    check_norm(layer.k_norm, m.norm, "k_norm");
    require(!layer.q_norm.weight == !layer.k_norm.weight, "queries and keys are normed, or neither");
    require(layer.window >= 0, "a window must not be negative");
    require(layer.rope >= -1 && layer.rope < kRopes, "a layer names a way to turn that does not exist");
    check_matrix(layer.qkv, "qkv", q + 2 * kv, m.hidden);
    check_matrix(layer.out, "out", m.hidden, q);
    if (layer.experts) {
      check_experts(layer);
      continue;
    }
    check_matrix(layer.up, "up", m.gated ? 2 * m.intermediate : m.intermediate, m.hidden, m.gated);
    check_matrix(layer.down, "down", m.hidden, m.intermediate);
  }
  require(!m.first || m.embedding.rows != nullptr, "the first worker needs the embedding");
  check_norm(m.embedding_norm, m.norm, "embedding_norm");
  const auto by_window = [](const Layer& a, const Layer& b) { return a.window < b.window; };
  if (!layers_.empty() && std::min_element(layers_.begin(), layers_.end(), by_window)->window > 0)
    window_ = std::max_element(layers_.begin(), layers_.end(), by_window)->window;
  if (m.last) {
    require(m.norm_out.weight != nullptr, "the last worker needs the norm before the head");
    check_norm(m.norm_out, m.norm, "norm");
    check_matrix(m.head, "head", m.vocab, m.hidden);
    require(!m.head_rows.rows || m.head_rows.n_rows == m.vocab, "the head's rows are not the vocabulary's");
  }
}

void NativeModel::check_experts(const Layer& layer) const {
  const Model& m = model_;
  require(m.n_experts > 0 && m.n_experts <= kMostExperts, "a layer has 1 to " + std::to_string(kMostExperts) + " experts");
  require(m.n_chosen > 0 && m.n_chosen <= m.n_experts, "a row goes to 1 to " + std::to_string(m.n_experts) + " experts");
  require(!m.parallel, "a layer of experts reads what attention has added to");
  require(layer.router.format == Format::kFloat32 || layer.router.format == Format::kBFloat16, "a router has floats");
  check_matrix(layer.router, "router", m.n_experts, m.hidden);
  for (int e = 0; e < m.n_experts; ++e) {
    const Expert& expert = layer.experts[e];
    const std::string name = "expert " + std::to_string(e) + "'s ";
    check_matrix(expert.up, (name + "up").c_str(), m.gated ? 2 * m.expert_columns : m.expert_columns, m.hidden, m.gated);
    check_matrix(expert.down, (name + "down").c_str(), m.hidden, m.expert_columns);
  }
}

void NativeModel::check(const Iteration& it, const KVRegion& kv) const {
  check_layout(it, kv, window_);
  if (model_.first) {
    require(it.token_ids != nullptr, "the first worker needs token ids");
    for (int i = 0; i < it.n_tokens; ++i)
      require(it.token_ids[i] >= 0 && it.token_ids[i] < model_.embedding.n_rows,
              "token id " + std::to_string(it.token_ids[i]) + " lies outside the embedding");
  } else {
    require(it.hidden != nullptr, "a later worker needs hidden states");
  }
  if (model_.positions.rows)
    for (int r = 0; r < it.n_requests; ++r)
      require(it.contexts[r] + it.starts[r + 1] - it.starts[r] <= model_.positions.n_rows,
              "a request is longer than the table of positions");
  for (int i = 0; i < kRopes; ++i)
    require(model_.ropes[i].dim == 0 || it.frequencies[i].values != nullptr, "rotary positions need frequencies");
  if (model_.last) {
    require(it.n_logits > 0 && it.logits != nullptr, "the last worker needs room for logits");
    for (int i = 0; i < it.n_logits; ++i)
      require(it.logit_rows[i] >= 0 && it.logit_rows[i] < it.n_tokens, "a row of logits lies outside the batch");
  } else {
    require(it.hidden != nullptr, "a worker that is not the last needs room for hidden states");
  }
  require(kv.storage != Storage::kInt8 || (kv.key_scales && kv.value_scales), "int8 K/V needs scales");
}

// Tokens that pass through all layers together. What lies between two operators then stays in the caches: with 4,096 tokens
// every layer would move 100 MB of it. Of fewer, weights are read too often for what is done with them.
constexpr int kPieceTokens = 1024;

void NativeModel::check_adapter(const AdaptedLayer* layers) const {
  for (int i = 0; i < model_.n_layers; ++i) {
    const Layer& layer = model_.layers[i];
    const AdaptedLayer& own = layers[i];
    for (const auto& [adapted, w] : {std::pair{&own.qkv, &layer.qkv}, {&own.out, &layer.out}, {&own.up, &layer.up},
                                     {&own.down, &layer.down}}) {
      require(adapted->width >= 0 && adapted->width % kAdapterLanes == 0, "an adapter has a width that is not filled up");
      if (adapted->width == 0) continue;
      require(adapted->n_in == w->n_in, "an adapter has another number of inputs than its Linear");
      for (int p = 0; p < w->n_panels; ++p)
        require(adapted->first[p] >= 0 && adapted->n[p] >= 0 && adapted->first[p] + adapted->n[p] <= adapted->width,
                "an adapter names columns that it does not have");
    }
  }
}

void NativeModel::run(Iteration it, const KVRegion& kv, Team& team, const Adapter* const* adapter_of) {
  check(it, kv);
  if (!it.hidden)
    it.hidden = static_cast<float*>(hidden_.reserve(sizeof(float) * static_cast<size_t>(it.n_tokens) * model_.hidden));
  const bool in_order = std::is_sorted(it.logit_rows, it.logit_rows + it.n_logits);
  const int n_pieces = in_order ? (it.n_tokens + kPieceTokens - 1) / kPieceTokens : 1;
  for (int piece = 0, end = 0; piece < n_pieces; ++piece) {
    const int begin = end;
    end = static_cast<int>(int64_t{it.n_tokens} * (piece + 1) / n_pieces);
    run_piece(it, begin, end, kv, team, adapter_of);
  }
}

// Tokens begin .. end of the batch, of which everything before has run: a request that goes on here finds its earlier keys
// and values in its pages.
void NativeModel::run_piece(Iteration it, int begin, int end, const KVRegion& kv, Team& team, const Adapter* const* adapter_of) {
  const int first = static_cast<int>(std::upper_bound(it.starts, it.starts + it.n_requests, begin) - it.starts) - 1;
  starts_.assign(1, 0);
  contexts_.clear();
  request_of_.resize(static_cast<size_t>(end - begin));
  it.max_context = 0;
  for (int r = first; r < it.n_requests && it.starts[r] < end; ++r) {
    const int from = std::max(it.starts[r], begin), to = std::min(it.starts[r + 1], end);
    contexts_.push_back(it.contexts[r] + from - it.starts[r]);
    starts_.push_back(to - begin);
    std::fill(request_of_.begin() + (from - begin), request_of_.begin() + (to - begin), r - first);
    it.max_context = std::max(it.max_context, contexts_.back() + to - from);
  }
  const int32_t* const all_end = it.logit_rows + it.n_logits;
  const int32_t* wanted = begin == 0 ? it.logit_rows : std::lower_bound(it.logit_rows, all_end, begin);
  const int32_t* wanted_end = end == it.n_tokens ? all_end : std::lower_bound(wanted, all_end, end);
  logit_rows_.assign(wanted, wanted_end);
  for (int32_t& row : logit_rows_) row -= begin;

  it.logits += (wanted - it.logit_rows) * int64_t{model_.vocab};
  it.logit_rows = logit_rows_.data();
  it.n_logits = static_cast<int>(logit_rows_.size());
  it.n_requests = static_cast<int>(contexts_.size());
  it.n_tokens = end - begin;
  it.starts = starts_.data();
  it.contexts = contexts_.data();
  it.request_of = request_of_.data();
  it.table += first * it.table_width;
  it.hidden += int64_t{begin} * model_.hidden;
  if (it.token_ids) it.token_ids += begin;
  for (Frequencies& frequencies : it.frequencies)
    if (frequencies.set) frequencies.set += first;
  adapters_.lay_out(adapter_of ? adapter_of + first : nullptr, team.size(), &it);
  const std::vector<Block> blocks =
      cut_blocks(it.starts, it.contexts, it.n_requests, model_.n_heads / model_.n_kv_heads, model_.n_kv_heads, team.size());
  it.blocks = blocks.data();
  it.n_blocks = static_cast<int64_t>(blocks.size());
  const KernelTable& table = kernels();
  void* workspace = workspace_.reserve(table.workspace_bytes(model_, it, kv, team.size()));
  table.forward(model_, it, kv, workspace, team);
}

}  // namespace orcaserve
