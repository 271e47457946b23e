// Low-rank adapters: what a Linear's outputs gain in the rows of requests that have one, y += B (scales * (A x)). A and B
// are a few columns wide, so many adapters are kept side by side, and the base model's weights are read once for all of them.
#pragma once

#include <cstdint>

namespace orcaserve {

constexpr int kAdapterLanes = 16;  // the columns of a part (of q, say) are filled up to a multiple of it
constexpr int kRunRows = 8;        // most rows of a piece of a run: a unit of work

// Of one Linear. Numbers of a and b are float or bfloat16, as the adapter says.
struct AdaptedLinear {
  int n_in;
  int width;              // columns of t = scales * (A x), all parts side by side; 0: the Linear is as it is without
  const void* a;          // [n_in][width]
  const float* scales;    // [width]
  // Panel p of the Linear's outputs gains t[first[p]] .. t[first[p] + n[p] - 1] times b[at[p]] .., as [n[p]][kPanel].
  const int32_t* first;
  const int32_t* n;
  const int64_t* at;
  const void* b;
};

struct AdaptedLayer {
  AdaptedLinear qkv, out, up, down;
};

struct Adapter {
  bool is_bfloat16;
  int width;  // of the widest Linear
  const AdaptedLayer* layers;
};

// Some rows of a block that have one adapter: AdapterRows::rows[first] .. rows[first + n - 1].
struct AdapterRun {
  const Adapter* adapter;
  int32_t first;
  int32_t n;
};

// The rows of a block (of kRowBlock rows) that have adapters; those of one adapter stand together, in order.
struct AdapterRows {
  const int32_t* rows;  // counted from the block's first one
  const AdapterRun* runs;  // one for each adapter
  int n_runs;
  const AdapterRun* pieces;  // the same, cut
  int n_pieces;
};

}  // namespace orcaserve
