// Operators on rows: embedding, norms, quantisation of activations, and what is done with the tiles of a Linear.
//
// Order of sums. A norm adds its inputs in kStreams vectors in turn, these pairwise, and their lanes by halves: always
// the same for a length and an instruction set.
#include "rows.h"

#include "activation.h"
#include "quantise.h"
#include "simd.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

// ---- Tables of rows ----

// Puts n numbers at out, or adds them to what is there.
template <bool ADD>
inline void put(const float* x, int n, float* out) {
  for (int i = 0; i < n; ++i) out[i] = ADD ? out[i] + x[i] : x[i];
}

inline float half_at(const uint8_t* p) {
  uint16_t half;
  __builtin_memcpy(&half, p, sizeof half);
  return half_to_float(half);
}

// The kinds of blocks of GGUF: kNumbers numbers in kBytes bytes. A product is rounded before it is added to, as in
// orcaserve/checkpoint/dequantise.py: both give the same bits.
struct Q8_0 {
  static constexpr int kNumbers = 32, kBytes = 34;
  static void turn(const uint8_t* block, float* out) {
    const float scale = half_at(block);
    for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * scale;
  }
};

struct Q4_0 {
  static constexpr int kNumbers = 32, kBytes = 18;
  static void turn(const uint8_t* block, float* out) {
    const float scale = half_at(block);
    for (int i = 0; i < 16; ++i) {
      out[i] = static_cast<float>((block[2 + i] & 15) - 8) * scale;
      out[16 + i] = static_cast<float>((block[2 + i] >> 4) - 8) * scale;
    }
  }
};

struct Q4_1 {
  static constexpr int kNumbers = 32, kBytes = 20;
  static void turn(const uint8_t* block, float* out) {
    const float scale = half_at(block), minimum = half_at(block + 2);
    for (int i = 0; i < 16; ++i) {
      out[i] = static_cast<float>(block[4 + i] & 15) * scale + minimum;
      out[16 + i] = static_cast<float>(block[4 + i] >> 4) * scale + minimum;
    }
  }
};

struct Float32 {
  static constexpr int kNumbers = 1, kBytes = 4;
  static void turn(const uint8_t* p, float* out) { __builtin_memcpy(out, p, 4); }
};

struct BFloat16Bits {
  static constexpr int kNumbers = 1, kBytes = 2;
  static void turn(const uint8_t* p, float* out) {
    BFloat16 bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    *out = to_float(bits);
  }
};

template <typename Kind, bool ADD>
void put_row(const uint8_t* row, int width, float* out) {
  for (int i = 0; i < width; i += Kind::kNumbers) {
    float numbers[Kind::kNumbers];
    Kind::turn(row + int64_t{i / Kind::kNumbers} * Kind::kBytes, numbers);
    put<ADD>(numbers, Kind::kNumbers, out + i);
  }
}

template <bool ADD>
void put_row(const Table& table, int64_t row, int width, float* out) {
  const uint8_t* p = table.rows + row * table.row_bytes;
  switch (table.format) {
    case RowFormat::kFloat32: return put_row<Float32, ADD>(p, width, out);
    case RowFormat::kBFloat16: return put_row<BFloat16Bits, ADD>(p, width, out);
    case RowFormat::kQ8_0: return put_row<Q8_0, ADD>(p, width, out);
    case RowFormat::kQ4_0: return put_row<Q4_0, ADD>(p, width, out);
    case RowFormat::kQ4_1: return put_row<Q4_1, ADD>(p, width, out);
  }
}

// ---- Norms ----

constexpr int kStreams = 4;  // sums under way at the same time, since each waits for its last addition

// The sum of term(x) over x[n]; of vectors that are not full, the terms of the missing numbers must be 0.
template <typename Term>
inline float sum_of(const float* x, int n, const Term& term) {
  Vec sum[kStreams] = {};
  const int whole = n / kLanes * kLanes;
  int i = 0;
  for (; i + kStreams * kLanes <= whole; i += kStreams * kLanes)
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s) sum[s] = term(load(x + i + s * kLanes), kLanes, sum[s]);
  for (; i < whole; i += kLanes) sum[0] = term(load(x + i), kLanes, sum[0]);
  if (i < n) sum[0] = term(load_first(x + i, n - i), n - i, sum[0]);
  return horizontal_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// out[i] = value(i, x[i]) with value working on vectors.
template <typename Value>
inline void map(const float* x, int n, float* out, const Value& value) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, value(load(x + i), [&](const float* p) { return load(p + i); }));
  const int rest = n - i;
  if (rest > 0)
    store_first(out + i, value(load_first(x + i, rest), [&](const float* p) { return load_first(p + i, rest); }), rest);
}

void rms_norm(float eps, const NormWeights& w, const float* x, int n, float* out) {
  const float squares = sum_of(x, n, [](Vec v, int, Vec sum) { return multiply_add(v, v, sum); });
  const Vec inverse = splat(1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + eps));
  map(x, n, out, [&](Vec v, auto at) { return v * inverse * at(w.weight); });
}

void layer_norm(float eps, const NormWeights& w, const float* x, int n, float* out) {
  const float sum = sum_of(x, n, [](Vec v, int, Vec s) { return s + v; });
  const Vec mean = splat(sum / static_cast<float>(n));
  const float squares = sum_of(x, n, [&](Vec v, int count, Vec s) {
    Vec d = v - mean;
    for (int i = count; i < kLanes; ++i) d[i] = 0.0f;
    return multiply_add(d, d, s);
  });
  const Vec inverse = splat(1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + eps));
  if (w.bias != nullptr) {
    map(x, n, out, [&](Vec v, auto at) { return multiply_add((v - mean) * inverse, at(w.weight), at(w.bias)); });
  } else {
    map(x, n, out, [&](Vec v, auto at) { return (v - mean) * inverse * at(w.weight); });
  }
}

// ---- Tiles ----

// y[r][c] = value(index of r, c in a tile, c, y[r] + c, lanes); lanes: fewer than kLanes at the end of a narrow tile.
template <typename Value>
inline void each_vector(int n_rows, int n_cols, float* y, int64_t y_stride, const Value& value) {
  for (int r = 0; r < n_rows; ++r, y += y_stride) {
    int c = 0;
    for (; c + kLanes <= n_cols; c += kLanes) store(y + c, value(r * kPanel + c, c, y + c, kLanes));
    if (c < n_cols) store_first(y + c, value(r * kPanel + c, c, y + c, n_cols - c), n_cols - c);
  }
}

constexpr float kNoBias[kPanel] = {};

template <Activation ACT>
void activate_as(const float* tile, int n_rows, int n_cols, const float* bias, float* y, int64_t y_stride) {
  each_vector(n_rows, n_cols, y, y_stride,
              [&](int at, int c, float*, int) { return activate<ACT>(load(tile + at) + load(bias + c)); });
}

template <Activation ACT>
void gate_as(const float* gate, const float* up, int n_rows, int n_cols, const float* gate_bias, const float* up_bias,
             float* y, int64_t y_stride) {
  each_vector(n_rows, n_cols, y, y_stride, [&](int at, int c, float*, int) {
    return activate<ACT>(load(gate + at) + load(gate_bias + c)) * (load(up + at) + load(up_bias + c));
  });
}

}  // namespace

void read_row(const Table& table, int64_t row, int width, float* out) { put_row<false>(table, row, width, out); }

void add_row(const Table& table, int64_t row, int width, float* out) { put_row<true>(table, row, width, out); }

void normalise(Norm kind, float eps, const NormWeights& w, const float* x, int n, float* out) {
  if (kind == Norm::kRms) {
    rms_norm(eps, w, x, n, out);
  } else {
    layer_norm(eps, w, x, n, out);
  }
}

namespace {

template <bool MASKED>
void quantise_row(const Matrix& w, const float* x, const Operand& to, int row) {
  const bool turned = w.format == Format::kInt8;
  const float factor = turned ? 0.125f : 1.0f;
  int8_t* q = to.q + row * to.q_stride;
  alignas(64) float chunk[kChunk];
  for (int group = 0, from = 0; group < to.n_groups; ++group, from += w.group) {
    IntVec top{};
    if (turned) {
      for (int i = 0; i < w.group; i += kChunk) {
        const int n = w.group - i < kChunk ? w.group - i : kChunk;
        top = maximum(top, turn_chunk<MASKED>(x + from + i, w.kept + from + i, w.n_in - from - i, n, chunk));
      }
    } else {
      for (int i = 0; i < w.group; i += kLanes) top = maximum(top, magnitude(load(x + from + i)));
    }
    const Scale s = scale_of(top, factor);
    const Vec inverse = splat(s.inverse);
    IntVec sum{};
    if (s.inverse == 0.0f) {
      for (int i = 0; i < w.group; ++i) q[from + i] = 0;
    } else {
      for (int i = 0; i < w.group; i += kChunk) {
        const int n = w.group - i < kChunk ? w.group - i : kChunk;
        // A group longer than a chunk is turned once more rather than kept.
        if (turned && w.group > kChunk) turn_chunk<MASKED>(x + from + i, w.kept + from + i, w.n_in - from - i, n, chunk);
        const float* numbers = turned ? chunk : x + from + i;
        for (int j = 0; j < n; j += kInt4Block) round_block(numbers + j, inverse, q + from + i + j, sum);
      }
    }
    to.scales[int64_t{row} * to.n_groups + group] = s.scale;
    to.sums[int64_t{row} * to.n_groups + group] = horizontal_sum(sum);
  }
}

}  // namespace

void quantise(const Matrix& w, const float* x, const Operand& to, int row) {
  if (w.n_exact == 0) return quantise_row<false>(w, x, to, row);
  take_exact(w, x, to.exact + int64_t{row} * exact_floats(w.n_exact));
  quantise_row<true>(w, x, to, row);
}

void rescore(const Table& head_rows, const float* bias, const float* x, int hidden, float* logits, int vocab, float* buffer,
             float close) {
  Vec most = splat(logits[0]);
  const int whole = vocab / kLanes * kLanes;
  for (int i = 0; i < whole; i += kLanes) most = maximum(load(logits + i), most);
  float bound = horizontal_max(most);
  for (int i = whole; i < vocab; ++i) bound = logits[i] > bound ? logits[i] : bound;
  bound -= close;
  int near[kMostClose], n = 0;
  for (int i = 0; i < whole && n < kMostClose; i += kLanes) {
    const IntVec is_near = load(logits + i) >= splat(bound);
    if (horizontal_max(-is_near) == 0) continue;
    for (int j = 0; j < kLanes && n < kMostClose; ++j)
      if (is_near[j]) near[n++] = i + j;
  }
  for (int i = whole; i < vocab && n < kMostClose; ++i)
    if (logits[i] >= bound) near[n++] = i;
  for (int i = 0; i < n; ++i) {
    read_row(head_rows, near[i], hidden, buffer);
    Vec sum{};
    int j = 0;
    for (; j + kLanes <= hidden; j += kLanes) sum = multiply_add(load(x + j), load(buffer + j), sum);
    float logit = horizontal_sum(sum);
    for (; j < hidden; ++j) logit += x[j] * buffer[j];
    logits[near[i]] = bias != nullptr ? logit + bias[near[i]] : logit;
  }
}

void scale_row(float* x, int n, float scale) {
  map(x, n, x, [&](Vec v, auto) { return v * scale; });
}

void cap_row(float* x, int n, float scale, float cap) {
  const float inverse = 1.0f / cap;
  map(x, n, x, [&](Vec v, auto) { return cap * hyperbolic_tangent(v * scale * inverse); });
}

void add_scaled(const float* x, int n, float scale, float* to) {
  map(to, n, to, [&](Vec v, auto at) { return multiply_add(at(x), splat(scale), v); });
}

void store_tile(const float* tile, int n_rows, int n_cols, const float* bias, float* y, int64_t y_stride) {
  const float* b = bias != nullptr ? bias : kNoBias;
  each_vector(n_rows, n_cols, y, y_stride, [&](int at, int c, float*, int) { return load(tile + at) + load(b + c); });
}

void add_tile(const float* tile, int n_rows, int n_cols, const float* bias, float* y, int64_t y_stride) {
  const float* b = bias != nullptr ? bias : kNoBias;
  each_vector(n_rows, n_cols, y, y_stride, [&](int at, int c, float* p, int n) {
    return (n == kLanes ? load(p) : load_first(p, n)) + (load(tile + at) + load(b + c));
  });
}

void activate_tile(Activation act, const float* tile, int n_rows, int n_cols, const float* bias, float* y,
                   int64_t y_stride) {
  const float* b = bias != nullptr ? bias : kNoBias;
  switch (act) {
    case Activation::kSilu: return activate_as<Activation::kSilu>(tile, n_rows, n_cols, b, y, y_stride);
    case Activation::kGelu: return activate_as<Activation::kGelu>(tile, n_rows, n_cols, b, y, y_stride);
    case Activation::kGeluTanh: return activate_as<Activation::kGeluTanh>(tile, n_rows, n_cols, b, y, y_stride);
    case Activation::kRelu: return activate_as<Activation::kRelu>(tile, n_rows, n_cols, b, y, y_stride);
  }
}

void gate_tile(Activation act, const float* gate, const float* up, int n_rows, int n_cols, const float* gate_bias,
               const float* up_bias, float* y, int64_t y_stride) {
  const float* gb = gate_bias != nullptr ? gate_bias : kNoBias;
  const float* ub = up_bias != nullptr ? up_bias : kNoBias;
  switch (act) {
    case Activation::kSilu: return gate_as<Activation::kSilu>(gate, up, n_rows, n_cols, gb, ub, y, y_stride);
    case Activation::kGelu: return gate_as<Activation::kGelu>(gate, up, n_rows, n_cols, gb, ub, y, y_stride);
    case Activation::kGeluTanh: return gate_as<Activation::kGeluTanh>(gate, up, n_rows, n_cols, gb, ub, y, y_stride);
    case Activation::kRelu: return gate_as<Activation::kRelu>(gate, up, n_rows, n_cols, gb, ub, y, y_stride);
  }
}

#define ORCASERVE_NAME_(x) #x
#define ORCASERVE_NAME(x) ORCASERVE_NAME_(x)
extern const RowsTable rows_table;
const RowsTable rows_table{
    ORCASERVE_NAME(ORCASERVE_ISA), multiply_float32, multiply_bfloat16, end_multiply, read_row,      add_row,   normalise, quantise,
    store_tile,                    add_tile,         activate_tile,     gate_tile,
};

}  // namespace orcaserve::ORCASERVE_ISA
