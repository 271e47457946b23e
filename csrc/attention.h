// How the work of attention is cut, shared by the host, which cuts it, and the kernels; and what tests reach of one
// instruction set beside KernelTable.
#pragma once

#include "model.h"

namespace orcaserve {

// Most query rows (tokens x heads of a group) of a block with more than one token.
constexpr int kBlockRows = 96;

// Keys of a part. A row's softmax runs over each part by itself and then the parts are merged in order, whether one
// thread goes through all of them or several share them: so a row's bits do not tell.
constexpr int kPartKeys = 512;

struct AttentionTable {
  const char* isa;
  void (*rope_rows)(const Rope&, const Frequencies&, const Iteration&, int first, int n, float* cos, float* sin);
};

}  // namespace orcaserve
