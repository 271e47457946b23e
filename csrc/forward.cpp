// One iteration through a worker's layers: the flat batch goes from operator to operator in one parallel region.
//
// Between operators stands a barrier; within one, units of work (a panel of outputs for a run of rows, a few rows, a block
// of attention) are handed out one by one. With few rows every member prepares all of them for itself, which costs less than
// a barrier.
#include <cstring>

#include "kernels.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

constexpr int kBlock = 512;  // rows that go through an operator together: their activations stay in the cache
constexpr int kAlone = 4;    // up to so many rows every member prepares by itself
constexpr int kUnitsPerMember = 4;

int least(int a, int b) { return a < b ? a : b; }
int most(int a, int b) { return a > b ? a : b; }
int ceil_div(int a, int b) { return (a + b - 1) / b; }

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
  int n_in = 0, q_stride = 0, n_groups = 0;
  void fit(const Matrix& w) {
    n_in = most(n_in, w.n_in);
    if (!is_integer(w)) return;
    q_stride = most(q_stride, w.n_in_padded);
    n_groups = most(n_groups, groups_of(w));
  }
  Operand carve(Carver& c, int rows) const {
    Operand o{};
    o.x = c.take<float>(int64_t{rows} * n_in);
    o.stride = n_in;
    o.q = c.take<int8_t>(int64_t{rows} * q_stride);
    o.scales = c.take<float>(int64_t{rows} * n_groups);
    o.sums = c.take<int32_t>(int64_t{rows} * n_groups);
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

// y = x W^T for n_rows rows. then: the matrix that is needed next, or null.
void multiply(const Matrix& w, const Operand& x, int n_rows, const Sink& sink, const Matrix* then, Team& team, int member) {
  alignas(64) float tiles[2][kTileRows * kPanel];
  const Multiply multiply_panel = multiply_of(w.format);
  const bool gated = sink.kind == Sink::kGate;
  const int n_outs = gated ? w.n_panels / 2 : w.n_panels;  // units across
  // Rows are cut only where there are too few panels for all members.
  const int n_tiles = ceil_div(n_rows, kTileRows);
  const int n_cuts = least(n_tiles, ceil_div(kUnitsPerMember * team.size(), n_outs));
  const int tiles_per_cut = ceil_div(n_tiles, n_cuts);
  const int64_t n_units = int64_t{n_outs} * n_cuts;
  const int width = gated ? w.n_out / 2 : w.n_out;

  const auto panel_data = [&](int64_t unit) { return w.panels + unit / n_cuts * (gated ? 2 : 1) * w.panel_bytes; };
  int64_t unit = team.take();
  while (unit < n_units) {
    const int64_t next = team.take();
    // Fetched while this unit is computed: this member's next panel, or one of the next matrix's first.
    const uint8_t* ahead = nullptr;
    if (next < n_units)
      ahead = next / n_cuts != unit / n_cuts ? panel_data(next) : nullptr;
    else if (then)
      ahead = then->panels + least(member, then->n_panels - 1) * then->panel_bytes;
    const int out = static_cast<int>(unit / n_cuts), col = out * kPanel, n_cols = least(kPanel, width - col);
    const int first = static_cast<int>(unit % n_cuts) * tiles_per_cut * kTileRows;
    const int end = least(n_rows, first + tiles_per_cut * kTileRows);
    for (int row = first; row < end; row += kTileRows) {
      const int n = least(kTileRows, end - row);
      float* y = sink.y + int64_t{row} * sink.stride + col;
      const int panel = gated ? 2 * out : out;
      const float* bias = w.bias ? w.bias + panel * kPanel : nullptr;
      if (gated) {
        const uint8_t* second = row == first ? w.panels + (panel + 1) * w.panel_bytes : nullptr;
        multiply_panel(w, panel, x, row, n, tiles[0], second);
        multiply_panel(w, panel + 1, x, row, n, tiles[1], row == first ? ahead : nullptr);
        gate_tile(sink.activation, tiles[0], tiles[1], n, n_cols, bias, bias ? bias + kPanel : nullptr, y, sink.stride);
        continue;
      }
      multiply_panel(w, panel, x, row, n, tiles[0], row == first ? ahead : nullptr);
      if (sink.kind == Sink::kStore)
        store_tile(tiles[0], n, n_cols, bias, y, sink.stride);
      else if (sink.kind == Sink::kAdd)
        add_tile(tiles[0], n, n_cols, bias, y, sink.stride);
      else
        activate_tile(sink.activation, tiles[0], n, n_cols, bias, y, sink.stride);
    }
    unit = next;
  }
  team.barrier();
}

// Memory of an iteration.
struct Workspace {
  float *qkv, *attended, *wide, *partial_sums, *cos, *sin, *attention_scratch, *attention_partial;
  size_t scratch_floats;
  Operand shared, own;  // own: room for kAlone rows of each member
  int64_t own_q, own_x, own_groups;
  size_t bytes;

  Workspace(const Model& m, const Iteration& it, const KVRegion& kv, int n_threads, void* base) {
    const int64_t n = it.n_tokens, heads = m.n_heads + 2 * int64_t{m.n_kv_heads};
    const int64_t block = least(most(it.n_tokens, it.n_logits), kBlock);
    OperandRoom room;
    for (int i = 0; i < m.n_layers; ++i) {
      const Layer& layer = m.layers[i];
      for (const Matrix* w : {&layer.qkv, &layer.out, &layer.up, &layer.down}) room.fit(*w);
    }
    if (m.last) room.fit(m.head);
    Carver c(base);
    qkv = c.take<float>(n * heads * m.head_dim);
    attended = c.take<float>(n * m.n_heads * m.head_dim);
    wide = c.take<float>(block * m.intermediate);
    partial_sums = c.take<float>(it.all_reduce ? block * m.hidden : 0);
    cos = c.take<float>(n * m.rope_dim / 2);
    sin = c.take<float>(n * m.rope_dim / 2);
    scratch_floats = (ORCASERVE_ISA::attention_scratch_floats(m, kv) + 15) / 16 * 16;
    attention_scratch = c.take<float>(static_cast<int64_t>(scratch_floats) * n_threads);
    attention_partial = c.take<float>(static_cast<int64_t>(ORCASERVE_ISA::attention_partial_floats(m, it, kv)));
    shared = room.carve(c, static_cast<int>(block));
    own = room.carve(c, kAlone * n_threads);
    own_x = int64_t{kAlone} * room.n_in;
    own_q = int64_t{kAlone} * room.q_stride;
    own_groups = int64_t{kAlone} * room.n_groups;
    bytes = c.used();
  }

  Operand own_of(int member) const {
    Operand o = own;
    o.x += own_x * member;
    o.q += own_q * member;
    o.scales += own_groups * member;
    o.sums += own_groups * member;
    return o;
  }
};

// Calls work(row) for all rows: each member its share and then a barrier, or, with few rows, every member all of them.
template <typename Work>
void for_rows(int n_rows, bool alone, Team& team, const Work& work) {
  if (alone) {
    for (int row = 0; row < n_rows; ++row) work(row);
    return;
  }
  const int step = most(1, least(16, n_rows / (kUnitsPerMember * team.size())));
  for (int64_t first; (first = team.take() * step) < n_rows;)
    for (int row = static_cast<int>(first); row < first + step && row < n_rows; ++row) work(row);
  team.barrier();
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
      for_blocks([&](int first, int n) { project(layer, first, n); });
      attend(i);
      for_blocks([&](int first, int n) { finish(layer, i, first, n); });
    }
    if (m_.last) head();
  }

 private:
  template <typename Work>
  void for_blocks(const Work& work) {
    for (int first = 0; first < it_.n_tokens; first += kBlock) work(first, least(kBlock, it_.n_tokens - first));
  }

  float* x(int64_t row) const { return it_.hidden + row * hidden_; }

  void begin() {
    for_rows(it_.n_tokens, false, team_, [&](int row) {
      if (m_.first) {
        read_row(m_.embedding, it_.token_ids[row], hidden_, x(row));
        if (m_.positions.rows) {
          const int r = it_.request_of[row];
          add_row(m_.positions, it_.contexts[r] + row - it_.starts[r], hidden_, x(row));
        }
      }
      if (m_.rope_dim) rope_rows(m_, it_, row, 1, ws_.cos, ws_.sin);
    });
  }

  // The operand of `w` from rows source(i) of floats; norm may be null.
  template <typename Source>
  Operand prepare(const Matrix& w, int n_rows, const NormWeights* norm, const Source& source) {
    const bool alone = n_rows <= kAlone && team_.size() > 1;
    const Operand to = shaped(alone ? ws_.own_of(member_) : ws_.shared, w);
    float* normed = const_cast<float*>(to.x);
    const bool integer = is_integer(w);
    for_rows(n_rows, alone, team_, [&](int row) {
      const float* from = source(row);
      if (norm) {
        normalise(m_.norm, m_.norm_eps, *norm, from, w.n_in, normed + row * to.stride);
        from = normed + row * to.stride;
      }
      if (integer) quantise(w, from, to, row);
    });
    return to;
  }

  // The operand of `w` from consecutive rows of floats, without a norm.
  Operand take(const Matrix& w, int n_rows, const float* rows) {
    if (is_integer(w)) return prepare(w, n_rows, nullptr, [&](int row) { return rows + int64_t{row} * w.n_in; });
    Operand o{};
    o.x = rows;
    o.stride = w.n_in;
    return o;
  }

  void project(const Layer& layer, int first, int n) {
    const Matrix& w = layer.qkv;
    const Operand operand = prepare(w, n, &layer.attention_norm, [&](int row) { return x(first + row); });
    multiply(w, operand, n, {Sink::kStore, ws_.qkv + int64_t{first} * w.n_out, w.n_out}, &layer.out, team_, member_);
  }

  void attend(int index) {
    AttentionCall call{};
    call.n_heads = m_.n_heads;
    call.n_kv_heads = m_.n_kv_heads;
    call.head_dim = m_.head_dim;
    call.scale = m_.attention_scale;
    call.it = &it_;
    call.qkv = ws_.qkv;
    call.out = ws_.attended;
    call.rope_dim = m_.rope_dim;
    call.cos = ws_.cos;
    call.sin = ws_.sin;
    call.kv = &kv_;
    call.layer = index;
    call.scratch = ws_.attention_scratch;
    call.scratch_floats = ws_.scratch_floats;
    call.partial = ws_.attention_partial;
    ORCASERVE_ISA::attend(call, team_, member_);
    team_.barrier();
  }

  void finish(const Layer& layer, int index, int first, int n) {
    const Operand attended = take(layer.out, n, ws_.attended + int64_t{first} * layer.out.n_in);
    accumulate(layer.out, attended, first, n, &layer.up);
    const Operand normed = prepare(layer.up, n, &layer.mlp_norm, [&](int row) { return x(first + row); });
    multiply(layer.up, normed, n, {m_.gated ? Sink::kGate : Sink::kActivate, ws_.wide, m_.intermediate, m_.activation},
             &layer.down, team_, member_);
    const Operand wide = take(layer.down, n, ws_.wide);
    const Matrix* then = index + 1 < m_.n_layers ? &m_.layers[index + 1].qkv : m_.last ? &m_.head : nullptr;
    accumulate(layer.down, wide, first, n, then);
  }

  // x += operand W^T, summed over shards.
  void accumulate(const Matrix& w, const Operand& operand, int first, int n, const Matrix* then) {
    if (!it_.all_reduce) {
      multiply(w, operand, n, {Sink::kAdd, x(first), hidden_}, then, team_, member_);
      return;
    }
    multiply(w, operand, n, {Sink::kStore, ws_.partial_sums, hidden_}, then, team_, member_);
    if (member_ == 0) it_.all_reduce(it_.all_reduce_context, ws_.partial_sums, int64_t{n} * hidden_);
    team_.barrier();
    for_rows(n, false, team_, [&](int row) {
      const float* from = ws_.partial_sums + int64_t{row} * hidden_;
      float* to = x(first + row);
      for (int i = 0; i < hidden_; ++i) to[i] += from[i];
    });
  }

  void head() {
    for (int first = 0; first < it_.n_logits; first += kBlock) {
      const int n = least(kBlock, it_.n_logits - first);
      const Operand operand =
          prepare(m_.head, n, &m_.norm_out, [&](int row) { return x(it_.logit_rows[first + row]); });
      multiply(m_.head, operand, n, {Sink::kStore, it_.logits + int64_t{first} * m_.vocab, m_.vocab},
               m_.n_layers ? &m_.layers[0].qkv : nullptr, team_, member_);
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
          for_rows(c.n, false, c.team, [&](int row) { quantise(c.w, c.x + int64_t{row} * c.w.n_in, c.operand, row); });
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
