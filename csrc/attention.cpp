// Attention over float32 and bfloat16 K/V, and the doors of attention. Keys go through in steps of kStep; rows in tiles
// that fit the registers, so keys and values are read once for up to kQueryTile rows.
#include "attention_common.h"
#include "attention_float_tiles.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

// The running softmax of one row over a step, of which it sees keys n_hidden .. n_visible: scores become weights, the
// maximum and the sum move on. Returns the maximum's change (old - new).
inline float softmax_step(float* scores, int n_vecs, int n_hidden, int n_visible, float* max, float* sum_lanes) {
  for (int j = 0; j < n_hidden; ++j) scores[j] = -kInfinity;
  for (int j = n_visible; j < n_vecs * kLanes; ++j) scores[j] = -kInfinity;
  Vec top = load(scores);
  for (int v = 1; v < n_vecs; ++v) top = maximum(load(scores + v * kLanes), top);
  const float step_max = horizontal_max(top);
  const float old_max = *max;
  const float new_max = step_max > old_max ? step_max : old_max;
  const Vec m = splat(new_max);
  Vec sum = load(sum_lanes) * exp_nonpositive(splat(old_max) - m);
  for (int v = 0; v < n_vecs; ++v) {
    const Vec p = exp_nonpositive(load(scores + v * kLanes) - m);
    store(scores + v * kLanes, p);
    sum += p;
  }
  store(sum_lanes, sum);
  *max = new_max;
  return old_max - new_max;
}

template <typename T>
class FloatKernel {
 public:
  static constexpr float kUnit = 1.0f;

  static size_t floats(int rows, int head_dim) {
    return static_cast<size_t>(rows) * (static_cast<size_t>(head_dim) + kLanes) + size_t{kQueryTile} * kStep;
  }

  FloatKernel(const AttentionCall& a, int rows, float* memory)
      : a_(a),
        page_size_(a.kv->page_size),
        keys_(reinterpret_cast<T*>(a.kv->keys + a.layer * a.kv->layer_bytes)),
        values_(reinterpret_cast<T*>(a.kv->values + a.layer * a.kv->layer_bytes)),
        scores_(memory),
        lanes_(scores_ + kQueryTile * kStep),
        q_(lanes_ + rows * kLanes) {}

  void append(const Pages& pages, int t, const float* k, const float* v) {
    const int64_t base = pages.base(t) * a_.head_dim;
    T* key = keys_ + base + pages.slot(t);
    T* value = values_ + base + int64_t{pages.slot(t)} * a_.head_dim;
    for (int d = 0; d < a_.head_dim; ++d) from_float(k[d], key + d * page_size_);
    for (int d = 0; d < a_.head_dim; ++d) from_float(v[d], value + d);
  }

  void enter(int row, const float* q) {
    for (int i = 0; i < a_.head_dim; ++i) q_[int64_t{row} * a_.head_dim + i] = q[i] * a_.scale;
  }

  void attend(const Unit& u, int first_row, const Keys& keys, const Softmax& into, const Keys& ahead) {
    for (int row = first_row; row < u.n_rows; ++row) {
      for (int i = 0; i < into.stride; ++i) into.o[int64_t{row} * into.stride + i] = 0.0f;
      into.max[row] = -kInfinity;
      store(lanes_ + row * kLanes, Vec{});
    }
    Step<T> now = locate(keys), then;
    for (int t = keys.begin / kStep * kStep; t < keys.end; t += kStep, now = then) {
      const bool more = t + kStep < keys.end;
      then = more ? locate({keys.request, keys.head, t + kStep, keys.end}) : ahead.empty() ? now : locate(ahead);
      bool fetch = true;
      const int end_row = u.end_row(t + kStep);
      for (int row = most(first_row, u.first_row(t)), n; row < end_row; row += n, fetch = false) {
        n = tile_rows(end_row - row, kQueryTile);
        int hidden[kQueryTile], visible[kQueryTile];
        for (int r = 0; r < n; ++r) {
          hidden[r] = u.hidden(row + r, t);
          visible[r] = least(u.visible[row + r] - t, kStep);
        }
        const Tile tile{u, t, row, hidden, visible, least(visible[n - 1], keys.end - t)};  // the last row sees most
        if (fetch)
          step_of<true>(n, tile, now, then, into);
        else
          step_of<false>(n, tile, now, then, into);
      }
    }
    for (int row = first_row; row < u.n_rows; ++row) into.sum[row] = horizontal_sum(load(lanes_ + row * kLanes));
  }

 private:
  struct Tile {
    const Unit& unit;
    int t;               // where the step begins
    int row;             // the first
    const int* hidden;   // of each row: keys of the step before its window
    const int* visible;  // of each row: keys of the step up to its own; at least one of them is in its window
    int n_keys;          // the most
  };

  Step<T> locate(const Keys& keys) const {
    const Pages pages(a_, keys.request, keys.head);
    Step<T> step;
    const int first = keys.begin / kStrip * kStrip;
    for (int s = 0; s < kStep / kStrip; ++s) {
      const int t = most(keys.begin / kStep * kStep + s * kStrip, first);
      if (t < keys.end || s == 0) {
        const int64_t base = pages.base(t) * a_.head_dim;
        step.keys[s] = keys_ + base + pages.slot(t);
        step.values[s] = values_ + base + int64_t{pages.slot(t)} * a_.head_dim;
      } else {
        step.keys[s] = step.keys[s - 1];
        step.values[s] = step.values[s - 1];
      }
    }
    return step;
  }

  [[gnu::noinline]] void shape(const Tile& tile, int n_rows, int n_vecs) {
    for (int r = 0; r < n_rows; ++r) {
      const int row = tile.row + r;
      Shaping(a_, tile.unit, row, kUnit)(scores_ + r * kStep, n_vecs, tile.unit.visible[row] - 1 - tile.t);
    }
  }

  // A step of a tile of ROWS rows.
  template <int ROWS, bool FETCH>
  void tile_step(const Tile& tile, const Step<T>& now, const Step<T>& then, const Softmax& into) {
    const int d = a_.head_dim, n_vecs = (tile.n_keys + kLanes - 1) / kLanes;
    const float* q = q_ + int64_t{tile.row} * d;
    int v = 0;
    for (; v + kVecTile <= n_vecs; v += kVecTile)
      score_tile<ROWS, kVecTile, FETCH>(q, d, now, v, page_size_, scores_);
    for (; v < n_vecs; ++v) score_tile<ROWS, 1, FETCH>(q, d, now, v, page_size_, scores_);

    if (a_.softcap != 0.0f || a_.alibi) shape(tile, ROWS, n_vecs);
    float change[kLanes] = {};
    for (int r = 0; r < ROWS; ++r)
      change[r] = softmax_step(scores_ + r * kStep, n_vecs, tile.hidden[r], tile.visible[r], into.max + tile.row + r,
                               lanes_ + (tile.row + r) * kLanes);
    float factor[kLanes];
    store(factor, exp_nonpositive(load(change)));

    // What lies before the first row's window may be no number, which a weight of 0 does not mend.
    const int begin = tile.hidden[0], end = tile.n_keys;
    float* o = into.o + int64_t{tile.row} * into.stride;
    int c = 0;
    for (; c + kVecTile * kLanes <= d; c += kVecTile * kLanes)
      value_tile<ROWS, kVecTile, false, FETCH>(scores_, factor, now, then, begin, end, c, d, page_size_, o, into.stride);
    for (; c + kLanes <= d; c += kLanes)
      value_tile<ROWS, 1, false, FETCH>(scores_, factor, now, then, begin, end, c, d, page_size_, o, into.stride);
    if (c < d)
      value_tile<ROWS, 1, true, FETCH>(scores_, factor, now, then, begin, end, c, d, page_size_, o, into.stride);
  }

  // tile_step of as many rows as the tile has.
  template <bool FETCH, int ROWS = kQueryTile>
  void step_of(int n_rows, const Tile& tile, const Step<T>& now, const Step<T>& then, const Softmax& into) {
    if (n_rows == ROWS)
      tile_step<ROWS, FETCH>(tile, now, then, into);
    else if constexpr (ROWS > 1)
      step_of<FETCH, ROWS - 1>(n_rows, tile, now, then, into);
  }

  const AttentionCall& a_;
  const int64_t page_size_;
  T* const keys_;
  T* const values_;
  float* const scores_;  // [kQueryTile][kStep]
  float* const lanes_;   // [rows][kLanes]: the sums of weights, still spread over lanes
  float* const q_;       // [rows][head_dim], scaled
};

}  // namespace

size_t attention_scratch_floats(const Model& m, const KVRegion& kv) {
  const int rows = Attention<FloatKernel<float>>::rows(m.n_heads, m.n_kv_heads);
  if (kv.storage == Storage::kInt8) return int8_scratch_floats(rows, m.head_dim);
  return Attention<FloatKernel<float>>::floats(rows, m.head_dim);
}

size_t attention_partial_floats(const Model& m, const Iteration& it, const KVRegion&) {
  const int group = m.n_heads / m.n_kv_heads;
  int64_t n_splits = 0, n_rows = 0;
  for (int64_t i = 0; i < it.n_blocks; ++i) {
    const Block& b = it.blocks[i];
    if (b.part < 0 || b.split < n_splits) continue;
    n_splits = b.split + 1;
    n_rows = b.partial + int64_t{b.n_parts} * b.n * group;
  }
  return Attention<FloatKernel<float>>::counter_floats(n_splits, m.n_kv_heads) +
         static_cast<size_t>(n_rows * m.n_kv_heads) * Softmax::floats(1, m.head_dim);
}

void rope_rows(const Rope& rope, const Frequencies& frequencies, const Iteration& it, int first, int n, float* cos,
               float* sin) {
  const int half = rope.dim / 2;
  for (int token = first; token < first + n; ++token) {
    const int request = it.request_of[token];
    const float position = static_cast<float>(it.contexts[request] + token - it.starts[request]);
    const float* of_set = frequencies.values + int64_t{frequencies.set ? frequencies.set[request] : 0} * half;
    for (int i = 0; i < half; ++i) {
      const float angle = position * of_set[i];
      cos[int64_t{token} * half + i] = __builtin_cosf(angle) * rope.amplitude;
      sin[int64_t{token} * half + i] = __builtin_sinf(angle) * rope.amplitude;
    }
  }
}

void attend(const AttentionCall& a, Team& team, int member) {
  float* scratch = a.scratch + a.scratch_floats * static_cast<size_t>(member);
  switch (a.kv->storage) {
    case Storage::kFloat32: Attention<FloatKernel<float>>(a, scratch).run(team, member); break;
    case Storage::kBFloat16: Attention<FloatKernel<BFloat16>>(a, scratch).run(team, member); break;
    case Storage::kInt8: attend_int8(a, scratch, team, member); break;
  }
}

void attend_alone(const AttentionCall& call, Team& team) {
  struct Context {
    const AttentionCall& call;
    Team& team;
  } context{call, team};
  team.run(
      [](void* p, int member) {
        const Context& c = *static_cast<const Context*>(p);
        attend(c.call, c.team, member);
      },
      &context);
}

#define ORCASERVE_NAME_(x) #x
#define ORCASERVE_NAME(x) ORCASERVE_NAME_(x)
extern const AttentionTable attention_table;
const AttentionTable attention_table{ORCASERVE_NAME(ORCASERVE_ISA), rope_rows};

}  // namespace orcaserve::ORCASERVE_ISA
