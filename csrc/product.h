// A Linear under way: how it is cut among the members of a team, and what becomes of its outputs.
#pragma once

#include "linear_amx.h"
#include "operand.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

// Rows for which a member reads all weights rather than its share of them: as many take longer to compute than to fetch.
constexpr int kRowsPerCut = ORCASERVE_AMX ? 64 : ORCASERVE_VECTOR_BYTES == 64 ? 16 : 32;
constexpr int kRowsPerUnit = 16;

using Multiply = void (*)(const Matrix&, int, const Operand&, int, int, float*, const uint8_t*);

inline Multiply multiply_of(Format format) {
  switch (format) {
    case Format::kFloat32: return multiply_float32;
    case Format::kBFloat16: return multiply_bfloat16;
    case Format::kInt8: return multiply_int8;
    default: return multiply_int4;
  }
}

// Where the results of a Linear go.
struct Sink {
  enum Kind { kStore, kAdd, kActivate, kGate } kind;
  float* y;
  int64_t stride;
  Activation activation = Activation::kSilu;
};

// How an operator is cut: into n_cuts runs of rows, each shared by `sharers` members.
struct Cut {
  int n_cuts;
  int sharers;
  Cut(int n_rows, int n_members) : n_cuts(1) {
    for (int n = 2; n <= n_members && n * kRowsPerCut <= n_rows; ++n)
      if (n_members % n == 0) n_cuts = n;
    sharers = n_members / n_cuts;
  }
};

// Part `i` of n things in `parts`.
struct Range {
  int begin, end;
  Range(int64_t n, int i, int parts)
      : begin(static_cast<int>(n * i / parts)), end(static_cast<int>(n * (i + 1) / parts)) {}
  int size() const { return end - begin; }
};

// What the rows of a block gain from their adapters in one Linear; t holds the first of the two small products.
struct Adapting {
  const AdapterRows* block;  // null: none has one
  AdaptedLinear AdaptedLayer::*linear;
  int layer;
  float* t;  // [rows of the block][stride]
  int64_t stride;

  const AdaptedLinear& of(const AdapterRun& run) const { return run.adapter->layers[layer].*linear; }

  // The first one, of a piece's rows of the operand of `m`.
  void multiply_by_a(const AdapterRun& piece, const Matrix& m, const Operand& x) const {
    const AdaptedLinear& w = of(piece);
    if (w.width > 0) shrink(w, m, x, block->rows + piece.first, piece.n, t, stride);
  }

  // Of rising rows, the first one that is not before `row`.
  static const int32_t* first_from(int row, const int32_t* begin, const int32_t* end) {
    while (begin < end) {
      const int32_t* middle = begin + (end - begin) / 2;
      if (*middle < row)
        begin = middle + 1;
      else
        end = middle;
    }
    return begin;
  }

  // The second one, of a tile of n rows from `row` on.
  void add(int panel, int row, int n, float* tile) const {
    for (int i = 0; i < block->n_runs; ++i) {
      const AdapterRun& run = block->runs[i];
      const int32_t *begin = block->rows + run.first, *end = begin + run.n;
      if (*begin < row) begin = first_from(row, begin, end);
      if (begin < end && end[-1] >= row + n) end = first_from(row + n, begin, end);
      const AdaptedLinear& w = of(run);
      if (begin < end && w.width > 0)
        expand(w, panel, t, stride, begin, static_cast<int>(end - begin), row, tile);
    }
  }
};

// One Linear under way.
struct Product {
  const Matrix& w;
  const Operand& x;
  const Sink& sink;
  Multiply multiply_panel;
  bool gated;
  int width;  // columns of the result
  const Adapting& adapting;

  void product(int panel, int row, int n_rows, float* tile, const uint8_t* ahead) const {
    if (ahead != nullptr) {  // the next panel's exact weights
      const int64_t n = int64_t{w.n_exact} * kPanel;
      for (int64_t i = 0; i < n; i += 32) __builtin_prefetch(w.exact_weights + (panel + 1) * n + i);
    }
    multiply_panel(w, panel, x, row, n_rows, tile, ahead);
    if (adapting.block) adapting.add(panel, row, n_rows, tile);
  }

  // Outputs `out` (a panel, or a pair of gate and up) for the rows.
  void compute(int out, const Range& rows, const uint8_t* ahead) const {
    alignas(64) float tiles[2][kTileRows * kPanel];
    const int col = out * kPanel, n_cols = least(kPanel, width - col), panel = gated ? 2 * out : out;
    const float* bias = w.bias ? w.bias + panel * kPanel : nullptr;
    for (int row = rows.begin; row < rows.end; row += kTileRows) {
      const bool is_first = row == rows.begin;
      const int n = least(kTileRows, rows.end - row);
      float* y = sink.y + int64_t{row} * sink.stride + col;
      if (gated) {
        product(panel, row, n, tiles[0], is_first ? w.panels + (panel + 1) * w.panel_bytes : nullptr);
        product(panel + 1, row, n, tiles[1], is_first ? ahead : nullptr);
        gate_tile(sink.activation, tiles[0], tiles[1], n, n_cols, bias, bias ? bias + kPanel : nullptr, y, sink.stride);
        continue;
      }
      product(panel, row, n, tiles[0], is_first ? ahead : nullptr);
      if (sink.kind == Sink::kStore)
        store_tile(tiles[0], n, n_cols, bias, y, sink.stride);
      else if (sink.kind == Sink::kAdd)
        add_tile(tiles[0], n, n_cols, bias, y, sink.stride);
      else
        activate_tile(sink.activation, tiles[0], n, n_cols, bias, y, sink.stride);
    }
  }
};

// Where the share of a matrix begins that one of some members works on first: whole pairs of panels.
inline const uint8_t* first_weights(const Matrix& w, int sharer, int sharers) {
  return w.panels + (int64_t{w.n_panels} * sharer / sharers & ~int64_t{1}) * w.panel_bytes;
}

// y = x W^T for n_rows rows. then: the matrix that is needed next, or null; its first weights are fetched at the end.
inline void multiply(const Matrix& w, const Operand& x, int n_rows, const Sink& sink, const Matrix* then, Team& team, int member,
              const Adapting& adapting = {}) {
  const bool gated = sink.kind == Sink::kGate;
  const int step = gated ? 2 : 1, n_outs = w.n_panels / step;
  const Product product{w, x, sink, multiply_of(w.format), gated, gated ? w.n_out / 2 : w.n_out, adapting};
  const Cut cut(n_rows, team.size());
  for (int i = 0; i < team.size(); ++i) {
    const int queue = (member + i) % team.size();
    const int sharer = queue % cut.sharers;
    const Range rows(n_rows, queue / cut.sharers, cut.n_cuts), outs(n_outs, sharer, cut.sharers);
    for (int64_t unit; (unit = team.take_from(queue)) < outs.size();) {
      const int out = outs.begin + static_cast<int>(unit);
      const uint8_t* ahead = nullptr;
      if (out + 1 < outs.end)
        ahead = w.panels + int64_t{out + 1} * step * w.panel_bytes;
      else if (then)
        ahead = first_weights(*then, sharer, cut.sharers);
      product.compute(out, rows, ahead);
    }
  }
  end_multiply();
  team.barrier(member);
}

// Calls work(row) for all rows: each member for its own ones and then a barrier, or, with few rows, every member for all.
template <typename Work>
void for_rows(int n_rows, bool alone, Team& team, int member, int rows_per_unit, const Work& work) {
  if (alone) {
    for (int row = 0; row < n_rows; ++row) work(row);
    return;
  }
  for (int i = 0; i < team.size(); ++i) {
    const int queue = (member + i) % team.size();
    const Range rows(n_rows, queue, team.size());
    for (int64_t first; (first = team.take_from(queue) * rows_per_unit) < rows.size();)
      for (int row = static_cast<int>(first); row < first + rows_per_unit && row < rows.size(); ++row)
        work(rows.begin + row);
  }
  team.barrier(member);
}

}  // namespace
}  // namespace orcaserve::ORCASERVE_ISA
