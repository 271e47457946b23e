// Low-rank adapters: what a Linear's outputs gain in the rows of requests that have one, y += B (scales * (A x)). A and B
// are a few columns wide, so many adapters are kept side by side, and the base model's weights are read once for all of them.
#pragma once

#include <cstdint>

namespace orcaserve {

constexpr int kAdapterLanes = 16;  // the columns of a part (of q, say) are filled up to a multiple of it
constexpr int kRunRows = 8;        // most rows of a piece: a unit of work

// How the numbers of A and B are held, of a Linear whose matrix is float32, bfloat16, or int8 or int4.
//
// kFloat32   [n][columns] float
// kBFloat16  [n / 2][columns][2] bfloat16: two neighbours of n side by side; n is filled up to an even number
// kInt8      A: [n_in_padded / 4][width][4] uint8, 128 too large, of inputs as the matrix's operand has them (kInt8: turned, and
//            without the exact ones). B: kAdapterLanes of n at a time, [4][kPanel][4] uint8, 128 too large, and behind them
//            [kPanel] bfloat16 scales; n is filled up to a multiple of kAdapterLanes.
enum class AdapterNumbers : int { kFloat32 = 0, kBFloat16 = 1, kInt8 = 2 };

// Of one Linear.
struct AdaptedLinear {
  AdapterNumbers numbers;
  int n_in;
  int width;              // columns of t = scales * (A x), all parts side by side; 0: the Linear is as it is without
  const void* a;          // n = n_in, `width` columns
  const float* a_scales;  // kInt8: [groups of the matrix][width]
  const float* exact;     // kInt8: [exact inputs of the matrix][width], their numbers of A
  const float* scales;    // [width]
  // Panel p of the Linear's outputs gains t[first[p]] .. t[first[p] + n[p] - 1] times B, n[p] and kPanel columns, which begins
  // at[p] bytes behind b. kInt8: first[p] is a multiple of kAdapterLanes.
  const int32_t* first;
  const int32_t* n;
  const int64_t* at;
  const uint8_t* b;
};

struct AdaptedLayer {
  AdaptedLinear qkv, out, up, down;
};

struct Adapter {
  int width;  // of the widest Linear
  const AdaptedLayer* layers;
};

// Some rows of a block that have one adapter, or none (null): AdapterRows::rows[first] .. rows[first + n - 1].
struct AdapterRun {
  const Adapter* adapter;
  int32_t first;
  int32_t n;
};

// The rows of a block (of kRowBlock rows); those of one adapter stand together, in order.
struct AdapterRows {
  const int32_t* rows;       // counted from the block's first one
  const AdapterRun* runs;    // one for each adapter
  int n_runs;
  const AdapterRun* pieces;  // all rows, also those without adapters, cut; in the order of their first rows
  int n_pieces;
};

}  // namespace orcaserve
