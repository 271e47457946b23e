// AttentionPlan: the layout of one iteration, checked once and cut into blocks, for a call per layer.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"

namespace orcaserve {

class AttentionPlan {
 public:
  // starts: n_requests + 1 row offsets from 0; contexts: n_requests; table: n_requests x table_width page numbers below
  // n_pages. Copies what it is given. Throws std::invalid_argument for a layout that would read or write elsewhere.
  AttentionPlan(const int32_t* starts, const int32_t* contexts, const int32_t* table, int64_t n_requests,
                int64_t table_width, int64_t n_pages, int n_heads, int n_kv_heads, int head_dim, int page_size,
                float scale, Storage storage);

  int64_t n_tokens() const { return starts_.back(); }

  // Appends this layer's k and v to the pages and attends. The pointers are trusted; attention.h says what they are.
  void run(const float* q, const float* k, const float* v, int64_t q_stride, int64_t k_stride, int64_t v_stride,
           void* keys, void* values, float* out, int n_threads) const;

 private:
  void check(int64_t n_pages) const;
  void cut_blocks();

  std::vector<int32_t> starts_, contexts_, table_;
  std::vector<Block> blocks_;
  Attention attention_{};
};

}  // namespace orcaserve
