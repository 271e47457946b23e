// The kernels of one instruction set: every function here is compiled once per set, into the namespace ORCASERVE_ISA.
// `KernelTable` is how the rest of the program reaches them.
#pragma once

#include "model.h"
#include "team.h"

namespace orcaserve {

// Activations on their way into a Linear: as floats, or as small integers with a scale per row and group of inputs.
struct Operand {
  // kFloat32, kBFloat16: rows of floats
  const float* x;
  int64_t stride;
  // kInt8, kInt4: q[row][n_in_padded], value = q * scale, q in -127..127; sums[row][group] = sum of q over the group
  int8_t* q;
  int64_t q_stride;
  float* scales;   // [row][n_groups]
  int32_t* sums;   // [row][n_groups]
  int n_groups;
  float* exact;    // [row][exact_floats]: the inputs that are left out of q
};

constexpr int kTileRows = 32;  // most rows of one call of `multiply`

// Everything a call of `attend` needs for one layer.
struct AttentionCall {
  int n_heads;
  int n_kv_heads;
  int head_dim;
  float scale;
  float softcap;       // as in Model
  const float* alibi;  // as in Model
  int window;          // as in Layer
  const Iteration* it;
  // [n_tokens][(n_heads + 2 n_kv_heads) * head_dim]: q, k and v side by side, not yet turned by their positions.
  const float* qkv;
  float* out;  // [n_tokens][n_heads * head_dim]
  int rope_dim;
  const float* cos;  // [n_tokens][rope_dim / 2], with the amplitude in them; filled by rope_rows
  const float* sin;
  const KVRegion* kv;
  int layer;
  float* scratch;        // one piece per member
  size_t scratch_floats; // of a piece
  float* partial;        // shared: see attention_partial_floats
};

// Sampling: see sampling.h.
struct SampleCall;

struct KernelTable {
  const char* isa;
  void (*forward)(const Model&, const Iteration&, const KVRegion&, void* workspace, Team&);
  size_t (*workspace_bytes)(const Model&, const Iteration&, const KVRegion&, int n_threads);
  // One Linear on rows [n][n_in] -> [n][n_out]; for tests and benchmarks. workspace of linear_bytes.
  void (*linear)(const Matrix&, const float* x, int n, float* y, void* workspace, Team&);
  size_t (*linear_bytes)(const Matrix&, int n);
  // Attention alone, of one layer; for tests and benchmarks. scratch and partial of the call are made by the caller.
  void (*attend)(const AttentionCall&, Team&);
  size_t (*attention_scratch_floats)(const Model&, const KVRegion&);
  size_t (*attention_partial_floats)(const Model&, const Iteration&, const KVRegion&);
  void (*sample)(const SampleCall&, Team&);
};

#ifdef ORCASERVE_ISA
namespace ORCASERVE_ISA {

// ---- linear_float.cpp, linear_int8.cpp, linear_int4.cpp ----
// out[r][0..kPanel) = row `row + r` of x times the weights of `panel`, for n_rows <= kTileRows rows; without the bias.
// out has a stride of kPanel and is 64-byte aligned. While it computes it may fetch `ahead` (w.panel_bytes bytes that are
// needed next; null: nothing). Order of sums of an output: inputs (groups) from 0 upwards, whatever n_rows is.
void multiply_float32(const Matrix& w, int panel, const Operand& x, int row, int n_rows, float* out, const uint8_t* ahead);
void multiply_bfloat16(const Matrix& w, int panel, const Operand& x, int row, int n_rows, float* out, const uint8_t* ahead);
void multiply_int8(const Matrix& w, int panel, const Operand& x, int row, int n_rows, float* out, const uint8_t* ahead);
void multiply_int4(const Matrix& w, int panel, const Operand& x, int row, int n_rows, float* out, const uint8_t* ahead);

// After the calls of an operator, on every thread that made some: gives up the tiles of AMX. A thread that keeps them takes
// the system longer to switch, and other code may configure them.
void end_multiply();

// ---- adapters.cpp ----
// t[row] = scales * (A x[row]) for the rows rows[0 .. n), which are in the operand of `m` as floats and, for an integer matrix,
// as integers. A row of t has room for `width` floats; what is in it is the business of these two.
void shrink(const AdaptedLinear& w, const Matrix& m, const Operand& x, const int32_t* rows, int n, float* t, int64_t t_stride);
// Adds B t to the rows of a tile of `panel`, whose first row is first_row.
void expand(const AdaptedLinear& w, int panel, const float* t, int64_t t_stride, const int32_t* rows, int n, int first_row,
            float* tile);

// ---- adapters_int8.cpp ----
void shrink_int8(const AdaptedLinear& w, const Matrix& m, const Operand& x, const int32_t* rows, int n, float* t,
                 int64_t t_stride);
void expand_int8(const AdaptedLinear& w, int panel, const float* t, int64_t t_stride, const int32_t* rows, int n, int first_row,
                 float* tile);

// ---- exact.cpp ----
// Floats of a row in Operand::exact. The inputs of a row on their way into it. What a panel's sums begin with, as
// `multiply` lays them out.
int exact_floats(int n_exact);
void take_exact(const Matrix& w, const float* x, float* to);
void multiply_exact(const Matrix& w, int panel, const Operand& x, int row, int n_rows, float* out);

// ---- rows.cpp ----
// Row `row` of the embedding (and of other tables) as floats: out[width].
void read_row(const Table& table, int64_t row, int width, float* out);
void add_row(const Table& table, int64_t row, int width, float* out);
// out[n] = norm of x[n].
void normalise(Norm kind, float eps, const NormWeights& w, const float* x, int n, float* out);
// Enters x [n_in] as row `row` of the operand of an int8 or int4 matrix.
// int8: turns each kHadamard inputs by the Hadamard matrix H / 8 (H[i][j] = (-1)^popcount(i & j)), inputs beyond n_in being 0;
// then q = x / scale to the nearest, scale = (largest |x| of the group) / 127. int4: the same without the turning, groups of 32.
// The exact inputs of the matrix go to `exact` and count as 0 in q.
void quantise(const Matrix& w, const float* x, const Operand& to, int row);
// Computes anew, from the checkpoint's own rows and in float32, the logits that are within `close` of the largest (the first
// kMostClose of them): only they decide about a greedy choice, and most of a drawn one. x: [hidden], the head's input;
// buffer: [hidden].
constexpr int kMostClose = 32;
void rescore(const Table& head_rows, const float* bias, const float* x, int hidden, float* logits, int vocab, float* buffer,
             float close);
// x[n] = scale * x, and cap * tanh(scale * x / cap).
void scale_row(float* x, int n, float scale);
void cap_row(float* x, int n, float scale, float cap);
// to[n] += scale * x.
void add_scaled(const float* x, int n, float scale, float* to);
// What is done with a tile of results, [n_rows][kPanel] floats of stride kPanel, n_cols of them real. bias may be null.
void store_tile(const float* tile, int n_rows, int n_cols, const float* bias, float* y, int64_t y_stride);
void add_tile(const float* tile, int n_rows, int n_cols, const float* bias, float* y, int64_t y_stride);
void activate_tile(Activation act, const float* tile, int n_rows, int n_cols, const float* bias, float* y, int64_t y_stride);
void gate_tile(Activation act, const float* gate, const float* up, int n_rows, int n_cols, const float* gate_bias,
               const float* up_bias, float* y, int64_t y_stride);

// ---- experts.cpp ----
// The experts of a row with logits [n_experts]: the n_chosen with the largest (of equals the first), in the order of their
// numbers, and what they count: the softmax of the logits of all of them or, shares_of_chosen, of those chosen.
void choose_experts(const float* logits, int n_experts, int n_chosen, bool shares_of_chosen, int32_t* chosen, float* shares);
// to[n] = the sum of shares[i] * given[places[i]] of rows given [..][n], i upwards.
void mix_experts(const float* given, int n, const int32_t* places, const float* shares, int n_chosen, float* to);

// ---- attention.cpp, attention_int8.cpp ----
size_t attention_scratch_floats(const Model&, const KVRegion&);                    // of one member
size_t attention_partial_floats(const Model&, const Iteration&, const KVRegion&);  // of all together; kept between layers
// The cosines and sines of rows first .. first + n of the iteration: cos, sin are [n_tokens][dim / 2].
void rope_rows(const Rope&, const Frequencies&, const Iteration&, int first, int n, float* cos, float* sin);
// Turns q and k by their positions, appends k and v to the pages, attends. Every member calls it with the same arguments and
// its own number, right after a barrier; it takes its units from the team, and may use barriers inside. All results are
// written when every member has returned (the caller puts a barrier behind it). The layers of an iteration come in order.
void attend(const AttentionCall&, Team&, int member);
void attend_alone(const AttentionCall&, Team&);

// ---- forward.cpp ----
void forward(const Model&, const Iteration&, const KVRegion&, void* workspace, Team&);
size_t workspace_bytes(const Model&, const Iteration&, const KVRegion&, int n_threads);
void linear(const Matrix&, const float* x, int n, float* y, void* workspace, Team&);
size_t linear_bytes(const Matrix&, int n);

// ---- sampling.cpp ----
void sample(const SampleCall&, Team&);

extern const KernelTable kernels;

}  // namespace ORCASERVE_ISA
#endif

}  // namespace orcaserve
