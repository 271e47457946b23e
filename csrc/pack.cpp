#include "pack.h"

#include <atomic>
#include <cstring>

#include "int4_block.h"

namespace orcaserve {
namespace {

constexpr int kBlockQuads = kInt4Block / 8;  // [kBlockQuads][kPanel][4] bytes hold a block's nibbles
constexpr int64_t kBlockNibbles = int64_t{kBlockQuads} * kPanel * 4;
constexpr int64_t kBlockBytes = kBlockNibbles + 2 * kPanel * 2;

int round_up(int n, int to) { return (n + to - 1) / to * to; }
int least(int a, int b) { return a < b ? a : b; }

// The parts and rows that the outputs of a panel come from; part is null beyond the last output.
template <typename Part>
struct Source {
  const Part* part;
  int row;
};

template <typename Part>
void find_sources(const Part* parts, int n_parts, bool interleaved, int panel, Source<Part> (&sources)[kPanel]) {
  int part = interleaved ? panel % 2 : 0, row = (interleaved ? panel / 2 : panel) * kPanel;
  const int end = interleaved ? part + 1 : n_parts;
  for (Source<Part>& source : sources) {
    while (part < end && row >= parts[part].n_out) row -= parts[part++].n_out;
    source = {part < end ? parts + part : nullptr, row++};
  }
}

// Up to n floats, filled up with zeros.
void load_row(const float* from, int available, int n, float* to) {
  const int real = available < 0 ? 0 : least(available, n);
  std::memcpy(to, from, sizeof(float) * static_cast<size_t>(real));
  std::memset(to + real, 0, sizeof(float) * static_cast<size_t>(n - real));
}

void write_float32(const float* const (&rows)[kPanel], int n_in, uint8_t* panel) {
  constexpr int kRun = 16;  // a cache line of a row
  for (int start = 0; start < n_in; start += kRun)
    for (int o = 0; o < kPanel; ++o) {
      const int end = least(n_in, start + kRun);
      for (int i = start; i < end; ++i) {
        const float x = rows[o] ? rows[o][i] : 0;
        std::memcpy(panel + (int64_t{i} * kPanel + o) * 4, &x, sizeof x);
      }
    }
}

// To the nearest, ties to even; what is not a number stays so.
uint32_t to_bfloat16(float x) {
  const uint32_t bits = bits_of(x);
  return x != x ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

void write_bfloat16(const float* const (&rows)[kPanel], int n_in, uint8_t* panel) {
  constexpr int kRun = 16;
  for (int start = 0; start < n_in; start += kRun)
    for (int o = 0; o < kPanel; ++o) {
      const int end = least(n_in, start + kRun);
      for (int i = start; i < end; i += 2) {
        const uint32_t first = rows[o] ? to_bfloat16(rows[o][i]) : 0;
        const uint32_t second = rows[o] && i + 1 < n_in ? to_bfloat16(rows[o][i + 1]) : 0;
        const uint16_t pair[2] = {static_cast<uint16_t>(first), static_cast<uint16_t>(second)};
        std::memcpy(panel + (int64_t{i} * kPanel / 2 + o) * 4, pair, sizeof pair);
      }
    }
}

// x times the Hadamard matrix H / 8, H[i][j] = (-1)^popcount(i & j): six rounds of sums and differences of numbers
// whose places differ in one bit.
void turn(float* x) {
  constexpr int kVectors = kHadamard / kFloats;
  Floats v[kVectors];
  std::memcpy(v, x, sizeof v);
  for (Floats& a : v) {
    a = __builtin_shuffle(a, Words{0, 0, 2, 2}) + __builtin_shuffle(a, Words{1, 1, 3, 3}) * Floats{1, -1, 1, -1};
    a = __builtin_shuffle(a, Words{0, 1, 0, 1}) + __builtin_shuffle(a, Words{2, 3, 2, 3}) * Floats{1, 1, -1, -1};
    a *= 0.125f;
  }
#pragma GCC unroll 4
  for (int h = 1; h < kVectors; h *= 2)
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i)
      if (!(i & h)) {
        const Floats a = v[i], b = v[i + h];
        v[i] = a + b;
        v[i + h] = a - b;
      }
  std::memcpy(x, v, sizeof v);
}

float largest_magnitude(const float* x, int n) {
  Words most{};  // magnitudes of floats are ordered as their bits are
  for (int i = 0; i < n; i += kFloats) {
    Words bits;
    std::memcpy(&bits, x + i, sizeof bits);
    bits &= 0x7fffffff;
    most = bits > most ? bits : most;
  }
  uint32_t result = 0;
  for (int i = 0; i < kFloats; ++i) result = most[i] > result ? most[i] : result;
  return float_of(result);
}

// Writes the bytes of a group of output `o` and returns the scale.
float write_group(const float* x, int group, uint8_t* bytes, int o) {
  const float largest = largest_magnitude(x, group);
  // Scales too small to have an inverse stand for zeros.
  const bool zero = largest < 1e-30f;
  const Floats inverse = splat(zero ? 0 : 127 / largest);
  // Added to 1.5 * 2^23, a number is rounded to an integer, which the low bits hold; 128 more make the byte.
  const Floats shift = splat(12582912.0f + 128);
  for (int i = 0; i < group; i += kFloats) {
    Floats v;
    std::memcpy(&v, x + i, sizeof v);
    const Words sum = (Words)(v * inverse + shift);
    const uint32_t quad = (sum[0] & 0xff) | (sum[1] & 0xff) << 8 | (sum[2] & 0xff) << 16 | sum[3] << 24;
    std::memcpy(bytes + i * kPanel + o * kFloats, &quad, sizeof quad);
  }
  return zero ? 0 : largest / 127;
}

void write_int8(const float* const (&rows)[kPanel], int n_in, int group, uint8_t* panel) {
  const int padded = padded_inputs(Format::kInt8, n_in);
  float x[kMaxGroup];
  for (int o = 0; o < kPanel; ++o) {
    uint8_t* bytes = panel;
    for (int start = 0; start < padded; start += group) {
      load_row(rows[o] ? rows[o] + start : x, rows[o] ? n_in - start : 0, group, x);
      for (int i = 0; i < group; i += kHadamard) turn(x + i);
      const float scale = write_group(x, group, bytes, o);
      bytes += int64_t{group} * kPanel;
      std::memcpy(bytes + o * sizeof scale, &scale, sizeof scale);
      bytes += kPanel * sizeof scale;
    }
  }
}

// nibbles: input j of the block in the low half of byte j, input 16 + j in the high half.
void put_block(const uint8_t* nibbles, uint16_t scale, uint16_t minimum, int o, uint8_t* block) {
  for (int i = 0; i < kBlockQuads; ++i) std::memcpy(block + (i * kPanel + o) * 4, nibbles + 4 * i, 4);
  std::memcpy(block + kBlockNibbles + 2 * o, &scale, sizeof scale);
  std::memcpy(block + kBlockNibbles + 2 * (kPanel + o), &minimum, sizeof minimum);
}

void write_int4(const float* const (&rows)[kPanel], int n_in, uint8_t* panel) {
  for (int o = 0; o < kPanel; ++o) {
    uint8_t* to = panel;
    for (int start = 0; start < n_in; start += kInt4Block, to += kBlockBytes) {
      Int4Block block{};
      if (rows[o]) {
        Floats w[kBlockVectors];
        std::memcpy(w, rows[o] + start, sizeof w);
        block = quantise_block(w);
      }
      put_block(block.nibbles, block.scale, block.minimum, o, to);
    }
  }
}

bool is_number(uint16_t half) { return (half >> 10 & 31) != 31; }

// -8 times a float16, exactly; false if that is too large, or d is no number.
bool times_minus_8(uint16_t d, uint16_t* result) {
  const int exponent = d >> 10 & 31;
  if (exponent > 27) return false;
  if (exponent > 0 || (d & 0x7fff) == 0) {
    *result = static_cast<uint16_t>((d ^ 0x8000) + (exponent > 0 ? 3 << 10 : 0));
  } else {
    *result = to_half(-8 * half_to_float(d));  // subnormal: has bits to spare
  }
  return true;
}

// The blocks of output `o`.
bool write_blocks(const Source<BlockPart>& source, int n_blocks, int o, uint8_t* panel) {
  bool ok = true;
  const uint8_t* from = source.part ? source.part->rows + source.row * source.part->stride : nullptr;
  for (int b = 0; b < n_blocks; ++b, panel += kBlockBytes) {
    uint16_t scale = 0, minimum = 0;
    uint8_t nibbles[kInt4Block / 2] = {};
    if (from) {
      const int halves = source.part->format == RowFormat::kQ4_1 ? 2 : 1;
      std::memcpy(&scale, from, sizeof scale);
      if (halves == 2) {
        std::memcpy(&minimum, from + 2, sizeof minimum);
        ok &= is_number(scale) && is_number(minimum);
      } else {
        ok &= times_minus_8(scale, &minimum);
      }
      std::memcpy(nibbles, from + 2 * halves, sizeof nibbles);
      from += 2 * halves + kInt4Block / 2;
    }
    put_block(nibbles, scale, minimum, o, panel);
  }
  return ok;
}

template <typename Part>
int total_outputs(const Part* parts, int n_parts) {
  int n = 0;
  for (int i = 0; i < n_parts; ++i) n += parts[i].n_out;
  return n;
}

// Calls write(panel number) for all panels, on all threads.
template <typename Write>
void for_panels(int n_panels, Team& team, const Write& write) {
  struct Context {
    int n_panels;
    Team& team;
    const Write& write;
  } context{n_panels, team, write};
  team.run(
      [](void* p, int) {
        const Context& c = *static_cast<const Context*>(p);
        for (int64_t panel = c.team.take(); panel < c.n_panels; panel = c.team.take())
          c.write(static_cast<int>(panel));
      },
      &context);
}

}  // namespace

int padded_inputs(Format format, int n_in) {
  switch (format) {
    case Format::kFloat32: return n_in;
    case Format::kBFloat16: return round_up(n_in, 2);
    case Format::kInt8: return round_up(n_in, kHadamard);
    case Format::kInt4: return round_up(n_in, kInt4Block);
  }
  return 0;
}

int group_inputs(Format format, int n_in_padded) {
  if (format == Format::kInt4) return kInt4Block;
  if (format != Format::kInt8) return n_in_padded;
  int group = kMaxGroup;
  while (n_in_padded % group != 0) group -= kHadamard;
  return group;
}

int64_t panel_bytes(Format format, int n_in_padded, int group) {
  switch (format) {
    case Format::kFloat32: return int64_t{n_in_padded} * kPanel * 4;
    case Format::kBFloat16: return int64_t{n_in_padded} * kPanel * 2;
    case Format::kInt8: return int64_t{n_in_padded} * kPanel + n_in_padded / group * kPanel * 4;
    case Format::kInt4: return n_in_padded / kInt4Block * kBlockBytes;
  }
  return 0;
}

int count_panels(int n_out, bool interleaved) {
  const int parts = interleaved ? 2 : 1;
  return parts * (round_up(n_out / parts, kPanel) / kPanel);
}

void pack_floats(Format format, const FloatPart* parts, int n_parts, int n_in, bool interleaved, uint8_t* panels,
                 Team& team) {
  const int padded = padded_inputs(format, n_in), group = group_inputs(format, padded);
  const int64_t bytes = panel_bytes(format, padded, group);
  for_panels(count_panels(total_outputs(parts, n_parts), interleaved), team, [=](int panel) {
    Source<FloatPart> sources[kPanel];
    find_sources(parts, n_parts, interleaved, panel, sources);
    const float* rows[kPanel];
    for (int o = 0; o < kPanel; ++o) {
      const FloatPart* part = sources[o].part;
      rows[o] = part ? part->weights + sources[o].row * part->stride : nullptr;
    }
    uint8_t* to = panels + panel * bytes;
    switch (format) {
      case Format::kFloat32: return write_float32(rows, n_in, to);
      case Format::kBFloat16: return write_bfloat16(rows, n_in, to);
      case Format::kInt8: return write_int8(rows, n_in, group, to);
      case Format::kInt4: return write_int4(rows, n_in, to);
    }
  });
}

bool pack_blocks(const BlockPart* parts, int n_parts, int n_in, bool interleaved, uint8_t* panels, Team& team) {
  const int n_blocks = n_in / kInt4Block;
  std::atomic<bool> all_ok{true};
  for_panels(count_panels(total_outputs(parts, n_parts), interleaved), team, [&](int panel) {
    Source<BlockPart> sources[kPanel];
    find_sources(parts, n_parts, interleaved, panel, sources);
    bool ok = true;
    for (int o = 0; o < kPanel; ++o)
      ok &= write_blocks(sources[o], n_blocks, o, panels + int64_t{panel} * n_blocks * kBlockBytes);
    if (!ok) all_ok = false;
  });
  return all_ok;
}

}  // namespace orcaserve
