// The host's side of attention: refuses layouts that reach outside their memory and cuts an iteration into blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "model.h"

namespace orcaserve {

// Throws std::invalid_argument for a layout that would read or write elsewhere: looks at n_requests, n_tokens, starts,
// contexts and table of the iteration, and at page_size and n_pages of the region. window: the largest that a layer has, 0
// if some layer sees all keys; pages that lie before all windows may be any number.
void check_layout(const Iteration& it, const KVRegion& kv, int window);

// All tokens of a sound layout, cut into blocks for n_threads threads and sorted by their homes. Of a home, first those
// of requests with more than one run of tokens, then the others; among both the longest work first. `group`: query
// heads that share a K/V head.
std::vector<Block> cut_blocks(const int32_t* starts, const int32_t* contexts, int n_requests, int group, int n_kv_heads,
                              int n_threads);

}  // namespace orcaserve
