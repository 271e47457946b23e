// What a call of the kernels is given: the model's packed weights, one iteration, and the K/V region. Plain data, shared by
// the host and by every instruction set's code; no member functions, so that no code of one set can be linked in place of
// another's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "adapters.h"

namespace orcaserve {

// ---- Weights -------------------------------------------------------------------------------------------------------

// Outputs of a panel, in every format and for every instruction set: 3 vectors of AVX-512, 6 of AVX2. The last panel of a
// matrix is filled up with zero weights.
constexpr int kPanel = 48;

// How a matrix is packed. A panel is contiguous, in the order in which a kernel reads it; all panels of a matrix have the
// same size and follow each other.
//
// kFloat32   [n_in][kPanel] float
// kBFloat16  [n_in / 2][kPanel][2] bfloat16: neighbouring inputs of an output side by side; n_in is filled up to an even number
// kInt8      per group of `group` inputs: [group / 4][kPanel][4] uint8, then [kPanel] float scales.
//            weight = (byte - 128) * scale, bytes 1..255; n_in is filled up to a multiple of `group`.
//            The inputs were turned, 64 at a time, by a Hadamard matrix (kernels.h), and so are the activations: what is
//            large in few channels becomes middling in 64, which eight bits hold well.
// kInt4      per block of 32 inputs: [4][kPanel][4] uint8, then [kPanel] float16 scales, then [kPanel] float16 minima.
//            Byte j of [i][output] holds input 4 i + j of the block in its low half and input 16 + 4 i + j in its high half;
//            weight = nibble * scale + minimum. n_in is a multiple of 32.
enum class Format : int { kFloat32 = 0, kBFloat16 = 1, kInt8 = 2, kInt4 = 3 };

using Float16 = uint16_t;  // its bits

constexpr int kHadamard = 64;  // inputs that one Hadamard matrix turns
constexpr int kInt4Block = 32;

// y = x W^T + bias, W of [n_out, n_in].
struct Matrix {
  Format format;
  int n_out;
  int n_in;
  int n_in_padded;
  int group;    // kInt8: inputs that share a scale, a multiple of kHadamard that divides n_in_padded, at most kMaxGroup (pack.h);
                // kInt4: kInt4Block; else n_in_padded
  int n_panels;
  int64_t panel_bytes;
  const uint8_t* panels;  // 64-byte aligned
  const float* bias;      // [n_panels * kPanel], or null
  // kInt8: the few inputs that are largest by far. Activations leave them out of the integers, and their products are added
  // in float32, with weights in float16, so that they neither coarsen the scale of the others nor are rounded themselves.
  int n_exact;
  const int32_t* exact;          // [n_exact], which inputs
  const Float16* exact_weights;  // [n_panels][n_exact][kPanel]
  const float* kept;             // [n_in_padded]: 0 for these inputs, 1 for the others; null if n_exact is 0
};

enum class Norm : int { kRms = 0, kLayer = 1 };
enum class Activation : int { kSilu = 0, kGelu = 1, kGeluTanh = 2, kRelu = 3 };

struct NormWeights {
  const float* weight;  // [n] of what is normed; null: there is no such norm
  const float* bias;    // [n], or null
};

// One of the MLPs of a layer of experts; its matrices are as a layer's own.
struct Expert {
  Matrix up;
  Matrix down;
};

struct Layer {
  NormWeights attention_norm;
  Matrix qkv;
  Matrix out;
  NormWeights mlp_norm;
  Matrix up;  // gated: panel 2 i holds outputs of the gate, panel 2 i + 1 the same outputs of up
  Matrix down;
  // A layer of experts has these instead of up and down: a row goes to those that the router gives the largest logits, and what
  // they give is weighted by the softmax of the logits.
  Matrix router;          // [n_experts, hidden]
  const Expert* experts;  // [Model::n_experts], or null
  // Of what attention and MLP give, before it is added to the hidden states.
  NormWeights post_attention_norm;
  NormWeights post_mlp_norm;
  // Of queries and keys before they are turned: [head_dim], or all heads of a token (Model::norms_all_heads).
  NormWeights q_norm;
  NormWeights k_norm;
  int rope;    // which of Model::ropes turns its queries and keys; -1: none
  int window;  // to how many tokens back, itself counted, a token attends; 0: to all
};

// How positions turn queries and keys: dimensions of a head from its first one on, and a factor of what is turned.
struct Rope {
  int dim;  // 0: none are turned
  float amplitude;
};
constexpr int kRopes = 2;  // ways that a model may have, each for some of its layers

// Rows as the checkpoint stores them: GGUF's block kinds stay packed.
enum class RowFormat : int { kFloat32 = 0, kBFloat16 = 1, kQ8_0 = 2, kQ4_0 = 3, kQ4_1 = 4 };

struct Table {
  RowFormat format;
  int64_t n_rows;
  int64_t row_bytes;
  const uint8_t* rows;
};

constexpr int kMostExperts = 1024;  // of a layer

// A run of layers (all of them, or a pipeline stage's) of one shard: heads and intermediate are the shard's own.
struct Model {
  int hidden;
  int n_heads;
  int n_kv_heads;
  int head_dim;
  int intermediate;
  int vocab;
  Norm norm;
  float norm_eps;
  Activation activation;
  bool gated;
  float attention_scale;
  float attention_softcap;  // c: a score x becomes c tanh(x / c); 0: it stays
  const float* alibi;       // [n_heads]: taken off a score for each token between query and key; or null
  Rope ropes[kRopes];
  bool norms_all_heads;  // q_norm and k_norm are of all heads of a token together
  bool parallel;         // the MLP reads the layer's input
  int n_experts;          // of each layer that has some; 0: no layer has
  int n_chosen;           // experts that a row goes to
  int expert_columns;     // of each expert, as `intermediate` of an MLP
  bool shares_of_chosen;  // the weights of a row's experts sum to 1, rather than those of all
  float embedding_scale;
  float residual_scale;  // of whatever is added to the hidden states
  float logit_scale;
  float logit_softcap;   // c: a logit x becomes c tanh(x / c); 0: it stays

  bool first;        // has the embedding: takes token ids, else hidden states
  bool last;         // has the head: gives logits, else hidden states
  Table embedding;   // if first
  NormWeights embedding_norm;  // if first; or none
  Table positions;   // learned positions; rows null without
  const Layer* layers;
  int n_layers;
  NormWeights norm_out;  // if last
  Matrix head;           // if last
  Table head_rows;       // the head's weights as the checkpoint stores them, for the logits that matter; or rows null
};

// Of a layer, in Iteration::observed.
static constexpr int observed_matrices(int n_experts) { return 3 + (n_experts > 0 ? n_experts : 1); }

// ---- K/V -----------------------------------------------------------------------------------------------------------

// kFloat32, kBFloat16: keys [pages][kv heads][head_dim][page_size], values [pages][kv heads][page_size][head_dim]
// kInt8: keys   [pages][kv heads][head_dim / 4][page_size][4] uint8, (byte - 128) * scale of its token and head = the key,
//        turned by an unscaled Hadamard matrix in blocks as large as divide head_dim, of at most kHadamard
//        values [pages][kv heads][page_size / 4][head_dim][4] int8,  value = byte * scale of its token and head
//        scales [pages][kv heads][page_size] float, of keys and of values
// Keys lie dimension before token, so that one vector holds the same dimension(s) of consecutive tokens and a score needs no
// sum across lanes. page_size is a multiple of 16 and head_dim of 4.
enum class Storage : int { kFloat32 = 0, kBFloat16 = 1, kInt8 = 2 };

struct KVRegion {
  Storage storage;
  int page_size;
  int64_t n_pages;
  uint8_t* keys;    // of layer 0; layer i begins i * layer_bytes further on
  uint8_t* values;
  int64_t layer_bytes;   // of keys, and of values
  float* key_scales;     // kInt8, else null
  float* value_scales;
  int64_t layer_scales;  // floats from one layer's scales to the next
};

// ---- One iteration -------------------------------------------------------------------------------------------------

// Rows that go through an operator together: their activations stay in the cache. Of n rows (of such a run) and k members,
// member i works on rows n i / k up to n (i + 1) / k first.
constexpr int kRowBlock = 512;

// A run of consecutive tokens of one request, with all keys they see or a part of them: together with one K/V head the unit
// of work of attention. Made by cut_blocks (blocks.h).
struct Block {
  int32_t request;
  int32_t first;    // first token, counted within the request's part of this iteration
  int32_t n;        // tokens
  int32_t part;     // keys part * kPartKeys (attention.h) and on; -1: all keys, part after part
  int32_t n_parts;  // the parts of these tokens, each a Block of its own, whose results are merged; 1 if part is -1
  int32_t split;    // which of the runs of tokens that are in parts this is, counted from 0; 0 if part is -1
  int64_t partial;  // rows of results of the parts of such runs before this one, for one K/V head
  int32_t home;     // the member of the team that works on the first token's row in the other operators
};

// By how much a Rope turns.
struct Frequencies {
  const float* values;  // [sets][dim / 2] radians per position
  const int32_t* set;   // [n_requests], or null: all use set 0
};

struct Iteration {
  // Request r owns rows starts[r] .. starts[r + 1] of the flat tensors and has contexts[r] earlier tokens in its pages;
  // table[r * table_width + i] is its i-th page.
  int n_requests;
  int n_tokens;
  const int32_t* starts;
  const int32_t* contexts;
  const int32_t* table;  // Where all layers have a window, nothing is read of pages that lie before all of them.
  int64_t table_width;
  const int32_t* request_of;  // [n_tokens]
  const Block* blocks;        // all tokens, cut; those of requests with more than one run of tokens come first
  int64_t n_blocks;
  int max_context;            // most keys that any token of the iteration sees
  bool shares;                // some request reads pages that another one of this iteration fills: all are filled first

  const int32_t* token_ids;  // if the model is first
  float* hidden;             // [n_tokens, hidden]: input if not first, output if not last; else scratch
  int n_logits;              // if last: rows that logits are wanted of, usually the last one of every request
  const int32_t* logit_rows; // [n_logits]
  float* logits;             // [n_logits, vocab]

  Frequencies frequencies[kRopes];  // of Model::ropes

  // Of block i (of kRowBlock rows): the rows with adapters; null: no row of the iteration has one.
  const AdapterRows* adapters;
  int adapter_width;  // of the widest of their Linears

  // Where the squares of every input of every Linear are added up, or null: observed[n i + j] for qkv, out, up, down of
  // layer i, and observed[n n_layers] for the head; n is observed_matrices(n_experts). In a layer of experts `up` are all
  // that read the hidden states, and a `down` follows for each expert. For choosing Matrix::exact.
  double* const* observed;

  // Sums x [n] over the shards of the layer, in place; null with one shard. Called by member 0 while the others wait.
  // n_next: of how many numbers the next sum is; 0 if there is none in this run.
  void (*all_reduce)(void* context, float* x, int64_t n, int64_t n_next);
  void* all_reduce_context;
};

}  // namespace orcaserve
