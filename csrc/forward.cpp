// One iteration through a worker's layers: the flat batch goes from operator to operator in one parallel region.
//
// Between operators stands a barrier; within one, units of work are handed out one by one. Every member begins with units
// whose rows it worked on in the operator before, so that they are in its own cache: with rows enough each member (or group
// of members) takes some rows through all outputs; with few rows, all rows through some outputs, so that each weight is
// fetched by one core only. Whoever is done helps the others.
#include "product.h"
#include "workspace.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

constexpr float kClose = 1.0f;  // logits within it of the largest are computed anew

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
