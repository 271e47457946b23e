// The memory of an iteration, carved out of one allocation.
#pragma once

#include "experts.h"
#include "operand.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

constexpr int kAlone = 8;    // up to so many rows every member prepares by itself

// Whether something is done with what Linears give before it is added to the hidden states.
inline bool changes_sums(const Model& m) {
  if (m.residual_scale != 1.0f) return true;
  for (int i = 0; i < m.n_layers; ++i)
    if (m.layers[i].post_attention_norm.weight || m.layers[i].post_mlp_norm.weight) return true;
  return false;
}

// Memory of layers of experts, for a block of rows.
struct ExpertRoom {
  OperandRoom room;
  Operand entries, own_entries;  // own: room for kAlone entries of each member
  float *logits, *given;  // of the router; of the experts, by entries
  // Of the rows or, where there are few of them, of each member for itself; and a Routing's memory of each member.
  int32_t *chosen, *own_chosen, *routings;
  float *shares, *own_shares;
  int64_t routing_ints;

  ExpertRoom() = default;
  ExpertRoom(const Model& m, int block, int n_threads, Carver& c) {
    for (int i = 0; i < m.n_layers; ++i)
      for (int e = 0; m.layers[i].experts && e < m.n_experts; ++e)
        for (const Matrix* w : {&m.layers[i].experts[e].up, &m.layers[i].experts[e].down})
          is_integer(*w) ? room.fit_integers(*w) : room.fit(*w);
    const int64_t n = int64_t{block} * m.n_chosen, alone = int64_t{kAlone} * m.n_chosen * n_threads;
    entries = room.carve(c, static_cast<int>(n));
    own_entries = room.carve(c, kAlone * n_threads);
    logits = c.take<float>(int64_t{block} * m.n_experts);
    given = c.take<float>(n * m.hidden);
    chosen = c.take<int32_t>(n);
    shares = c.take<float>(n);
    own_chosen = c.take<int32_t>(alone);
    own_shares = c.take<float>(alone);
    routing_ints = Routing::ints(block, m.n_chosen, m.n_experts);
    routings = c.take<int32_t>(routing_ints * n_threads);
  }
};

// Memory of an iteration.
struct Workspace {
  float *qkv, *attended, *wide, *sums, *cos[kRopes], *sin[kRopes], *head_row, *attention_scratch, *attention_partial, *adapted, *own_adapted;
  size_t scratch_floats;
  OperandRoom room;
  Operand shared, own;  // own: room for kAlone rows of each member
  ExpertRoom experts;
  size_t bytes;

  Workspace(const Model& m, const Iteration& it, const KVRegion& kv, int n_threads, void* base) {
    const int64_t n = it.n_tokens, heads = m.n_heads + 2 * int64_t{m.n_kv_heads};
    const int64_t block = least(most(it.n_tokens, it.n_logits), kRowBlock);
    for (int i = 0; i < m.n_layers; ++i) {
      const Layer& layer = m.layers[i];
      for (const Matrix* w : {&layer.qkv, &layer.out, &layer.up, &layer.down, &layer.router}) room.fit(*w);
    }
    if (m.last) room.fit(m.head);
    const bool apart = it.all_reduce || changes_sums(m) || m.n_experts > 0;
    Carver c(base);
    qkv = c.take<float>(n * heads * m.head_dim);
    attended = c.take<float>(n * m.n_heads * m.head_dim);
    const int64_t entries = block * m.n_chosen;
    wide = c.take<float>(entries * m.expert_columns > block * m.intermediate ? entries * m.expert_columns : block * m.intermediate);
    if (m.n_experts > 0) experts = ExpertRoom(m, static_cast<int>(block), n_threads, c);
    sums = c.take<float>(apart ? block * m.hidden : 0);
    adapted = c.take<float>(it.adapters ? block * it.adapter_width : 0);
    for (int i = 0; i < kRopes; ++i) {
      cos[i] = c.take<float>(n * m.ropes[i].dim / 2);
      sin[i] = c.take<float>(n * m.ropes[i].dim / 2);
    }
    head_row = c.take<float>(m.head_rows.rows ? int64_t{m.hidden} * n_threads : 0);
    scratch_floats = (ORCASERVE_ISA::attention_scratch_floats(m, kv) + 15) / 16 * 16;
    attention_scratch = c.take<float>(static_cast<int64_t>(scratch_floats) * n_threads);
    attention_partial = c.take<float>(static_cast<int64_t>(ORCASERVE_ISA::attention_partial_floats(m, it, kv)));
    shared = room.carve(c, static_cast<int>(block));
    own = room.carve(c, kAlone * n_threads);
    own_adapted = c.take<float>(it.adapters ? int64_t{kAlone} * n_threads * it.adapter_width : 0);
    bytes = c.used();
  }

  Operand own_of(int member) const { return room.from(own, int64_t{kAlone} * member); }
};

}  // namespace
}  // namespace orcaserve::ORCASERVE_ISA
