// Attention over int8 K/V: both products are sums of small integers, exact on every instruction set.
//
// Queries and keys are turned by a Hadamard matrix and quantised to 8 bits, a head of a token at a time; a score is the
// integer product times their scales. The weights of a step, times the scales of the values, go to 16 bits, as two
// digits of 8: with one digit, weights below 1/510 of the greatest would vanish, however many they are.
#include "attention_common.h"
#include "attention_int8_tiles.h"
#include "quantise.h"

#if ORCASERVE_AMX
#include "attention_amx.h"
#endif

namespace orcaserve::ORCASERVE_ISA {
namespace {

constexpr float kLn2 = 0.693147181f;
constexpr int kValueFloats = ORCASERVE_AMX ? kStep / 4 : 0;  // of gathered values, a dimension
constexpr float kBits = 15.99f;  // of a weight's digits: 2^kBits stays below 2^16 when it is rounded

class Int8Kernel {
 public:
  static constexpr float kUnit = kLn2;

  static size_t floats(int rows, int head_dim) {
    const size_t r = static_cast<size_t>(rows), d = static_cast<size_t>(whole_blocks(head_dim));
    return r * (d / 4 + 2 + kLanes) + size_t{kMostRows} * kStep + 2 * kStep + d + d / 4 + kValueFloats * d;
  }

  Int8Kernel(const AttentionCall& a, int rows, float* memory)
      : a_(a),
        stride_(int64_t{a.kv->page_size} * 4),
        d_(whole_blocks(a.head_dim)),
        turned_(turned_at_once(a.head_dim)),
        keys_(a.kv->keys + a.layer * a.kv->layer_bytes),
        values_(reinterpret_cast<int8_t*>(a.kv->values + a.layer * a.kv->layer_bytes)),
        key_scales_(a.kv->key_scales + a.layer * a.kv->layer_scales),
        value_scales_(a.kv->value_scales + a.layer * a.kv->layer_scales),
        scores_(memory),
        values_of_step_(reinterpret_cast<int8_t*>(scores_ + kMostRows * kStep)),
        step_key_scales_(scores_ + kMostRows * kStep + kValueFloats * d_),
        step_value_scales_(step_key_scales_ + kStep),
        scaled_(step_value_scales_ + kStep),
        bytes_(reinterpret_cast<int8_t*>(scaled_ + d_)),
        lanes_(scaled_ + d_ + d_ / 4),
        q_scales_(lanes_ + rows * kLanes),
        init_(reinterpret_cast<int32_t*>(q_scales_ + rows)),
        q_(reinterpret_cast<int8_t*>(init_ + rows)) {}

  void append(const Pages& pages, int t, const float* k, const float* v) {
    const int64_t base = pages.base(t);
    const int slot = pages.slot(t), n = a_.head_dim;
    float key_scale = quantise(k, true, bytes_).scale;
    uint8_t* key = keys_ + base * n + slot * 4;
    for (int i = 0; i < n; i += 4) {
      uint32_t four;
      __builtin_memcpy(&four, bytes_ + i, sizeof four);
      four ^= 0x80808080u;  // + 128
      __builtin_memcpy(key + i / 4 * stride_, &four, sizeof four);
    }
    const float value_scale = quantise(v, false, bytes_).scale;
    insert(values_ + (base + slot / 4 * 4) * n, bytes_, slot % 4);
    if (value_scale != value_scale) key_scale = value_scale;  // what is sick comes to light in the scores
    key_scales_[base + slot] = key_scale;
    value_scales_[base + slot] = value_scale;
  }

  void enter(int row, const float* q) {
    const Quantised done = quantise(q, true, q_ + int64_t{row} * d_);
    q_scales_[row] = done.scale * (a_.scale * (1.0f / kLn2) / static_cast<float>(turned_));
    init_[row] = -128 * done.sum;  // keys are stored 128 too large
  }

  void attend(const Unit& u, int first_row, const Keys& keys, const Softmax& into, const Keys& ahead) {
    for (int row = first_row; row < u.n_rows; ++row) {
      for (int i = 0; i < into.stride; i += kLanes) store(into.o + int64_t{row} * into.stride + i, Vec{});
      into.max[row] = -kInfinity;
      store(lanes_ + row * kLanes, Vec{});
    }
    Step now = locate(keys), then;
    for (int t = keys.begin / kStep * kStep; t < keys.end; t += kStep, now = then) {
      const bool more = t + kStep < keys.end;
      then = more ? locate({keys.request, keys.head, t + kStep, keys.end}) : ahead.empty() ? now : locate(ahead);
      for (int s = 0; s < kStrips; ++s) {
        __builtin_prefetch(then.key_scales[s]);
        __builtin_prefetch(then.value_scales[s]);
      }
      take_scales(now, least(kStep, keys.end - t));
      bool fetch = true;
      const int end_row = u.end_row(t + kStep);
      for (int row = most(first_row, u.first_row(t)), n; row < end_row; row += n, fetch = false) {
        const bool on_tiles = suits_tiles(end_row - row);
        n = tile_rows(end_row - row, on_tiles ? kMostRows : kDotTile);
        int hidden[kMostRows], visible[kMostRows];
        for (int r = 0; r < n; ++r) {
          hidden[r] = u.hidden(row + r, t);
          visible[r] = least(u.visible[row + r] - t, kStep);
        }
        const Tile tile{&u, t, row, hidden, visible};
        if (on_tiles)
          step_on_tiles(n, tile, now, fetch ? &then : nullptr, into);
        else if (fetch)
          step_of<true>(n, tile, now, then, into);
        else
          step_of<false>(n, tile, now, then, into);
      }
    }
    for (int row = first_row; row < u.n_rows; ++row) into.sum[row] = horizontal_sum(load(lanes_ + row * kLanes));
  }

 private:
  struct Tile {
    const Unit* unit;
    int t;               // where the step begins
    int row;             // the first
    const int* hidden;   // of each row: keys of the step before its window
    const int* visible;  // of each row: keys of the step up to its own, at least one in its window; the last row sees most

    bool shaped(const AttentionCall& a) const { return a.window > 0 || a.softcap != 0.0f || a.alibi; }
  };

  struct Quantised {
    float scale;  // NaN if any number was not finite
    int sum;      // of the integers
  };

  // x[head_dim], perhaps turned, to integers q[d]: x = q * scale.
  Quantised quantise(const float* x, bool turned, int8_t* q) {
    const int n = a_.head_dim;
    const float* from = x;
    IntVec top = {};
    if (turned && n % kHadamard == 0) {
      top = turn_chunk<false>(x, nullptr, n, n, scaled_);
      from = scaled_;
    } else {
      if (turned || n != d_) {
        for (int i = 0; i < n; ++i) scaled_[i] = x[i];
        for (int i = n; i < d_; ++i) scaled_[i] = 0.0f;
        if (turned) turn_head(scaled_, n, turned_);
        from = scaled_;
      }
      for (int i = 0; i < d_; i += kLanes) top = maximum(top, magnitude(load(from + i)));
    }
    const Scale scale = scale_of(top, 1.0f);
    IntVec sum = {};
    for (int i = 0; i < d_; i += kInt4Block) round_block(from + i, splat(scale.inverse), q + i, sum);
    return {scale.scale < kInfinity ? scale.scale : __builtin_nanf(""), horizontal_sum(sum)};
  }

  // Enters bytes as the `which`-th of every four at `quads`.
  void insert(int8_t* quads, const int8_t* bytes, int which) const {
    const UIntVec mask = (255u << which * 8) - UIntVec{};
    int i = 0;
    for (; i + kLanes <= a_.head_dim; i += kLanes) {
      const UIntVec shifted = widen_bytes(bytes + i) << which * 8;
      UIntVec old;
      __builtin_memcpy(&old, quads + i * 4, sizeof old);
      old = (old & ~mask) | shifted;
      __builtin_memcpy(quads + i * 4, &old, sizeof old);
    }
    for (; i < a_.head_dim; ++i) quads[i * 4 + which] = bytes[i];
  }

  Step locate(const Keys& keys) const {
    const Pages pages(a_, keys.request, keys.head);
    Step step;
    for (int s = 0; s < kStrips; ++s) {
      const int from = most(keys.begin / kStep * kStep + s * kStrip, keys.begin / kStrip * kStrip);
      const int t = least(from, (keys.end - 1) / kStrip * kStrip);
      const int64_t base = pages.base(t);
      const int slot = pages.slot(t);
      step.keys[s] = keys_ + base * a_.head_dim + slot * 4;
      step.values[s] = values_ + (base + slot) * a_.head_dim;
      step.key_scales[s] = key_scales_ + base + slot;
      step.value_scales[s] = value_scales_ + base + slot;
    }
    return step;
  }

  // Scales side by side; those of slots that hold no key of the step, which may be anything, become 0.
  void take_scales(const Step& step, int n_keys) {
    Vec top = {};
    for (int v = 0; v < kStepVecs; ++v) {
      const int strip = v * kLanes / kStrip, at = v * kLanes % kStrip;
      Vec key = load(step.key_scales[strip] + at), value = load(step.value_scales[strip] + at);
      if (n_keys < kStep) {
        key = keep_first(key, n_keys - v * kLanes, Vec{});
        value = keep_first(value, n_keys - v * kLanes, Vec{});
      }
      store(step_key_scales_ + v * kLanes, key);
      store(step_value_scales_ + v * kLanes, value);
      top = maximum(value, top);
    }
    greatest_value_scale_ = horizontal_max(top);
  }

  // Of the values of the step's keys begin .. end.
  float greatest_value_scale(int begin, int end) const {
    if (begin == 0 && end == kStep) return greatest_value_scale_;
    Vec top = {};
    for (int v = 0; v < kStepVecs; ++v) {
      const Vec scales = keep_first(load(step_value_scales_ + v * kLanes), end - v * kLanes, Vec{});
      top = maximum(keep_from(scales, begin - v * kLanes, Vec{}), top);
    }
    return horizontal_max(top);
  }

  // The row's scores, which are complete, as the model wants them.
  [[gnu::noinline]] void shape(const Tile& tile, int r, float* scores, float q_scale) const {
    const int row = tile.row + r;
    for (int v = 0; v < kStepVecs; ++v) store(scores + v * kLanes, load(scores + v * kLanes) * splat(q_scale));
    if (a_.softcap != 0.0f || a_.alibi)
      Shaping(a_, *tile.unit, row, kUnit)(scores, kStepVecs, tile.unit->visible[row] - 1 - tile.t);
  }

  // Integer scores become weights; maxima and sums of the rows move on. A weight is 2^(score - the step's maximum),
  // times the value's scale, times the power of two that brings it up to kBits bits.
  // at: where the tile's rows begin in scores_ and w. begins: what is still to be added to a row's scores, or null.
  // SHAPED: the model has windows, or changes scores.
  template <int ROWS, bool SHAPED>
  void weigh(const Tile& tile, int at_row, const int32_t* begins, Weights& w, const Softmax& into) {
    // Pointers of its own: after every store the compiler would fetch the members again.
    float* __restrict const all_scores = scores_ + at_row * kStep;
    const float* __restrict const key_scales = step_key_scales_;
    const float* __restrict const value_scales = step_value_scales_;
    const float* __restrict const q_scales = q_scales_ + tile.row;
    float* __restrict const all_lanes = lanes_ + tile.row * kLanes;
    Vec top[ROWS];
    float shifts[kLanes] = {};
    const bool whole = tile.visible[0] == kStep && (!SHAPED || tile.hidden[ROWS - 1] == 0);  // all rows see all keys
    float unscaled[kLanes];
    if constexpr (SHAPED) store(unscaled, splat(1.0f));
    const float* __restrict const scales = SHAPED ? unscaled : q_scales;
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
      float* scores = all_scores + r * kStep;
      const int visible = tile.visible[r];
      const IntVec begin = begins ? begins[r] - IntVec{} : IntVec{};
      top[r] = splat(-kInfinity);
      for (int v = 0; v < kStepVecs; ++v) {
        Vec x = to_floats(load_bytes(scores + v * kLanes) + begin) * load(key_scales + v * kLanes);
        store(scores + v * kLanes, x);
        if constexpr (SHAPED) continue;
        if (!whole) x = keep_first(x, visible - v * kLanes, splat(-kInfinity));
        top[r] = maximum(x, top[r]);
      }
      if constexpr (SHAPED) {
        shape(tile, r, scores, q_scales[r]);
        for (int v = 0; v < kStepVecs; ++v)
          top[r] = maximum(seen(load(scores + v * kLanes), tile, r, v * kLanes, splat(-kInfinity)), top[r]);
      }
      if (!whole) shifts[r] = kBits - exponent_above(greatest_value_scale(SHAPED ? tile.hidden[r] : 0, visible));
    }
    const Vec shift = whole ? splat(kBits - exponent_above(greatest_value_scale_)) : load(shifts);
    const Vec step_max = row_maxima<1>(top) * load_first(scales, ROWS);
    const Vec old_max = load_first(into.max + tile.row, ROWS);
    const Vec new_max = maximum(step_max, old_max);
    float offset[kLanes];
    store(offset, shift - step_max);
    store(w.factor + at_row, power_of_2(old_max - new_max));
    store(w.scale + at_row, power_of_2(step_max - new_max - shift));
    store_first(into.max + tile.row, new_max, ROWS);
#pragma GCC unroll 1
    for (int r = 0; r < ROWS; ++r) {
      const float* scores = all_scores + r * kStep;
      const Vec q_scale = splat(scales[r]);
      const int visible = tile.visible[r];
      Vec sum = {};
      for (int v = 0; v < kStepVecs; v += 4) {
        IntVec digits[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          const int at = (v + i) * kLanes;
          Vec p = power_of_2(multiply_add(load(scores + at), q_scale, splat(offset[r])));
          Vec weight = p * load(value_scales + at);
          if constexpr (SHAPED) {
            p = seen(p, tile, r, at, Vec{});
            weight = seen(weight, tile, r, at, Vec{});
          } else if (!whole) {
            p = keep_first(p, visible - at, Vec{});
            weight = keep_first(weight, visible - at, Vec{});
          }
          sum += p;
          digits[i] = nearest(weight);
        }
        store_digits(digits, w.high[at_row + r] + v * kLanes, w.low[at_row + r] + v * kLanes);
      }
      float* lanes = all_lanes + r * kLanes;
      store(lanes, multiply_add(sum, splat(w.scale[at_row + r]), load(lanes) * splat(w.factor[at_row + r])));
    }
  }

  // x of the keys from `at` on, and `other` in the place of those that the row does not see.
  static Vec seen(Vec x, const Tile& tile, int r, int at, Vec other) {
    return keep_from(keep_first(x, tile.visible[r] - at, other), tile.hidden[r] - at, other);
  }

  template <int ROWS>
  void weigh(const Tile& tile, int at_row, const int32_t* begins, Weights& w, const Softmax& into) {
    if (tile.shaped(a_))
      weigh<ROWS, true>(tile, at_row, begins, w, into);
    else
      weigh<ROWS, false>(tile, at_row, begins, w, into);
  }

  // A step of a tile of ROWS rows.
  template <int ROWS, bool FETCH>
  void tile_step(const Tile& tile, const Step& now, const Step& then, const Softmax& into) {
    const int d = a_.head_dim;
    const int8_t* q = q_ + int64_t{tile.row} * d_;
    for (int v = 0; v < kStepVecs; v += kVecTile)
      score_tile<ROWS, FETCH>(q, d_, init_ + tile.row, d, now, then, v, stride_, reinterpret_cast<int32_t*>(scores_));
    Weights w;
    weigh<ROWS>(tile, 0, nullptr, w, into);
    float* o = into.o + int64_t{tile.row} * into.stride;
    const int n_keys = FETCH ? kStep : tile.visible[ROWS - 1];
    int c = 0;
    for (; c + kVecTile * kLanes <= d; c += kVecTile * kLanes)
      value_tile<ROWS, kVecTile, false, FETCH>(w, now, then, n_keys, c, d, o, into.stride);
    for (; c + kLanes <= d; c += kLanes) value_tile<ROWS, 1, false, FETCH>(w, now, then, n_keys, c, d, o, into.stride);
    if (c < d) value_tile<ROWS, 1, true, FETCH>(w, now, then, n_keys, c, d, o, into.stride);
  }

#if ORCASERVE_AMX
  bool suits_tiles(int n_rows) const { return n_rows >= kFewRowsOfTiles && a_.head_dim % kTileDims == 0; }

  // A step of a tile of n rows; the first tile of a step gathers its values, and fetches `then`.
  void step_on_tiles(int n, const Tile& tile, const Step& now, const Step* then, const Softmax& into) {
    const int d = a_.head_dim;
    if (then) {
      gather_values(now, d, values_of_step_);
      for (int s = 0; s < kStrips; ++s)
        for (int i = 0; i < d * kStrip; i += kLine) {
          __builtin_prefetch(then->keys[s] + i / kLine * stride_, 0, 2);
          __builtin_prefetch(then->values[s] + i, 0, 2);
        }
    }
    configure_tiles(n);
    score_on_tiles(q_ + int64_t{tile.row} * d_, d_, d, now, stride_, reinterpret_cast<int32_t*>(scores_));
    Weights w;
    constexpr int kSome = 6;
    for (int r = 0; r < n; r += kSome) {
      const Tile some{tile.unit, tile.t, tile.row + r, tile.hidden + r, tile.visible + r};
      weigh_some<kSome>(least(kSome, n - r), some, r, w, into);
    }
    weigh_values(w, n, values_of_step_, d, into.o + int64_t{tile.row} * into.stride, into.stride);
  }

  template <int ROWS>
  void weigh_some(int n_rows, const Tile& tile, int at_row, Weights& w, const Softmax& into) {
    if (n_rows == ROWS)
      weigh<ROWS>(tile, at_row, init_ + tile.row, w, into);
    else if constexpr (ROWS > 1)
      weigh_some<ROWS - 1>(n_rows, tile, at_row, w, into);
  }
#else
  static bool suits_tiles(int) { return false; }
  static void step_on_tiles(int, const Tile&, const Step&, const Step*, const Softmax&) {}
#endif

  // tile_step of as many rows as the tile has.
  template <bool FETCH, int ROWS = kDotTile>
  void step_of(int n_rows, const Tile& tile, const Step& now, const Step& then, const Softmax& into) {
    if (n_rows == ROWS)
      tile_step<ROWS, FETCH>(tile, now, then, into);
    else if constexpr (ROWS > 1)
      step_of<FETCH, ROWS - 1>(n_rows, tile, now, then, into);
  }

  const AttentionCall& a_;
  const int64_t stride_;  // bytes from four dimensions of a key to the next four
  const int d_;           // head_dim in whole blocks of kInt4Block
  const int turned_;      // numbers that one Hadamard matrix turns
  uint8_t* const keys_;
  int8_t* const values_;
  float* const key_scales_;
  float* const value_scales_;
  float* const scores_;             // [kMostRows][kStep]
  int8_t* const values_of_step_;    // AMX: gathered
  float* const step_key_scales_;    // [kStep]
  float* const step_value_scales_;  // [kStep]
  float* const scaled_;             // [d]
  int8_t* const bytes_;             // [d]
  float* const lanes_;     // [rows][kLanes]: the sums of weights, still spread over lanes
  float* const q_scales_;  // [rows]
  int32_t* const init_;    // [rows]: where a score begins
  int8_t* const q_;        // [rows][d]
  float greatest_value_scale_ = 0.0f;
};

}  // namespace

size_t int8_scratch_floats(int rows, int head_dim) { return Attention<Int8Kernel>::floats(rows, head_dim); }

void attend_int8(const AttentionCall& a, float* scratch, Team& team, int member) {
  Attention<Int8Kernel>(a, scratch).run(team, member);
  end_multiply();
}

}  // namespace orcaserve::ORCASERVE_ISA
