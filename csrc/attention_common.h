// What a member of the team does in a call of attention, whatever the storage of keys and values.
//
// A unit is a run of tokens, a K/V head and a range of keys. Its query rows are the tokens times the query heads that
// share the K/V head; they pass over the keys in steps with a running softmax (Milakov and Gimelshein 2018): per row a
// maximum, a sum of weights and a weighted sum of values, rescaled whenever the maximum grows. It starts anew every
// kPartKeys keys, and the results of such parts are merged in order.
//
// Order of sums. For a row everything runs from its request's key 0, or the first one in its window, upwards: steps and
// parts start at fixed multiples, rows take no part in those that they see nothing of, and other keys that a row may not
// see add exact zeros. So a row's bits depend on its own query and on the keys it sees; not
// on the tile, the block, the other requests, the number of threads, nor on whether its prompt came whole, in chunks or
// token by token.
#pragma once

#include "attention_units.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

// What one member does in a call. Kernel, the arithmetic of one storage:
//   Kernel(call, rows, memory) of floats(rows, head_dim) floats
//   kUnit: what a score of 1 stands for, as a natural logarithm
//   append(pages, t, k, v): enters the key, which is turned, and the value of token t
//   enter(row, q): takes a query, which is turned
//   attend(unit, first row, keys, into, ahead): the softmax of the rows over these keys, which are of one part; meanwhile it
//     fetches the first of `ahead`
template <typename Kernel>
class Attention {
 public:
  static int rows(int n_heads, int n_kv_heads) { return most(kBlockRows, n_heads / n_kv_heads); }

  static size_t floats(int rows, int head_dim) {
    return Kernel::floats(rows, head_dim) + 2 * Softmax::floats(rows, head_dim) +
           static_cast<size_t>(padded(head_dim) + rows);
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
    const bool early = any_cut || it_.shares;
    if (early) {
      for (int i = 0; i < team.size(); ++i) {
        const int queue = (member + i) % team.size();
        const Span span = queue_of(queue, team.size());
        int64_t n = span.end - span.begin;  // without the blocks behind the last that appends early
        while (n > 0 && !appends_early(it_.blocks[span.begin + n - 1])) --n;
        for (int64_t u; (u = team.take_from(queue)) < n * a_.n_kv_heads;)
          append_early(Unit(a_, span.begin * a_.n_kv_heads + u));
      }
    }
    if (early || clears) team.barrier(member);

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

  // Others read what the block appends: other blocks of its request, or, where pages are shared, other requests.
  bool appends_early(const Block& b) const { return it_.shares || is_cut(it_, b); }

  // The same before anybody reads. Of a block whose request has others: runs of kStrip keys that begin in it, so that no
  // two members write to neighbouring bytes; of any other block this is all that it has.
  void append_early(const Unit& u) {
    const Block& b = *u.block;
    if (!appends_early(b)) return;
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
    if (!appends_early(*u.block)) append(u, most(u.seen - 1, u.keys.begin), u.keys.end);
    if (!u.keys.empty()) enter(u);
    if (u.block->part >= 0) {
      work_part(u, next);
      return;
    }
    for (int t = u.keys.begin, end; t < u.keys.end; t = end) {
      end = least(u.keys.end, (t / kPartKeys + 1) * kPartKeys);
      const int first_row = u.first_row(t);
      const Keys ahead = end < u.keys.end ? Keys{u.keys.request, u.keys.head, end, u.keys.end} : next;
      const Keys keys{u.keys.request, u.keys.head, t, end};
      const bool is_first = t == u.keys.begin;
      kernel_.attend(u, first_row, keys, is_first ? total_ : part_, ahead);
      if (!is_first) merge(total_, part_, first_row, u.end_row(end), Kernel::kUnit);
    }
    finish(u, total_);
  }

  // One part of several, which other members may work at meanwhile. Who comes last merges them, from the one on in which
  // the first row's window begins.
  void work_part(const Unit& u, const Keys& next) {
    const Block& b = *u.block;
    if (!u.keys.empty()) kernel_.attend(u, u.first_row(u.keys.begin), u.keys, partial(u, b.part), next);
    int32_t* counter = counters_ + int64_t{b.split} * a_.n_kv_heads + u.keys.head;
    if (__atomic_add_fetch(counter, 1, __ATOMIC_ACQ_REL) < b.n_parts) return;
    __atomic_store_n(counter, 0, __ATOMIC_RELAXED);
    const int first_part = u.first_key() / kPartKeys;
    const Softmax into = partial(u, first_part);
    for (int p = first_part + 1; p < b.n_parts; ++p)
      merge(into, partial(u, p), u.first_row(p * kPartKeys), u.end_row((p + 1) * kPartKeys), Kernel::kUnit);
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
