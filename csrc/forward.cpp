// One iteration through a worker's layers: the flat batch goes from operator to operator in one parallel region.
//
// Between operators stands a barrier; within one, units of work are handed out one by one. Every member begins with units
// whose rows it worked on in the operator before, so that they are in its own cache: with rows enough each member (or group
// of members) takes some rows through all outputs; with few rows, all rows through some outputs, so that each weight is
// fetched by one core only. Whoever is done helps the others.
#include "experts.h"
#include "linear_amx.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

constexpr int kAlone = 8;    // up to so many rows every member prepares by itself
// Rows for which a member reads all weights rather than its share of them: as many take longer to compute than to fetch.
constexpr int kRowsPerCut = ORCASERVE_AMX ? 64 : ORCASERVE_VECTOR_BYTES == 64 ? 16 : 32;
constexpr int kRowsPerUnit = 16;
constexpr float kClose = 1.0f;  // logits within it of the largest are computed anew

int least(int a, int b) { return a < b ? a : b; }
int most(int a, int b) { return a > b ? a : b; }

bool is_integer(const Matrix& w) { return w.format == Format::kInt8 || w.format == Format::kInt4; }
int groups_of(const Matrix& w) { return w.n_in_padded / w.group; }

// Hands out pieces of one allocation; with base null it only counts.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<uint8_t*>(base)) {}
  template <typename T>
  T* take(int64_t n) {
    const size_t at = used_;
    used_ += (static_cast<size_t>(n) * sizeof(T) + 63) / 64 * 64;
    return base_ ? reinterpret_cast<T*>(base_ + at) : nullptr;
  }
  size_t used() const { return used_; }

 private:
  uint8_t* base_;
  size_t used_ = 0;
};

// Room for the operand of any of some matrices.
struct OperandRoom {
  int n_in = 0, q_stride = 0, n_groups = 0, exact = 0;
  void fit(const Matrix& w) {
    n_in = most(n_in, w.n_in);
    if (is_integer(w)) fit_integers(w);
  }
  void fit_integers(const Matrix& w) {
    q_stride = most(q_stride, w.n_in_padded);
    n_groups = most(n_groups, groups_of(w));
    exact = most(exact, exact_floats(w.n_exact));
  }
  Operand carve(Carver& c, int rows) const {
    Operand o{};
    o.x = c.take<float>(int64_t{rows} * n_in);
    o.stride = n_in;
    o.q = c.take<int8_t>(int64_t{rows} * q_stride);
    o.scales = c.take<float>(int64_t{rows} * n_groups);
    o.sums = c.take<int32_t>(int64_t{rows} * n_groups);
    o.exact = c.take<float>(int64_t{rows} * exact);
    return o;
  }
  // The same memory from this row on.
  Operand from(Operand o, int64_t row) const {
    o.x += row * n_in;
    o.q += row * q_stride;
    o.scales += row * n_groups;
    o.sums += row * n_groups;
    o.exact += row * exact;
    return o;
  }
};

// The same memory, seen as rows for one matrix.
Operand shaped(const Operand& room, const Matrix& w) {
  Operand o = room;
  o.stride = w.n_in;
  o.q_stride = w.n_in_padded;
  o.n_groups = is_integer(w) ? groups_of(w) : 0;
  return o;
}

using Multiply = void (*)(const Matrix&, int, const Operand&, int, int, float*, const uint8_t*);

Multiply multiply_of(Format format) {
  switch (format) {
    case Format::kFloat32: return multiply_float32;
    case Format::kBFloat16: return multiply_bfloat16;
    case Format::kInt8: return multiply_int8;
    default: return multiply_int4;
  }
}

// Where the results of a Linear go.
struct Sink {
  enum Kind { kStore, kAdd, kActivate, kGate } kind;
  float* y;
  int64_t stride;
  Activation activation = Activation::kSilu;
};

// How an operator is cut: into n_cuts runs of rows, each shared by `sharers` members.
struct Cut {
  int n_cuts;
  int sharers;
  Cut(int n_rows, int n_members) : n_cuts(1) {
    for (int n = 2; n <= n_members && n * kRowsPerCut <= n_rows; ++n)
      if (n_members % n == 0) n_cuts = n;
    sharers = n_members / n_cuts;
  }
};

// Part `i` of n things in `parts`.
struct Range {
  int begin, end;
  Range(int64_t n, int i, int parts)
      : begin(static_cast<int>(n * i / parts)), end(static_cast<int>(n * (i + 1) / parts)) {}
  int size() const { return end - begin; }
};

// What the rows of a block gain from their adapters in one Linear; t holds the first of the two small products.
struct Adapting {
  const AdapterRows* block;  // null: none has one
  AdaptedLinear AdaptedLayer::*linear;
  int layer;
  float* t;  // [rows of the block][stride]
  int64_t stride;

  const AdaptedLinear& of(const AdapterRun& run) const { return run.adapter->layers[layer].*linear; }

  // The first one, of a piece's rows of the operand of `m`.
  void multiply_by_a(const AdapterRun& piece, const Matrix& m, const Operand& x) const {
    const AdaptedLinear& w = of(piece);
    if (w.width > 0) shrink(w, m, x, block->rows + piece.first, piece.n, t, stride);
  }

  // Of rising rows, the first one that is not before `row`.
  static const int32_t* first_from(int row, const int32_t* begin, const int32_t* end) {
    while (begin < end) {
      const int32_t* middle = begin + (end - begin) / 2;
      if (*middle < row)
        begin = middle + 1;
      else
        end = middle;
    }
    return begin;
  }

  // The second one, of a tile of n rows from `row` on.
  void add(int panel, int row, int n, float* tile) const {
    for (int i = 0; i < block->n_runs; ++i) {
      const AdapterRun& run = block->runs[i];
      const int32_t *begin = block->rows + run.first, *end = begin + run.n;
      if (*begin < row) begin = first_from(row, begin, end);
      if (begin < end && end[-1] >= row + n) end = first_from(row + n, begin, end);
      const AdaptedLinear& w = of(run);
      if (begin < end && w.width > 0)
        expand(w, panel, t, stride, begin, static_cast<int>(end - begin), row, tile);
    }
  }
};

// One Linear under way.
struct Product {
  const Matrix& w;
  const Operand& x;
  const Sink& sink;
  Multiply multiply_panel;
  bool gated;
  int width;  // columns of the result
  const Adapting& adapting;

  void product(int panel, int row, int n_rows, float* tile, const uint8_t* ahead) const {
    if (ahead != nullptr) {  // the next panel's exact weights
      const int64_t n = int64_t{w.n_exact} * kPanel;
      for (int64_t i = 0; i < n; i += 32) __builtin_prefetch(w.exact_weights + (panel + 1) * n + i);
    }
    multiply_panel(w, panel, x, row, n_rows, tile, ahead);
    if (adapting.block) adapting.add(panel, row, n_rows, tile);
  }

  // Outputs `out` (a panel, or a pair of gate and up) for the rows.
  void compute(int out, const Range& rows, const uint8_t* ahead) const {
    alignas(64) float tiles[2][kTileRows * kPanel];
    const int col = out * kPanel, n_cols = least(kPanel, width - col), panel = gated ? 2 * out : out;
    const float* bias = w.bias ? w.bias + panel * kPanel : nullptr;
    for (int row = rows.begin; row < rows.end; row += kTileRows) {
      const bool is_first = row == rows.begin;
      const int n = least(kTileRows, rows.end - row);
      float* y = sink.y + int64_t{row} * sink.stride + col;
      if (gated) {
        product(panel, row, n, tiles[0], is_first ? w.panels + (panel + 1) * w.panel_bytes : nullptr);
        product(panel + 1, row, n, tiles[1], is_first ? ahead : nullptr);
        gate_tile(sink.activation, tiles[0], tiles[1], n, n_cols, bias, bias ? bias + kPanel : nullptr, y, sink.stride);
        continue;
      }
      product(panel, row, n, tiles[0], is_first ? ahead : nullptr);
      if (sink.kind == Sink::kStore)
        store_tile(tiles[0], n, n_cols, bias, y, sink.stride);
      else if (sink.kind == Sink::kAdd)
        add_tile(tiles[0], n, n_cols, bias, y, sink.stride);
      else
        activate_tile(sink.activation, tiles[0], n, n_cols, bias, y, sink.stride);
    }
  }
};

// Where the share of a matrix begins that one of some members works on first: whole pairs of panels.
const uint8_t* first_weights(const Matrix& w, int sharer, int sharers) {
  return w.panels + (int64_t{w.n_panels} * sharer / sharers & ~int64_t{1}) * w.panel_bytes;
}

// y = x W^T for n_rows rows. then: the matrix that is needed next, or null; its first weights are fetched at the end.
void multiply(const Matrix& w, const Operand& x, int n_rows, const Sink& sink, const Matrix* then, Team& team, int member,
              const Adapting& adapting = {}) {
  const bool gated = sink.kind == Sink::kGate;
  const int step = gated ? 2 : 1, n_outs = w.n_panels / step;
  const Product product{w, x, sink, multiply_of(w.format), gated, gated ? w.n_out / 2 : w.n_out, adapting};
  const Cut cut(n_rows, team.size());
  for (int i = 0; i < team.size(); ++i) {
    const int queue = (member + i) % team.size();
    const int sharer = queue % cut.sharers;
    const Range rows(n_rows, queue / cut.sharers, cut.n_cuts), outs(n_outs, sharer, cut.sharers);
    for (int64_t unit; (unit = team.take_from(queue)) < outs.size();) {
      const int out = outs.begin + static_cast<int>(unit);
      const uint8_t* ahead = nullptr;
      if (out + 1 < outs.end)
        ahead = w.panels + int64_t{out + 1} * step * w.panel_bytes;
      else if (then)
        ahead = first_weights(*then, sharer, cut.sharers);
      product.compute(out, rows, ahead);
    }
  }
  end_multiply();
  team.barrier(member);
}

// Whether something is done with what Linears give before it is added to the hidden states.
bool changes_sums(const Model& m) {
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

// Calls work(row) for all rows: each member for its own ones and then a barrier, or, with few rows, every member for all.
template <typename Work>
void for_rows(int n_rows, bool alone, Team& team, int member, int rows_per_unit, const Work& work) {
  if (alone) {
    for (int row = 0; row < n_rows; ++row) work(row);
    return;
  }
  for (int i = 0; i < team.size(); ++i) {
    const int queue = (member + i) % team.size();
    const Range rows(n_rows, queue, team.size());
    for (int64_t first; (first = team.take_from(queue) * rows_per_unit) < rows.size();)
      for (int row = static_cast<int>(first); row < first + rows_per_unit && row < rows.size(); ++row)
        work(rows.begin + row);
  }
  team.barrier(member);
}

// What one member does in an iteration.
class Pass {
 public:
  Pass(const Model& m, const Iteration& it, const KVRegion& kv, const Workspace& ws, Team& team, int member)
      : m_(m), it_(it), kv_(kv), ws_(ws), team_(team), member_(member), hidden_(m.hidden) {}

  void run() {
    begin();
    for (int i = 0; i < m_.n_layers; ++i) {
      const Layer& layer = m_.layers[i];
      for_blocks([&](int first, int n) { project(layer, i, first, n); });
      attend(i);
      for_blocks([&](int first, int n) { finish(layer, i, first, n); });
    }
    if (m_.last) head();
  }

 private:
  template <typename Work>
  void for_blocks(const Work& work) {
    for (int first = 0; first < it_.n_tokens; first += kRowBlock) work(first, least(kRowBlock, it_.n_tokens - first));
  }

  float* x(int64_t row) const { return it_.hidden + row * hidden_; }

  void begin() {
    for_rows(it_.n_tokens, false, team_, member_, kRowsPerUnit, [&](int row) {
      if (m_.first) embed(row);
      for (int i = 0; i < kRopes; ++i)
        if (m_.ropes[i].dim) rope_rows(m_.ropes[i], it_.frequencies[i], it_, row, 1, ws_.cos[i], ws_.sin[i]);
    });
  }

  void embed(int row) {
    read_row(m_.embedding, it_.token_ids[row], hidden_, x(row));
    if (m_.embedding_scale != 1.0f) scale_row(x(row), hidden_, m_.embedding_scale);
    if (m_.embedding_norm.weight) normalise(m_.norm, m_.norm_eps, m_.embedding_norm, x(row), hidden_, x(row));
    if (m_.positions.rows) {
      const int r = it_.request_of[row];
      add_row(m_.positions, it_.contexts[r] + row - it_.starts[r], hidden_, x(row));
    }
  }

  // A Linear of a layer, or the head.
  struct Linear {
    const Matrix& w;
    int number;                            // of all, in the order of Iteration::observed; -1: it is not observed
    AdaptedLinear AdaptedLayer::*adapted;  // null: it has no adapters
    int layer;
  };

  // The number of a matrix of a layer, or of the head, in Iteration::observed.
  int observed(int layer, int matrix) const { return layer * observed_matrices(m_.n_experts) + matrix; }

  Linear linear_of(const Layer& layer, int index, Matrix Layer::*w) const {
    if (w == &Layer::qkv) return {layer.qkv, observed(index, 0), &AdaptedLayer::qkv, index};
    if (w == &Layer::out) return {layer.out, observed(index, 1), &AdaptedLayer::out, index};
    if (w == &Layer::up) return {layer.up, observed(index, 2), &AdaptedLayer::up, index};
    return {layer.down, observed(index, 3), &AdaptedLayer::down, index};
  }

  // What goes into a Linear: its operand, and what adapters have made of it.
  struct Input {
    Operand x;
    Adapting adapting;
  };

  // Rows that so few make ready are made ready by every member for itself.
  bool is_alone(int n_rows) const { return n_rows <= kAlone && Cut(n_rows, team_.size()).n_cuts == 1 && team_.size() > 1; }

  // What adapters will add to a block of rows that begins with `first`.
  Adapting adapting(const Linear& linear, int first, int n_rows) const {
    if (!it_.adapters || !linear.adapted || it_.adapters[first / kRowBlock].n_runs == 0) return {};
    float* t = is_alone(n_rows) ? ws_.own_adapted + int64_t{kAlone} * member_ * it_.adapter_width : ws_.adapted;
    return {&it_.adapters[first / kRowBlock], linear.adapted, linear.layer, t, it_.adapter_width};
  }

  // The input of a Linear from rows source(i) of floats; with adapters, they follow each other. norm may be null.
  template <typename Source>
  Input prepare(const Linear& linear, const Adapting& adapting, int n_rows, const NormWeights* norm, const Source& source) {
    const Matrix& w = linear.w;
    const bool alone = is_alone(n_rows);
    Operand to = shaped(alone ? ws_.own_of(member_) : ws_.shared, w);
    float* normed = const_cast<float*>(to.x);
    const bool integer = is_integer(w);
    const auto make_ready = [&](int row) {
      const float* from = source(row);
      if (norm) {
        normalise(m_.norm, m_.norm_eps, *norm, from, w.n_in, normed + row * to.stride);
        from = normed + row * to.stride;
      }
      if (integer) quantise(w, from, to, row);
    };
    if (!norm && adapting.block) to.x = source(0);
    if (!adapting.block)
      for_rows(n_rows, alone, team_, member_, kRowsPerUnit, make_ready);
    else
      for_rows(adapting.block->n_pieces, alone, team_, member_, 1, [&](int unit) {
        const AdapterRun& piece = adapting.block->pieces[unit];
        for (int i = 0; i < piece.n; ++i) make_ready(adapting.block->rows[piece.first + i]);
        if (piece.adapter) adapting.multiply_by_a(piece, w, to);
      });
    if (it_.observed && linear.number >= 0 && member_ == 0)
      for (int row = 0; row < n_rows; ++row)
        observe(norm ? normed + row * to.stride : source(row), w.n_in, it_.observed[linear.number]);
    return {to, adapting};
  }

  static void observe(const float* x, int n, double* sums) {
    for (int i = 0; i < n; ++i) sums[i] += double{x[i]} * x[i];
  }

  // The input of a Linear from a block of rows of floats, which begins with `first`; normed if the model has the norm.
  Input read(const Linear& linear, int first, int n_rows, const float* rows, const NormWeights& norm = {}) {
    const Adapting added = adapting(linear, first, n_rows);
    const int64_t stride = linear.w.n_in;
    if (norm.weight || is_integer(linear.w) || added.block)
      return prepare(linear, added, n_rows, norm.weight ? &norm : nullptr, [&](int row) { return rows + row * stride; });
    Operand o{};
    o.x = rows;
    o.stride = stride;
    return {o, added};
  }

  void multiply(const Linear& linear, const Input& input, int n, const Sink& sink, const Matrix* then) {
    ORCASERVE_ISA::multiply(linear.w, input.x, n, sink, then, team_, member_, input.adapting);
  }

  void project(const Layer& layer, int index, int first, int n) {
    const Linear qkv = linear_of(layer, index, &Layer::qkv);
    multiply(qkv, read(qkv, first, n, x(first), layer.attention_norm), n,
             {Sink::kStore, ws_.qkv + int64_t{first} * qkv.w.n_out, qkv.w.n_out}, m_.parallel ? &layer.up : &layer.out);
    if (layer.q_norm.weight) norm_heads(layer, first, n);
  }

  // Norms the queries and keys of some rows where they are.
  void norm_heads(const Layer& layer, int first, int n) {
    const int dim = m_.head_dim;
    const auto norm = [&](const NormWeights& w, float* heads, int n_heads) {
      const int n_together = m_.norms_all_heads ? n_heads : 1;
      for (int head = 0; head < n_heads; head += n_together)
        normalise(m_.norm, m_.norm_eps, w, heads + head * dim, n_together * dim, heads + head * dim);
    };
    for_rows(n, false, team_, member_, kRowsPerUnit, [&](int row) {
      float* heads = ws_.qkv + int64_t{first + row} * layer.qkv.n_out;
      norm(layer.q_norm, heads, m_.n_heads);
      norm(layer.k_norm, heads + m_.n_heads * dim, m_.n_kv_heads);
    });
  }

  void attend(int index) {
    const int rope = m_.layers[index].rope;
    AttentionCall call{};
    call.n_heads = m_.n_heads;
    call.n_kv_heads = m_.n_kv_heads;
    call.head_dim = m_.head_dim;
    call.scale = m_.attention_scale;
    call.softcap = m_.attention_softcap;
    call.alibi = m_.alibi;
    call.window = m_.layers[index].window;
    call.it = &it_;
    call.qkv = ws_.qkv;
    call.out = ws_.attended;
    if (rope >= 0) {
      call.rope_dim = m_.ropes[rope].dim;
      call.cos = ws_.cos[rope];
      call.sin = ws_.sin[rope];
    }
    call.kv = &kv_;
    call.layer = index;
    call.scratch = ws_.attention_scratch;
    call.scratch_floats = ws_.scratch_floats;
    call.partial = ws_.attention_partial;
    ORCASERVE_ISA::attend(call, team_, member_);
    team_.barrier(member_);
  }

  void finish(const Layer& layer, int index, int first, int n) {
    if (m_.parallel) widen(layer, index, first, n, &layer.out);  // before attention is added to what it reads
    const Linear out = linear_of(layer, index, &Layer::out), down = linear_of(layer, index, &Layer::down);
    const float* heads = ws_.attended + int64_t{first} * out.w.n_in;
    const Matrix* after = m_.parallel ? &layer.down : layer.experts ? &layer.router : &layer.up;
    accumulate(out, heads, layer.post_attention_norm, first, n, after, n);
    const Matrix* then = index + 1 < m_.n_layers ? &m_.layers[index + 1].qkv : m_.last ? &m_.head : nullptr;
    const int next = first + n < it_.n_tokens ? first + n : index + 1 < m_.n_layers ? 0 : it_.n_tokens;
    const int n_next = least(kRowBlock, it_.n_tokens - next);
    if (layer.experts) return add_experts(layer, index, first, n, then, n_next);
    if (!m_.parallel) widen(layer, index, first, n, &layer.down);
    accumulate(down, ws_.wide, layer.post_mlp_norm, first, n, then, n_next);
  }

  // The first half of the MLP.
  void widen(const Layer& layer, int index, int first, int n, const Matrix* then) {
    const Linear up = linear_of(layer, index, &Layer::up);
    const Sink sink{m_.gated ? Sink::kGate : Sink::kActivate, ws_.wide, m_.intermediate, m_.activation};
    multiply(up, read(up, first, n, x(first), layer.mlp_norm), n, sink, then);
  }

  // x += scale * norm(rows W^T, summed over shards). n_next: rows of the next such sum.
  void accumulate(const Linear& linear, const float* rows, const NormWeights& norm, int first, int n, const Matrix* then,
                  int n_next) {
    const float scale = m_.residual_scale;
    const bool apart = it_.all_reduce || norm.weight || scale != 1.0f;
    const Sink sink = apart ? Sink{Sink::kStore, ws_.sums, hidden_} : Sink{Sink::kAdd, x(first), hidden_};
    multiply(linear, read(linear, first, n, rows), n, sink, then);
    if (!apart) return;
    reduce(n, n_next);
    for_rows(n, false, team_, member_, kRowsPerUnit, [&](int row) { add_sum(norm, first, row); });
  }

  float* sum(int row) const { return ws_.sums + int64_t{row} * hidden_; }

  // Sums the rows of `sums` over the shards.
  void reduce(int n, int n_next) {
    if (!it_.all_reduce) return;
    if (member_ == 0) it_.all_reduce(it_.all_reduce_context, ws_.sums, int64_t{n} * hidden_, int64_t{n_next} * hidden_);
    team_.barrier(member_);
  }

  // Adds a row of `sums`, which is whole, to the hidden states.
  void add_sum(const NormWeights& norm, int first, int row) {
    float *to = x(first + row), *own = sum(row);
    if (norm.weight) normalise(m_.norm, m_.norm_eps, norm, own, hidden_, own);
    if (m_.residual_scale != 1.0f) return add_scaled(own, hidden_, m_.residual_scale, to);
    for (int i = 0; i < hidden_; ++i) to[i] += own[i];
  }

  // The MLP of a layer of experts: the rows of all requests that chose an expert go through it together.
  void add_experts(const Layer& layer, int index, int first, int n, const Matrix* then, int n_next) {
    const Linear router{layer.router, -1, nullptr, index};
    const Input input = read(router, first, n, x(first), layer.mlp_norm);
    const Operand& states = input.x;
    if (it_.observed && member_ == 0)
      for (int row = 0; row < n; ++row) observe(states.x + row * states.stride, hidden_, it_.observed[observed(index, 2)]);
    multiply(router, input, n, {Sink::kStore, ws_.experts.logits, m_.n_experts}, nullptr);
    const Routing routing = route(n);
    const Operand normed = enter(layer.experts, &Expert::up, routing, -1,
                                 [&](int entry) { return states.x + routing.row_of[entry] * states.stride; });
    const ExpertLinear up{layer.experts, &Expert::up, m_.gated ? 2 : 1}, down{layer.experts, &Expert::down, 1};
    multiply_experts(up, routing, normed, m_.gated ? Sink::kGate : Sink::kActivate, ws_.wide, [&](int queue) {
      return down.weights(routing, Range(down.n_units(routing), queue, team_.size()).begin);
    });
    const Operand wide = enter(layer.experts, &Expert::down, routing, observed(index, 3),
                               [&](int entry) { return ws_.wide + int64_t{entry} * m_.expert_columns; });
    multiply_experts(down, routing, wide, Sink::kStore, ws_.experts.given,
                     [&](int queue) { return then ? first_weights(*then, queue, team_.size()) : nullptr; });
    const auto mix = [&](int row) {
      const int64_t at = int64_t{row} * m_.n_chosen;
      mix_experts(ws_.experts.given, hidden_, routing.places + at, routing.shares + at, m_.n_chosen, sum(row));
    };
    if (it_.all_reduce) {
      for_rows(n, false, team_, member_, kRowsPerUnit, mix);
      reduce(n, n_next);
    }
    for_rows(n, false, team_, member_, kRowsPerUnit, [&](int row) {
      if (!it_.all_reduce) mix(row);
      add_sum(layer.post_mlp_norm, first, row);
    });
  }

  // Which experts the rows go to, by the router's logits. Every member lays it out for itself, which costs less than a barrier.
  Routing route(int n) {
    const ExpertRoom& room = ws_.experts;
    const int k = m_.n_chosen;
    const bool alone = n <= kAlone && team_.size() > 1;
    int32_t* chosen = alone ? room.own_chosen + int64_t{kAlone} * k * member_ : room.chosen;
    float* shares = alone ? room.own_shares + int64_t{kAlone} * k * member_ : room.shares;
    for_rows(n, alone, team_, member_, kRowsPerUnit, [&](int row) {
      const int64_t at = int64_t{row} * k;
      choose_experts(room.logits + int64_t{row} * m_.n_experts, m_.n_experts, k, m_.shares_of_chosen, chosen + at, shares + at);
    });
    return Routing(n, k, m_.n_experts, chosen, shares, room.routings + room.routing_ints * member_);
  }

  // The first or the second matrices of a layer's experts; step: panels of a unit of work.
  struct ExpertLinear {
    const Expert* experts;
    Matrix Expert::*matrix;
    int step;

    const Matrix& of(int expert) const { return experts[expert].*matrix; }
    int n_outs() const { return of(0).n_panels / step; }
    // Units: outputs of the used experts, one expert after the other.
    int64_t n_units(const Routing& r) const { return int64_t{r.n_used} * n_outs(); }
    const uint8_t* weights(const Routing& r, int64_t unit) const {
      const Matrix& w = of(r.used[unit / n_outs()]);
      return w.panels + unit % n_outs() * step * w.panel_bytes;
    }
  };

  // The entries on their way into the experts' matrices: those of an expert are an operand of its own, and begin where as many
  // rows of the room would. index: of expert 0's, if they are observed, else -1.
  template <typename Source>
  Operand enter(const Expert* experts, Matrix Expert::*matrix, const Routing& r, int index, const Source& source) {
    const bool alone = r.n_entries <= kAlone && team_.size() > 1;
    const ExpertRoom& room = ws_.experts;
    const Operand to = alone ? room.room.from(room.own_entries, int64_t{kAlone} * member_) : room.entries;
    for_rows(r.n_entries, alone, team_, member_, kRowsPerUnit, [&](int entry) {
      const int expert = r.expert_of[entry], row = entry - r.begins[expert];
      const Matrix& w = experts[expert].*matrix;
      const Operand own = shaped(room.room.from(to, r.begins[expert]), w);
      const float* from = source(entry);
      if (is_integer(w)) return quantise(w, from, own, row);
      __builtin_memcpy(const_cast<float*>(own.x) + row * own.stride, from, sizeof(float) * static_cast<size_t>(w.n_in));
    });
    if (it_.observed && index >= 0 && member_ == 0)
      for (int entry = 0; entry < r.n_entries; ++entry)
        observe(source(entry), (experts[0].*matrix).n_in, it_.observed[index + r.expert_of[entry]]);
    return to;
  }

  // y: [entries][outputs]. after(queue): weights that are needed next, or null.
  template <typename After>
  void multiply_experts(const ExpertLinear& linear, const Routing& r, const Operand& x, Sink::Kind kind, float* y,
                        const After& after) {
    const int n_outs = linear.n_outs(), width = linear.of(0).n_out / linear.step;
    const Adapting none{};
    for (int i = 0; i < team_.size(); ++i) {
      const int queue = (member_ + i) % team_.size();
      const Range units(linear.n_units(r), queue, team_.size());
      for (int64_t taken; (taken = team_.take_from(queue)) < units.size();) {
        const int unit = units.begin + static_cast<int>(taken), expert = r.used[unit / n_outs], first = r.begins[expert];
        const Matrix& w = linear.of(expert);
        const Operand own = shaped(ws_.experts.room.from(x, first), w);
        const Sink sink{kind, y + int64_t{first} * width, width, m_.activation};
        const Product product{w, own, sink, multiply_of(w.format), kind == Sink::kGate, width, none};
        product.compute(unit % n_outs, Range(r.n_rows(expert), 0, 1),
                        unit + 1 < units.end ? linear.weights(r, unit + 1) : after(queue));
      }
    }
    end_multiply();
    team_.barrier(member_);
  }

  void head() {
    for (int first = 0; first < it_.n_logits; first += kRowBlock) {
      const int n = least(kRowBlock, it_.n_logits - first);
      const Linear head{m_.head, observed(m_.n_layers, 0), nullptr, m_.n_layers};
      const Input input = prepare(head, {}, n, &m_.norm_out, [&](int row) { return x(it_.logit_rows[first + row]); });
      const Operand& operand = input.x;
      multiply(head, input, n, {Sink::kStore, it_.logits + int64_t{first} * m_.vocab, m_.vocab},
               m_.n_layers ? &m_.layers[0].qkv : nullptr);
      const bool scales = m_.logit_scale != 1.0f || m_.logit_softcap != 0.0f;
      if (!m_.head_rows.rows && !scales) continue;
      float* buffer = ws_.head_row + int64_t{hidden_} * member_;
      for_rows(n, false, team_, member_, 1, [&](int row) {
        float* logits = it_.logits + int64_t{first + row} * m_.vocab;
        if (m_.head_rows.rows)
          rescore(m_.head_rows, m_.head.bias, operand.x + row * operand.stride, hidden_, logits, m_.vocab, buffer,
                  kClose / m_.logit_scale);
        if (m_.logit_softcap != 0.0f)
          cap_row(logits, m_.vocab, m_.logit_scale, m_.logit_softcap);
        else if (scales)
          scale_row(logits, m_.vocab, m_.logit_scale);
      });
    }
  }

  const Model& m_;
  const Iteration& it_;
  const KVRegion& kv_;
  const Workspace& ws_;
  Team& team_;
  const int member_;
  const int hidden_;
};

struct LinearWorkspace {
  Operand operand;
  size_t bytes;
  LinearWorkspace(const Matrix& w, int n, void* base) {
    OperandRoom room;
    room.fit(w);
    Carver c(base);
    operand = room.carve(c, n);
    bytes = c.used();
  }
};

}  // namespace

void forward(const Model& m, const Iteration& it, const KVRegion& kv, void* workspace, Team& team) {
  struct Context {
    const Model& m;
    const Iteration& it;
    const KVRegion& kv;
    Workspace ws;
    Team& team;
  } context{m, it, kv, Workspace(m, it, kv, team.size(), workspace), team};
  team.run(
      [](void* p, int member) {
        const Context& c = *static_cast<const Context*>(p);
        Pass(c.m, c.it, c.kv, c.ws, c.team, member).run();
      },
      &context);
}

size_t workspace_bytes(const Model& m, const Iteration& it, const KVRegion& kv, int n_threads) {
  return Workspace(m, it, kv, n_threads, nullptr).bytes;
}

void linear(const Matrix& w, const float* x, int n, float* y, void* workspace, Team& team) {
  struct Context {
    const Matrix& w;
    const float* x;
    int n;
    float* y;
    Operand operand;
    Team& team;
  } context{w, x, n, y, shaped(LinearWorkspace(w, n, workspace).operand, w), team};
  if (!is_integer(w)) context.operand.x = x;
  team.run(
      [](void* p, int member) {
        const Context& c = *static_cast<const Context*>(p);
        if (is_integer(c.w))
          for_rows(c.n, false, c.team, member, kRowsPerUnit, [&](int row) { quantise(c.w, c.x + int64_t{row} * c.w.n_in, c.operand, row); });
        multiply(c.w, c.operand, c.n, {Sink::kStore, c.y, c.w.n_out}, nullptr, c.team, member);
      },
      &context);
}

size_t linear_bytes(const Matrix& w, int n) { return LinearWorkspace(w, n, nullptr).bytes; }

#define ORCASERVE_NAME_(x) #x
#define ORCASERVE_NAME(x) ORCASERVE_NAME_(x)
extern const KernelTable kernels;
const KernelTable kernels{
    ORCASERVE_NAME(ORCASERVE_ISA), forward, workspace_bytes, linear, linear_bytes, attend_alone, attention_scratch_floats,
    attention_partial_floats, sample,
};

}  // namespace orcaserve::ORCASERVE_ISA
