// Attention of all requests of an iteration, for one layer: what a call is given. Plain data, shared by the binding and by
// every instruction set's kernel; no member functions, so that no code of one set can be linked in place of another's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace orcaserve {

enum class Storage : int { kFloat32 = 0, kBFloat16 = 1 };

// A block of consecutive tokens of one request: with one K/V head, the unit of work that a thread takes.
struct Block {
  int32_t request;
  int32_t first;   // first token, counted within the request's part of this iteration
  int32_t n;       // tokens
  bool shares_kv;  // the request has more blocks, so that keys must be in place before any of them attends
};

struct Attention {
  // Sizes
  int n_heads;
  int n_kv_heads;
  int head_dim;
  int page_size;  // slots of a page
  float scale;    // of the scores, usually 1 / sqrt(head_dim)
  Storage storage;

  // Layout of the iteration: request r owns rows starts[r] .. starts[r + 1] of q, k, v and out, and has contexts[r] earlier
  // tokens in its pages; table[r * table_width + i] is its i-th page.
  const int32_t* starts;
  const int32_t* contexts;
  const int32_t* table;
  int64_t table_width;
  const Block* blocks;  // those that share K/V first
  int64_t n_blocks;
  int64_t n_sharing;

  // Tensors: token-major, head_dim contiguous, heads adjacent; strides count elements from one token to the next.
  const float* q;
  const float* k;
  const float* v;
  int64_t q_stride, k_stride, v_stride;
  float* out;
  int64_t out_stride;

  // Pages of this layer. Keys lie dimension-major, so that one vector holds the same dimension of consecutive tokens and a
  // score needs no sum across lanes: keys[page][kv head][dim][slot], values[page][kv head][slot][dim].
  void* keys;
  void* values;

  int n_threads;
  float* scratch;  // n_threads pieces of scratch_floats each
  size_t scratch_floats;
};

// One instruction set's kernels.
struct Kernels {
  const char* isa;
  void (*attend)(const Attention&);
  size_t (*scratch_floats)(int rows, int head_dim);  // floats of scratch of one thread, for blocks of `rows` query rows
};

// Most query rows (tokens x heads of a group) of a block with more than one token.
constexpr int kBlockRows = 96;

}  // namespace orcaserve
