// What attention shares between the storages: units of work, pages, rotary positions, and the merge of partial softmaxes.
//
// A unit is a run of tokens, a K/V head and a range of keys. Its query rows are the tokens times the query heads that share
// the K/V head; they pass over the keys in steps with a running softmax (Milakov and Gimelshein 2018): per row a maximum, a
// sum of weights and a weighted sum of values, rescaled whenever the maximum grows. It starts anew every kPartKeys keys, and
// the results of such parts are merged in order.
//
// Order of sums. For a row everything runs from its request's key 0 upwards: steps and parts start at fixed multiples, and
// keys that a row may not see add exact zeros. So a row's bits depend on its own query and on the keys it sees; not on the
// tile, the block, the other requests, the number of threads, nor on whether its prompt came whole, in chunks or token by
// token.
#pragma once

#include "attention.h"
#include "kernels.h"
#include "simd.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

constexpr float kInfinity = __builtin_inff();
constexpr int kStrip = 16;  // consecutive keys, from a multiple of 16 on, lie in one page
constexpr int kLine = 64;   // bytes
constexpr int kAhead = 4;   // tokens whose q, k and v are fetched early: they are far apart

// A tile of kQueryTile x kVecTile accumulators, the vectors they are fed from, and a broadcast fit the registers.
constexpr int kQueryTile = kLanes == 4 ? 4 : 6;
constexpr int kVecTile = ORCASERVE_REGISTERS == 32 ? 4 : 2;
static_assert(kQueryTile <= kLanes, "the rescaling factors of a tile are computed in one vector");

inline int least(int a, int b) { return a < b ? a : b; }
inline int most(int a, int b) { return a > b ? a : b; }
inline int round_up(int n) { return (n + kStrip - 1) / kStrip * kStrip; }
inline int padded(int n) { return (n + kLanes - 1) / kLanes * kLanes; }

// Rows of the next tile, of `rest` that are left: no tile of one row behind a full one.
inline int tile_rows(int rest, int largest) {
  return rest <= largest ? rest : rest < 2 * largest ? (rest + 1) / 2 : largest;
}

// The first n <= kLanes floats at p, and zeros; and back.
inline Vec load_up_to(const float* p, int n) { return n == kLanes ? load(p) : load_first(p, n); }
inline void store_up_to(float* p, Vec x, int n) { n == kLanes ? store(p, x) : store_first(p, x, n); }

// Partial softmaxes of some rows.
struct Softmax {
  float* o;    // [rows][stride]: weighted sums of values
  float* sum;  // [rows]: sums of weights
  float* max;  // [rows]: greatest scores
  int stride;

  static size_t floats(int rows, int head_dim) { return static_cast<size_t>(rows) * (padded(head_dim) + 2); }

  Softmax(float* p, int rows, int head_dim)
      : o(p), sum(p + int64_t{rows} * padded(head_dim)), max(sum + rows), stride(padded(head_dim)) {}
};

// Rows first .. end of `into` take in those of `from`, which hold the keys that follow. unit: what a score of 1 stands for, as
// a natural logarithm.
inline void merge(const Softmax& into, const Softmax& from, int first, int end, float unit) {
  for (int row = first; row < end; row += kLanes) {
    const int n = least(kLanes, end - row);
    const Vec a = load_up_to(into.max + row, n), b = load_up_to(from.max + row, n), top = maximum(a, b);
    const Vec keep = exp_nonpositive((a - top) * unit), add = exp_nonpositive((b - top) * unit);
    const Vec sum = load_up_to(into.sum + row, n) * keep + load_up_to(from.sum + row, n) * add;
    store_up_to(into.sum + row, sum, n);
    store_up_to(into.max + row, top, n);
    float keeps[kLanes], adds[kLanes];
    store(keeps, keep);
    store(adds, add);
    for (int r = 0; r < n; ++r) {
      float* o = into.o + int64_t{row + r} * into.stride;
      const float* p = from.o + int64_t{row + r} * from.stride;
      for (int i = 0; i < into.stride; i += kLanes)
        store(o + i, multiply_add(load(p + i), splat(adds[r]), load(o + i) * splat(keeps[r])));
    }
  }
}

// y[head_dim] = x turned by its position: dimension i pairs with i + rope_dim / 2.
inline void turn(const AttentionCall& a, int64_t token, const float* x, float* y) {
  const int half = a.rope_dim / 2;
  const float* cos = a.cos + token * half;
  const float* sin = a.sin + token * half;
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Vec low = load(x + i), high = load(x + half + i), c = load(cos + i), s = load(sin + i);
    store(y + i, low * c - high * s);
    store(y + half + i, high * c + low * s);
  }
  for (; i < half; ++i) {
    const float low = x[i], high = x[half + i];
    y[i] = low * cos[i] - high * sin[i];
    y[half + i] = high * cos[i] + low * sin[i];
  }
  for (i = a.rope_dim; i < a.head_dim; ++i) y[i] = x[i];
}

// The pages of one request and one K/V head.
struct Pages {
  const int32_t* table;
  int n_kv_heads, head, page_size;

  Pages(const AttentionCall& a, int request, int kv_head)
      : table(a.it->table + request * a.it->table_width),
        n_kv_heads(a.n_kv_heads),
        head(kv_head),
        page_size(a.kv->page_size) {}

  // Where the slots of this head begin in the page that holds token t, counted in slots of a head from the layer's first.
  int64_t base(int t) const { return (int64_t{table[t / page_size]} * n_kv_heads + head) * page_size; }
  int slot(int t) const { return t % page_size; }
};

// Keys begin .. end of a request and a K/V head. Empty: nowhere.
struct Keys {
  int request, head, begin, end;
};

struct Unit {
  const Block* block;
  int64_t token;   // row of the flat tensors of its first token
  int group;       // query heads that share the K/V head
  int n_rows;
  int seen;        // keys that its first token sees; each further token sees one more
  Keys keys;
  const int* visible = nullptr;  // keys that each row sees

  Unit(const AttentionCall& a, int64_t index) {
    const Iteration& it = *a.it;
    const Block& b = it.blocks[index / a.n_kv_heads];
    block = &b;
    token = it.starts[b.request] + b.first;
    group = a.n_heads / a.n_kv_heads;
    n_rows = b.n * group;
    seen = it.contexts[b.request] + b.first + 1;
    const int last = seen + b.n - 1, begin = b.part < 0 ? 0 : b.part * kPartKeys;
    const int end = b.part < 0 ? last : least(last, begin + kPartKeys);
    keys = {b.request, static_cast<int>(index % a.n_kv_heads), begin, end};
  }

  // The first row that sees key t.
  int first_row(int t) const { return most(0, t - seen + 1) * group; }
};

// Other blocks attend to the block's keys.
inline bool is_cut(const Iteration& it, const Block& b) { return b.n < it.starts[b.request + 1] - it.starts[b.request]; }

// What one member does in a call. Kernel, the arithmetic of one storage:
//   Kernel(call, rows, memory) of floats(rows, head_dim) floats
//   kUnit: what a score of 1 stands for, as a natural logarithm
//   append(pages, t, k, v): enters the key, which is turned, and the value of token t
//   enter(row, q): takes a query, which is turned
//   attend(unit, first row, keys, into, ahead): the softmax of the rows over these keys, which begin at a multiple of
//     kPartKeys; meanwhile it fetches the first of `ahead`
template <typename Kernel>
class Attention {
 public:
  static int rows(int n_heads, int n_kv_heads) { return most(kBlockRows, n_heads / n_kv_heads); }

  static size_t floats(int rows, int head_dim) {
    return Kernel::floats(rows, head_dim) + 2 * Softmax::floats(rows, head_dim) + static_cast<size_t>(padded(head_dim) + rows);
  }

  Attention(const AttentionCall& call, float* memory)
      : a_(call),
        it_(*call.it),
        n_rows_(rows(call.n_heads, call.n_kv_heads)),
        width_((call.n_heads + 2 * int64_t{call.n_kv_heads}) * call.head_dim),
        total_(memory, n_rows_, call.head_dim),
        part_(memory + Softmax::floats(n_rows_, call.head_dim), n_rows_, call.head_dim),
        turned_(memory + 2 * Softmax::floats(n_rows_, call.head_dim)),
        visible_(reinterpret_cast<int*>(turned_ + padded(call.head_dim))),
        kernel_(call, n_rows_, turned_ + padded(call.head_dim) + n_rows_) {}

  void run(Team& team, int member) {
    int64_t n_splits = 0;
    bool any_cut = false;
    for (int64_t i = 0; i < it_.n_blocks; ++i) {
      const Block& b = it_.blocks[i];
      n_splits = most(n_splits, b.part < 0 ? 0 : b.split + 1);
      any_cut = any_cut || is_cut(it_, b);
    }
    counters_ = reinterpret_cast<int32_t*>(a_.partial);
    partial_ = a_.partial + counter_floats(n_splits, a_.n_kv_heads);
    // Whoever completes the parts of a run of tokens leaves its counter at 0 for the next layer.
    const bool clears = n_splits > 0 && a_.layer == 0;
    if (clears && member == 0)
      for (int64_t i = 0; i < n_splits * a_.n_kv_heads; ++i) counters_[i] = 0;

    // Every member begins with the blocks whose rows it has in its cache, and then helps the others.
    if (any_cut) {
      for (int i = 0; i < team.size(); ++i) {
        const int queue = (member + i) % team.size();
        const Span span = queue_of(queue, team.size());
        int64_t n = span.end - span.begin;  // without the blocks behind the last that is cut
        while (n > 0 && !is_cut(it_, it_.blocks[span.begin + n - 1])) --n;
        for (int64_t u; (u = team.take_from(queue)) < n * a_.n_kv_heads;)
          append_cut(Unit(a_, span.begin * a_.n_kv_heads + u));
      }
    }
    if (any_cut || clears) team.barrier(member);

    for (int i = 0; i < team.size(); ++i) {
      const int queue = (member + i) % team.size();
      const Span span = queue_of(queue, team.size());
      const int64_t first = span.begin * a_.n_kv_heads, n_units = (span.end - span.begin) * a_.n_kv_heads;
      for (int64_t u; (u = team.take_from(queue)) < n_units;)
        work(Unit(a_, first + u), u + 1 < n_units ? Unit(a_, first + u + 1).keys : Keys{});
    }
  }

  static size_t counter_floats(int64_t n_splits, int n_kv_heads) {
    return static_cast<size_t>((n_splits * n_kv_heads + kLanes - 1) / kLanes * kLanes);
  }

 private:
  struct Span {
    int64_t begin, end;
  };

  // The blocks whose home is that member; the last one takes what was cut for more members than there are.
  Span queue_of(int member, int size) const {
    Span span{0, it_.n_blocks};
    while (span.begin < it_.n_blocks && it_.blocks[span.begin].home < member) ++span.begin;
    if (member + 1 == size) return span;
    for (span.end = span.begin; span.end < it_.n_blocks && it_.blocks[span.end].home == member;) ++span.end;
    return span;
  }

  // Enters the new keys and values begin .. end of the unit's request into the pages.
  void append(const Unit& u, int begin, int end) {
    const Pages pages(a_, u.keys.request, u.keys.head);
    const int64_t first = u.token - (u.seen - 1);  // the row that key 0 would have
    for (int t = begin; t < end; ++t) {
      const float* k = key(u, first + t);
      const float* v = k + int64_t{a_.n_kv_heads} * a_.head_dim;
      if (t + kAhead < end) {
        fetch(key(u, first + t + kAhead), a_.head_dim);
        fetch(key(u, first + t + kAhead) + (v - k), a_.head_dim);
      }
      turn(a_, first + t, k, turned_);
      kernel_.append(pages, t, turned_, v);
    }
  }

  // The same for a block whose request has others: runs of kStrip keys that begin in it, so that no two members write to
  // neighbouring bytes.
  void append_cut(const Unit& u) {
    const Block& b = *u.block;
    if (!is_cut(it_, b)) return;
    const int context = it_.contexts[b.request], end = u.seen + b.n - 1;
    const int last = context + it_.starts[b.request + 1] - it_.starts[b.request];
    const int from = b.first == 0 ? context : round_up(context + b.first), to = least(last, round_up(end));
    if (b.part <= 0) append(u, from, to);
  }

  const float* key(const Unit& u, int64_t token) const {
    return a_.qkv + token * width_ + int64_t{a_.n_heads + u.keys.head} * a_.head_dim;
  }
  // A token's queries of the unit's K/V head, one after another; and the results.
  const float* queries(const Unit& u, int i) const {
    return a_.qkv + (u.token + i) * width_ + int64_t{u.keys.head} * u.group * a_.head_dim;
  }
  float* outputs(const Unit& u, int i) const {
    return a_.out + ((u.token + i) * a_.n_heads + int64_t{u.keys.head} * u.group) * a_.head_dim;
  }

  static void fetch(const float* p, int n) {
    for (int i = 0; i < n; i += kLine / 4) __builtin_prefetch(p + i);
  }

  void enter(Unit& u) {
    const int n = u.block->n, d = a_.head_dim;
    for (int i = u.first_row(u.keys.begin) / u.group; i < n; ++i) {
      if (i + kAhead < n) fetch(queries(u, i + kAhead), u.group * d);
      for (int g = 0; g < u.group; ++g) {
        turn(a_, u.token + i, queries(u, i) + g * d, turned_);
        kernel_.enter(i * u.group + g, turned_);
        visible_[i * u.group + g] = u.seen + i;
      }
    }
    u.visible = visible_;
  }

  void work(Unit u, const Keys& next) {
    if (!is_cut(it_, *u.block)) append(u, most(u.seen - 1, u.keys.begin), u.keys.end);
    enter(u);
    if (u.block->part >= 0) {
      work_part(u, next);
      return;
    }
    for (int t = 0; t < u.keys.end; t += kPartKeys) {
      const int end = least(u.keys.end, t + kPartKeys), first_row = u.first_row(t);
      const Keys ahead = end < u.keys.end ? Keys{u.keys.request, u.keys.head, end, u.keys.end} : next;
      const Keys keys{u.keys.request, u.keys.head, t, end};
      kernel_.attend(u, first_row, keys, t == 0 ? total_ : part_, ahead);
      if (t > 0) merge(total_, part_, first_row, u.n_rows, Kernel::kUnit);
    }
    finish(u, total_);
  }

  // One part of several, which other members may work at meanwhile. Who comes last merges them.
  void work_part(const Unit& u, const Keys& next) {
    const Block& b = *u.block;
    kernel_.attend(u, u.first_row(u.keys.begin), u.keys, partial(u, b.part), next);
    int32_t* counter = counters_ + int64_t{b.split} * a_.n_kv_heads + u.keys.head;
    if (__atomic_add_fetch(counter, 1, __ATOMIC_ACQ_REL) < b.n_parts) return;
    __atomic_store_n(counter, 0, __ATOMIC_RELAXED);
    const Softmax into = partial(u, 0);
    for (int p = 1; p < b.n_parts; ++p) merge(into, partial(u, p), u.first_row(p * kPartKeys), u.n_rows, Kernel::kUnit);
    finish(u, into);
  }

  // Where the results of a part of the unit's block are kept.
  Softmax partial(const Unit& u, int part) const {
    const int64_t before = u.block->partial * a_.n_kv_heads;
    const int64_t row = before + (int64_t{u.keys.head} * u.block->n_parts + part) * u.n_rows;
    return Softmax(partial_ + row * static_cast<int64_t>(Softmax::floats(1, a_.head_dim)), u.n_rows, a_.head_dim);
  }

  void finish(const Unit& u, const Softmax& s) const {
    const int d = a_.head_dim, whole = d / kLanes * kLanes;
    for (int i = 0, row = 0; i < u.block->n; ++i)
      for (int g = 0; g < u.group; ++g, ++row) {
        float* out = outputs(u, i) + g * d;
        const float* o = s.o + int64_t{row} * s.stride;
        const Vec inverse = splat(1.0f / s.sum[row]);
        for (int j = 0; j < whole; j += kLanes) store(out + j, load(o + j) * inverse);
        if (whole < d) store_first(out + whole, load(o + whole) * inverse, d - whole);
      }
  }

  const AttentionCall& a_;
  const Iteration& it_;
  const int n_rows_;
  const int64_t width_;  // floats of a token's q, k and v
  const Softmax total_, part_;
  float* const turned_;  // [head_dim]
  int* const visible_;   // [rows]
  Kernel kernel_;
  int32_t* counters_ = nullptr;
  float* partial_ = nullptr;
};

}  // namespace

// attention_int8.cpp
size_t int8_scratch_floats(int rows, int head_dim);
void attend_int8(const AttentionCall&, float* scratch, Team&, int member);

}  // namespace orcaserve::ORCASERVE_ISA
