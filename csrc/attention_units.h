// Units of work of attention, the pages they read, rotary positions, and the merge of partial softmaxes.
#pragma once

#include "attention.h"
#include "kernels.h"
#include "simd.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

constexpr float kInfinity = __builtin_inff();
constexpr int kStrip = 16;  // consecutive keys, from a multiple of 16 on, lie in one page
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

// Rows first .. end of `into` take in those of `from`, which hold the keys that follow. unit: what a score of 1 stands
// for, as a natural logarithm.
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

  // Where the slots of this head begin in the page that holds token t, counted in slots of a head from the layer's
  // first.
  int64_t base(int t) const { return (int64_t{table[t / page_size]} * n_kv_heads + head) * page_size; }
  int slot(int t) const { return t % page_size; }
};

// Keys begin .. end of a request and a K/V head; of those before, nothing is read but in the begin's own strip.
struct Keys {
  int request, head, begin, end;

  bool empty() const { return begin >= end; }
};

struct Unit {
  const Block* block;
  int64_t token;   // row of the flat tensors of its first token
  int group;       // query heads that share the K/V head
  int n_rows;
  int seen;        // its first token sees keys up to this one; each further token one more
  int window;      // how many of them, at most
  Keys keys;       // from the first that its first token sees
  const int* visible = nullptr;  // keys that each row sees

  Unit(const AttentionCall& a, int64_t index) {
    const Iteration& it = *a.it;
    const Block& b = it.blocks[index / a.n_kv_heads];
    block = &b;
    token = it.starts[b.request] + b.first;
    group = a.n_heads / a.n_kv_heads;
    n_rows = b.n * group;
    seen = it.contexts[b.request] + b.first + 1;
    window = a.window > 0 ? a.window : INT32_MAX;
    const int last = seen + b.n - 1, begin = b.part < 0 ? 0 : b.part * kPartKeys;
    const int end = b.part < 0 ? last : least(last, begin + kPartKeys);
    keys = {b.request, static_cast<int>(index % a.n_kv_heads), most(begin, first_key()), end};
  }

  // The first key that its first token sees.
  int first_key() const { return most(0, seen - window); }
  // How many of the keys from t on lie before the window of a row, which sees keys up to visible[row].
  int hidden(int row, int t) const { return most(0, most(0, visible[row] - window) - t); }
  // The rows that see some of the keys begin .. end, which the unit has: from first_row(begin) to end_row(end).
  int first_row(int begin) const { return most(0, begin - seen + 1) * group; }
  int end_row(int end) const {
    return end - seen >= block->n - window ? n_rows : (end - seen + window) * group;
  }
};

// What a model does to scores beyond scaling them, of one row. unit: what a score of 1 stands for, as a natural logarithm.
struct Shaping {
  float softcap, slope, inverse_softcap;

  Shaping(const AttentionCall& a, const Unit& u, int row, float unit)
      : softcap(a.softcap / unit),
        slope(a.alibi ? a.alibi[u.keys.head * u.group + row % u.group] / unit : 0.0f),
        inverse_softcap(a.softcap != 0.0f ? unit / a.softcap : 0.0f) {}

  // The scores of n_vecs vectors of keys; back: tokens from the query back to the first key.
  void operator()(float* scores, int n_vecs, int back) const {
    Vec distance;
    for (int i = 0; i < kLanes; ++i) distance[i] = static_cast<float>(back - i);
    for (int v = 0; v < n_vecs; ++v, distance -= splat(kLanes)) {
      Vec x = load(scores + v * kLanes);
      if (softcap != 0.0f) x = splat(softcap) * hyperbolic_tangent(x * inverse_softcap);
      store(scores + v * kLanes, x - splat(slope) * distance);
    }
  }
};

// Other blocks attend to the block's keys.
inline bool is_cut(const Iteration& it, const Block& b) {
  return b.n < it.starts[b.request + 1] - it.starts[b.request];
}

}  // namespace
}  // namespace orcaserve::ORCASERVE_ISA
