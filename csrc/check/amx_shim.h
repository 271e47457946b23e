// The tile instructions of AMX in plain C++, under the compiler's names for them, so that the code that uses them can
// be checked where there are none. Included after immintrin.h. What the manual calls an invalid operation ends the
// program.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace software_tiles {

struct Config {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(Config) == 64);

struct State {
  Config config;
  uint8_t tiles[8][16][64];
};

State& state();  // of this thread: amx_shim.cpp

namespace {

inline void must(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "AMX: %s\n", what);
  std::abort();
}

inline void configure(const void* p) {
  State& s = state();
  std::memcpy(&s.config, p, sizeof s.config);
  must(s.config.palette == 1 && s.config.start_row == 0, "palette 1, from row 0");
  for (uint8_t byte : s.config.reserved) must(byte == 0, "reserved bytes are zero");
  for (int tile = 0; tile < 16; ++tile) {
    const int rows = s.config.rows[tile], bytes = s.config.row_bytes[tile];
    must(tile < 8 ? rows <= 16 && bytes <= 64 && (rows == 0) == (bytes == 0) : rows == 0 && bytes == 0, "tile sizes");
  }
  std::memset(s.tiles, 0, sizeof s.tiles);
}

inline void release() { std::memset(&state(), 0, sizeof(State)); }

inline void must_be_configured(int tile) { must(state().config.rows[tile] > 0, "a tile that is not configured"); }

inline void zero(int tile) {
  must_be_configured(tile);
  std::memset(state().tiles[tile], 0, sizeof state().tiles[tile]);
}

inline void load(int tile, const void* base, int64_t stride) {
  zero(tile);
  State& s = state();
  for (int row = 0; row < s.config.rows[tile]; ++row)
    std::memcpy(s.tiles[tile][row], static_cast<const uint8_t*>(base) + row * stride, s.config.row_bytes[tile]);
}

inline void store(int tile, void* base, int64_t stride) {
  must_be_configured(tile);
  const State& s = state();
  for (int row = 0; row < s.config.rows[tile]; ++row)
    std::memcpy(static_cast<uint8_t*>(base) + row * stride, s.tiles[tile][row], s.config.row_bytes[tile]);
}

// What the instructions that multiply tiles ask of them.
inline void must_fit(int sums, int a, int b) {
  const Config& c = state().config;
  for (int tile : {sums, a, b}) must_be_configured(tile);
  must(sums != a && a != b && sums != b, "three different tiles");
  must(c.rows[sums] == c.rows[a] && c.row_bytes[sums] == c.row_bytes[b] && c.row_bytes[a] == 4 * c.rows[b] &&
           c.row_bytes[sums] % 4 == 0,
       "tiles that fit each other");
}

// TDPBSUD and TDPBUSD: sums += bytes of a times bytes of b, four at a time; A and B: what kind of bytes.
template <typename A, typename B>
inline void multiply_bytes(int sums, int a, int b) {
  State& s = state();
  must_fit(sums, a, b);
  for (int row = 0; row < s.config.rows[sums]; ++row)
    for (int column = 0; column < s.config.row_bytes[sums] / 4; ++column) {
      uint32_t sum;
      std::memcpy(&sum, s.tiles[sums][row] + 4 * column, sizeof sum);
      for (int i = 0; i < s.config.row_bytes[a]; ++i)
        sum += static_cast<uint32_t>(static_cast<A>(s.tiles[a][row][i]) * static_cast<B>(s.tiles[b][i / 4][4 * column + i % 4]));
      std::memcpy(s.tiles[sums][row] + 4 * column, &sum, sizeof sum);
    }
}

inline float from_bfloat16(const uint8_t* p) {
  uint16_t half;
  std::memcpy(&half, p, sizeof half);
  const uint32_t bits = uint32_t{half} << 16;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return __builtin_fabsf(x) < 0x1p-126f ? 0.0f : x;
}

// TDPBF16PS: even and odd inputs are summed apart, from 0, and their sum is added to what was there.
inline void multiply_bfloat16(int sums, int a, int b) {
  State& s = state();
  must_fit(sums, a, b);
  for (int row = 0; row < s.config.rows[sums]; ++row)
    for (int column = 0; column < s.config.row_bytes[sums] / 4; ++column) {
      float even = 0, odd = 0, sum;
      for (int k = 0; k < s.config.rows[b]; ++k) {
        const uint8_t *x = s.tiles[a][row] + 4 * k, *w = s.tiles[b][k] + 4 * column;
        even = __builtin_fmaf(from_bfloat16(x), from_bfloat16(w), even);
        odd = __builtin_fmaf(from_bfloat16(x + 2), from_bfloat16(w + 2), odd);
      }
      std::memcpy(&sum, s.tiles[sums][row] + 4 * column, sizeof sum);
      sum += even + odd;
      std::memcpy(s.tiles[sums][row] + 4 * column, &sum, sizeof sum);
    }
}

}  // namespace
}  // namespace software_tiles

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbsud
#undef _tile_dpbusd
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) software_tiles::configure(config)
#define _tile_release() software_tiles::release()
#define _tile_zero(tile) software_tiles::zero(tile)
#define _tile_loadd(tile, base, stride) software_tiles::load(tile, base, stride)
#define _tile_stored(tile, base, stride) software_tiles::store(tile, base, stride)
#define _tile_dpbsud(sums, a, b) software_tiles::multiply_bytes<int8_t, uint8_t>(sums, a, b)
#define _tile_dpbusd(sums, a, b) software_tiles::multiply_bytes<uint8_t, int8_t>(sums, a, b)
#define _tile_dpbf16ps(sums, a, b) software_tiles::multiply_bfloat16(sums, a, b)
