// Attention of all requests of an iteration in one call, compiled once per instruction set.
//
// Work is cut into (block of query tokens) x (K/V head). The query rows of a block are its tokens times the query heads that
// share the K/V head; they pass over the keys in steps of kKeys with a running softmax (Milakov and Gimelshein 2018): per
// row a maximum m, a sum l and a weighted sum o of values, rescaled whenever m grows. Rows go through the arithmetic in
// tiles that fit the registers, so keys and values are read once for up to kTileRows rows.
//
// Order of sums. For a row everything runs from its request's key 0 upwards: dimensions one after another in a score, keys
// in steps that start at multiples of kKeys, keys one after another in the weighted sum. Keys that a row may not see add
// exact zeros. So a row's bits depend on its own query and on the keys it sees; not on the tile, the block, the other
// requests, the number of threads, nor on whether its prompt came whole, in chunks or token by token.
#include "attention.h"

#include <omp.h>

#include "simd.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

constexpr int kKeys = 128;  // keys of one softmax step
constexpr int kKeyVecs = kKeys / kLanes;
// A tile of kTileRows x kTileVecs accumulators, the vectors they are fed from, and a broadcast fit the registers.
constexpr int kTileRows = kLanes == 4 ? 4 : 6;
constexpr int kTileVecs = ORCASERVE_REGISTERS == 32 ? 4 : 2;
static_assert(kTileRows <= kLanes, "the rescaling factors of a tile are computed in one vector");

constexpr float kInfinity = __builtin_inff();

// The pieces of one thread's scratch memory.
struct Scratch {
  float* q;       // [rows][head_dim], scaled
  float* o;       // [rows][padded head_dim]
  float* sum;     // [rows][kLanes]: l, still spread over lanes
  float* max;     // [rows]: m
  float* scores;  // [kTileRows][kKeys]
  void* keys;     // [head_dim][kKeys], used when pages do not hold whole vectors
};

int padded(int n) { return (n + kLanes - 1) / kLanes * kLanes; }

size_t scratch_floats(int rows, int head_dim) {
  const size_t r = static_cast<size_t>(rows), d = static_cast<size_t>(head_dim);
  return r * d + r * static_cast<size_t>(padded(head_dim)) + r * kLanes + r + size_t{kTileRows} * kKeys + d * kKeys;
}

Scratch carve(float* p, int rows, int head_dim) {
  Scratch s;
  s.scores = p;
  s.sum = s.scores + kTileRows * kKeys;
  s.o = s.sum + int64_t{rows} * kLanes;
  s.keys = s.o + int64_t{rows} * padded(head_dim);
  s.q = static_cast<float*>(s.keys) + int64_t{head_dim} * kKeys;
  s.max = s.q + int64_t{rows} * head_dim;
  return s;
}

// scores[r][v] += q[r] . keys of vector v, for ROWS rows and VECS vectors. columns[v] is dimension 0 of vector v; rows are
// these keys' values, fetched meanwhile: they lie in pages of their own, whose start the machine cannot foresee.
template <int ROWS, int VECS, typename T>
inline void score_tile(const float* q, int head_dim, const T* const* columns, int64_t stride, const T* const* rows,
                       float* scores) {
  Vec acc[ROWS][VECS] = {};
  for (int d = 0; d < head_dim; ++d) {
#pragma GCC unroll 8
    for (int v = 0; v < VECS; ++v) __builtin_prefetch(rows[v * kLanes] + d * kLanes);
    Vec key[VECS];
#pragma GCC unroll 8
    for (int v = 0; v < VECS; ++v) key[v] = load(columns[v] + d * stride);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
      const Vec x = splat(q[int64_t{r} * head_dim + d]);
#pragma GCC unroll 8
      for (int v = 0; v < VECS; ++v) acc[r][v] = multiply_add(x, key[v], acc[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < VECS; ++v) store(scores + r * kKeys + v * kLanes, acc[r][v]);
}

// o[r][v] = o[r][v] * factor[r] + sum over keys j of weights[r][j] * value row j, for VECS vectors of dimensions from `col`.
template <int ROWS, int VECS, typename T>
inline void value_tile(const float* weights, const float* factor, const T* const* rows, int n_keys, int col, float* o,
                       int o_stride) {
  Vec acc[ROWS][VECS];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < VECS; ++v) acc[r][v] = load(o + r * o_stride + col + v * kLanes) * splat(factor[r]);
  for (int j = 0; j < n_keys; ++j) {
    const T* row = rows[j] + col;
    Vec value[VECS];
#pragma GCC unroll 8
    for (int v = 0; v < VECS; ++v) value[v] = load(row + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
      const Vec w = splat(weights[r * kKeys + j]);
#pragma GCC unroll 8
      for (int v = 0; v < VECS; ++v) acc[r][v] = multiply_add(w, value[v], acc[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < VECS; ++v) store(o + r * o_stride + col + v * kLanes, acc[r][v]);
}

// The dimensions that do not fill a vector, one by one.
template <typename T>
void value_rest(int n_rows, const float* weights, const float* factor, const T* const* rows, int n_keys, int col,
                int head_dim, float* o, int o_stride) {
  for (int r = 0; r < n_rows; ++r)
    for (int c = col; c < head_dim; ++c) {
      float acc = o[r * o_stride + c] * factor[r];
      for (int j = 0; j < n_keys; ++j) acc = multiply_add(weights[r * kKeys + j], to_float(rows[j][c]), acc);
      o[r * o_stride + c] = acc;
    }
}

// The running softmax of one row over a step: scores become weights, m and l move on. Returns m's change (old - new).
inline float softmax_step(float* scores, int n_vecs, int n_visible, float* max, float* sum_lanes) {
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

// One step for one tile: ROWS rows that start at `row`, over the keys whose columns and rows are given.
template <int ROWS, typename T>
void tile_step(const Attention& a, const Scratch& s, int row, const int* n_visible, int n_keys, const T* const* columns,
               int64_t stride, const T* const* rows) {
  const int d = a.head_dim, o_stride = padded(d), n_vecs = (n_keys + kLanes - 1) / kLanes;
  const float* q = s.q + int64_t{row} * d;
  int v = 0;
  for (; v + kTileVecs <= n_vecs; v += kTileVecs)
    score_tile<ROWS, kTileVecs>(q, d, columns + v, stride, rows + v * kLanes, s.scores + v * kLanes);
  for (; v < n_vecs; ++v)
    score_tile<ROWS, 1>(q, d, columns + v, stride, rows + v * kLanes, s.scores + v * kLanes);

  float change[kLanes] = {};
  for (int r = 0; r < ROWS; ++r)
    change[r] = softmax_step(s.scores + r * kKeys, n_vecs, n_visible[r], s.max + row + r, s.sum + (row + r) * kLanes);
  float factor[kLanes];
  store(factor, exp_nonpositive(load(change)));

  float* o = s.o + int64_t{row} * o_stride;
  int c = 0;
  for (; c + kTileVecs * kLanes <= d; c += kTileVecs * kLanes)
    value_tile<ROWS, kTileVecs>(s.scores, factor, rows, n_keys, c, o, o_stride);
  for (; c + kLanes <= d; c += kLanes) value_tile<ROWS, 1>(s.scores, factor, rows, n_keys, c, o, o_stride);
  if (c < d) value_rest(ROWS, s.scores, factor, rows, n_keys, c, d, o, o_stride);
}

// tile_step of as many rows as the tile has.
template <typename T, int ROWS = kTileRows>
void tile_step_of(int n_rows, const Attention& a, const Scratch& s, int row, const int* n_visible, int n_keys,
                  const T* const* columns, int64_t stride, const T* const* rows) {
  if (n_rows == ROWS)
    tile_step<ROWS>(a, s, row, n_visible, n_keys, columns, stride, rows);
  else if constexpr (ROWS > 1)
    tile_step_of<T, ROWS - 1>(n_rows, a, s, row, n_visible, n_keys, columns, stride, rows);
}

// The pages of one request and one K/V head.
template <typename T>
struct Pages {
  T* keys;
  T* values;
  const int32_t* table;
  int64_t page_elements;  // of all heads together
  int64_t head_offset;
  int page_size;
  int head_dim;

  Pages(const Attention& a, int request, int head)
      : keys(static_cast<T*>(a.keys)),
        values(static_cast<T*>(a.values)),
        table(a.table + request * a.table_width),
        page_elements(int64_t{a.n_kv_heads} * a.page_size * a.head_dim),
        head_offset(int64_t{head} * a.page_size * a.head_dim),
        page_size(a.page_size),
        head_dim(a.head_dim) {}

  // Dimension 0 of token t's key; the next dimension lies page_size further on.
  T* key(int t) const { return keys + table[t / page_size] * page_elements + head_offset + t % page_size; }
  T* value(int t) const {
    return values + table[t / page_size] * page_elements + head_offset + int64_t{t % page_size} * head_dim;
  }
};

// Writes the block's new keys and values of one head into the request's pages.
template <typename T>
void append(const Attention& a, const Block& b, int head) {
  const Pages<T> pages(a, b.request, head);
  const int64_t token = a.starts[b.request] + b.first;
  for (int i = 0; i < b.n; ++i) {
    const int t = a.contexts[b.request] + b.first + i;
    const float* k = a.k + (token + i) * a.k_stride + int64_t{head} * a.head_dim;
    const float* v = a.v + (token + i) * a.v_stride + int64_t{head} * a.head_dim;
    T* key = pages.key(t);
    T* value = pages.value(t);
    for (int d = 0; d < a.head_dim; ++d) from_float(k[d], key + int64_t{d} * a.page_size);
    for (int d = 0; d < a.head_dim; ++d) from_float(v[d], value + d);
  }
}

// Points columns at the keys t0 .. t0 + n_keys (a vector each) and rows at their values; returns the columns' stride.
template <typename T>
int64_t locate(const Pages<T>& pages, int t0, int n_keys, T* staging, const T** columns, const T** rows) {
  for (int j = 0; j < n_keys; ++j) rows[j] = pages.value(t0 + j);
  if (pages.page_size % kLanes == 0) {
    for (int j = 0; j < n_keys; j += kLanes) columns[j / kLanes] = pages.key(t0 + j);
    return pages.page_size;
  }
  for (int j = 0; j < n_keys; ++j) {  // vectors would straddle pages: copy the keys together
    const T* key = pages.key(t0 + j);
    for (int d = 0; d < pages.head_dim; ++d) staging[d * kKeys + j] = key[int64_t{d} * pages.page_size];
  }
  for (int v = 0; v < kKeyVecs; ++v) columns[v] = staging + v * kLanes;
  return kKeys;
}

template <typename T>
void attend_block(const Attention& a, const Block& b, int head, const Scratch& s) {
  const int d = a.head_dim, group = a.n_heads / a.n_kv_heads, n_rows = b.n * group, o_stride = padded(d);
  const int64_t token = a.starts[b.request] + b.first;
  const Pages<T> pages(a, b.request, head);

  for (int row = 0; row < n_rows; ++row) {
    const float* q = a.q + (token + row / group) * a.q_stride + int64_t{head * group + row % group} * d;
    for (int i = 0; i < d; ++i) s.q[int64_t{row} * d + i] = q[i] * a.scale;
    for (int i = 0; i < o_stride; ++i) s.o[int64_t{row} * o_stride + i] = 0.0f;
    store(s.sum + row * kLanes, Vec{});
    s.max[row] = -kInfinity;
  }

  const int seen_first = a.contexts[b.request] + b.first + 1;  // keys that the block's first token sees
  const int seen_last = seen_first + b.n - 1;
  for (int t0 = 0; t0 < seen_last; t0 += kKeys) {
    const T* columns[kKeyVecs];
    const T* rows[kKeys];
    const int step_keys = seen_last - t0 < kKeys ? seen_last - t0 : kKeys;
    const int64_t stride = locate(pages, t0, step_keys, static_cast<T*>(s.keys), columns, rows);
    for (int row = 0; row < n_rows; row += kTileRows) {
      const int tile = n_rows - row < kTileRows ? n_rows - row : kTileRows;
      int n_visible[kTileRows];
      int n_keys = 0;
      for (int r = 0; r < tile; ++r) {
        const int visible = seen_first + (row + r) / group - t0;
        n_visible[r] = visible < 0 ? 0 : visible < step_keys ? visible : step_keys;
        n_keys = n_visible[r];  // rows are in the order of tokens: the last one sees most
      }
      if (n_keys > 0) tile_step_of<T>(tile, a, s, row, n_visible, n_keys, columns, stride, rows);
    }
  }

  for (int row = 0; row < n_rows; ++row) {
    float* out = a.out + (token + row / group) * a.out_stride + int64_t{head * group + row % group} * d;
    const float inverse = 1.0f / horizontal_sum(load(s.sum + row * kLanes));
    for (int i = 0; i < d; ++i) out[i] = s.o[int64_t{row} * o_stride + i] * inverse;
  }
}

template <typename T>
void attend_all(const Attention& a) {
  const int group = a.n_heads / a.n_kv_heads;
  const int rows = group > kBlockRows ? group : kBlockRows;
  const int64_t n_units = a.n_blocks * a.n_kv_heads, n_sharing = a.n_sharing * a.n_kv_heads;
#pragma omp parallel num_threads(a.n_threads) if (n_units > 1)
  {
    const Scratch s = carve(a.scratch + static_cast<size_t>(omp_get_thread_num()) * a.scratch_floats, rows, a.head_dim);
    if (n_sharing > 0) {
#pragma omp for schedule(static)
      for (int64_t i = 0; i < n_sharing; ++i)
        append<T>(a, a.blocks[i / a.n_kv_heads], static_cast<int>(i % a.n_kv_heads));
    }
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t i = 0; i < n_units; ++i) {
      const Block& b = a.blocks[i / a.n_kv_heads];
      const int head = static_cast<int>(i % a.n_kv_heads);
      if (!b.shares_kv) append<T>(a, b, head);
      attend_block<T>(a, b, head, s);
    }
  }
}

void attend(const Attention& a) {
  if (a.storage == Storage::kFloat32)
    attend_all<float>(a);
  else
    attend_all<BFloat16>(a);
}

}  // namespace

extern const Kernels kernels;
#define ORCASERVE_NAME_(x) #x
#define ORCASERVE_NAME(x) ORCASERVE_NAME_(x)
const Kernels kernels{ORCASERVE_NAME(ORCASERVE_ISA), attend, scratch_floats};

}  // namespace orcaserve::ORCASERVE_ISA
