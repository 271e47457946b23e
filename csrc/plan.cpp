#include "plan.h"

#include <algorithm>
#include <stdexcept>

#include "isa.h"

namespace orcaserve {
namespace {

void require(bool ok, const char* message) {
  if (!ok) throw std::invalid_argument(message);
}

}  // namespace

AttentionPlan::AttentionPlan(const int32_t* starts, const int32_t* contexts, const int32_t* table, int64_t n_requests,
                             int64_t table_width, int64_t n_pages, int n_heads, int n_kv_heads, int head_dim,
                             int page_size, float scale, Storage storage) {
  require(n_requests > 0, "a layout holds at least one request");
  require(n_kv_heads > 0 && n_heads > 0 && n_heads % n_kv_heads == 0, "n_heads must be a multiple of n_kv_heads");
  require(head_dim > 0 && page_size > 0, "head_dim and page_size must be positive");
  starts_.assign(starts, starts + n_requests + 1);
  contexts_.assign(contexts, contexts + n_requests);
  table_.assign(table, table + n_requests * table_width);

  Attention& a = attention_;
  a.n_heads = n_heads;
  a.n_kv_heads = n_kv_heads;
  a.head_dim = head_dim;
  a.page_size = page_size;
  a.scale = scale;
  a.storage = storage;
  a.table_width = table_width;
  a.out_stride = int64_t{n_heads} * head_dim;
  check(n_pages);
  cut_blocks();
}

void AttentionPlan::check(int64_t n_pages) const {
  require(starts_[0] == 0, "starts must begin with 0");
  for (size_t r = 0; r < contexts_.size(); ++r) {
    require(starts_[r + 1] > starts_[r], "starts must increase");
    require(contexts_[r] >= 0, "a context must not be negative");
    const int64_t tokens = int64_t{contexts_[r]} + starts_[r + 1] - starts_[r];
    const int64_t pages = (tokens + attention_.page_size - 1) / attention_.page_size;
    require(tokens <= INT32_MAX && pages <= attention_.table_width, "a page table is shorter than its tokens");
    const int32_t* row = table_.data() + static_cast<int64_t>(r) * attention_.table_width;
    for (int64_t i = 0; i < pages; ++i)
      require(row[i] >= 0 && row[i] < n_pages, "a page number lies outside the region");
  }
}

void AttentionPlan::cut_blocks() {
  const int group = attention_.n_heads / attention_.n_kv_heads;
  const int32_t block = std::max(1, kBlockRows / group);
  std::vector<Block> alone;
  for (size_t r = 0; r < contexts_.size(); ++r) {
    const int32_t n = starts_[r + 1] - starts_[r], request = static_cast<int32_t>(r);
    if (n <= block) {
      alone.push_back({request, 0, n, false});
      continue;
    }
    // From the end, which sees most keys: the longest work is handed out first.
    for (int32_t first = (n - 1) / block * block; first >= 0; first -= block)
      blocks_.push_back({request, first, std::min(block, n - first), true});
  }
  attention_.n_sharing = static_cast<int64_t>(blocks_.size());
  blocks_.insert(blocks_.end(), alone.begin(), alone.end());
  attention_.n_blocks = static_cast<int64_t>(blocks_.size());
}

void AttentionPlan::run(const float* q, const float* k, const float* v, int64_t q_stride, int64_t k_stride,
                        int64_t v_stride, void* keys, void* values, float* out, int n_threads) const {
  Attention a = attention_;
  a.starts = starts_.data();
  a.contexts = contexts_.data();
  a.table = table_.data();
  a.blocks = blocks_.data();
  a.q = q;
  a.k = k;
  a.v = v;
  a.q_stride = q_stride;
  a.k_stride = k_stride;
  a.v_stride = v_stride;
  a.keys = keys;
  a.values = values;
  a.out = out;
  a.n_threads = std::max(1, n_threads);

  const Kernels& set = kernels();
  constexpr size_t kLine = 16;  // floats of a cache line
  const int rows = std::max(kBlockRows, a.n_heads / a.n_kv_heads);
  a.scratch_floats = (set.scratch_floats(rows, a.head_dim) + kLine - 1) / kLine * kLine;
  // Kept by the calling thread between layers; two callers never share it.
  static thread_local std::vector<float> scratch;
  const size_t needed = a.scratch_floats * static_cast<size_t>(a.n_threads) + kLine;
  if (scratch.size() < needed) scratch.resize(needed);
  const auto address = reinterpret_cast<uintptr_t>(scratch.data());
  a.scratch = scratch.data() + (kLine - address / sizeof(float) % kLine) % kLine;
  set.attend(a);
}

}  // namespace orcaserve
