#include "blocks.h"

#include <algorithm>
#include <stdexcept>

#include "attention.h"

namespace orcaserve {
namespace {

// A run of tokens is split by keys if it is more than this share of what a thread has to do, times the number of
// threads.
constexpr int64_t kUnitsPerThread = 8;

void require(bool ok, const char* message) {
  if (!ok) throw std::invalid_argument(message);
}

// The tokens of all requests in runs of at most kBlockRows query rows, whose keys are not split.
std::vector<Block> cut_tokens(const int32_t* starts, int n_requests, int group) {
  const int32_t most = std::max(1, kBlockRows / group);
  std::vector<Block> blocks;
  for (int32_t r = 0; r < n_requests; ++r) {
    const int32_t n = starts[r + 1] - starts[r];
    for (int32_t first = 0; first < n; first += most)
      blocks.push_back({r, first, std::min(most, n - first), -1, 1, 0, 0, 0});
  }
  return blocks;
}

// The member of a team of n_threads that works on `row` of n_rows first.
int32_t home_of(int row, int n_rows, int n_threads) {
  const int before = row / kRowBlock * kRowBlock;
  const int n = std::min(kRowBlock, n_rows - before);
  return static_cast<int32_t>((int64_t{row - before + 1} * n_threads - 1) / n);
}

}  // namespace

void check_layout(const Iteration& it, const KVRegion& kv, int window) {
  require(it.n_requests > 0, "a layout holds at least one request");
  require(kv.page_size > 0 && kv.page_size % 16 == 0, "page_size must be a positive multiple of 16");
  require(it.starts[0] == 0, "starts must begin with 0");
  for (int r = 0; r < it.n_requests; ++r) {
    require(it.starts[r + 1] > it.starts[r], "starts must increase");
    require(it.contexts[r] >= 0, "a context must not be negative");
    const int64_t tokens = int64_t{it.contexts[r]} + it.starts[r + 1] - it.starts[r];
    const int64_t pages = (tokens + kv.page_size - 1) / kv.page_size;
    // The kernels count keys in 32 bits and look one step beyond the last.
    require(tokens <= INT32_MAX - 2 * kPartKeys, "a request is longer than the kernels can count");
    require(pages <= it.table_width, "a page table is shorter than its tokens");
    const int32_t* row = it.table + r * it.table_width;
    const int first_key = window > 0 ? std::max(0, it.contexts[r] + 1 - window) : 0;
    for (int64_t i = first_key / kv.page_size; i < pages; ++i)
      require(row[i] >= 0 && row[i] < kv.n_pages, "a page number lies outside the region");
  }
  require(it.starts[it.n_requests] == it.n_tokens, "starts must end with the number of tokens");
}

std::vector<Block> cut_blocks(const int32_t* starts, const int32_t* contexts, int n_requests, int group, int n_kv_heads,
                              int n_threads) {
  const auto keys = [&](const Block& b) { return contexts[b.request] + b.first + b.n; };
  const auto work = [&](const Block& b) {
    return int64_t{b.n} * (b.part < 0 ? keys(b) : std::min(kPartKeys, keys(b) - b.part * kPartKeys));
  };
  const auto cut = [&](const Block& b) { return b.n < starts[b.request + 1] - starts[b.request]; };

  const std::vector<Block> runs = cut_tokens(starts, n_requests, group);
  int64_t total = 0;
  for (const Block& b : runs) total += work(b) * n_kv_heads;
  std::vector<Block> blocks;
  int32_t n_splits = 0;
  int64_t n_partial = 0;
  for (Block b : runs) {
    b.home = home_of(starts[b.request] + b.first, starts[n_requests], n_threads);
    const int n_parts = (keys(b) + kPartKeys - 1) / kPartKeys;
    if (n_parts == 1 || work(b) * kUnitsPerThread * n_threads <= total) {
      blocks.push_back(b);
      continue;
    }
    for (int part = 0; part < n_parts; ++part)
      blocks.push_back({b.request, b.first, b.n, part, n_parts, n_splits, n_partial, b.home});
    ++n_splits;
    n_partial += int64_t{n_parts} * b.n * group;
  }
  std::stable_sort(blocks.begin(), blocks.end(), [&](const Block& a, const Block& b) {
    if (a.home != b.home) return a.home < b.home;
    return cut(a) != cut(b) ? cut(a) : work(a) > work(b);
  });
  return blocks;
}

}  // namespace orcaserve
