// Packing: weights as checkpoints store them into the panels of model.h. Compiled once, for the plainest machine: what
// is packed does not depend on the instruction set, nor on the number of threads.
#pragma once

#include <cstdint>

#include "model.h"
#include "team.h"

namespace orcaserve {

constexpr int kMaxGroup = 3 * kHadamard;  // kInt8: most inputs of a group; the kernels rely on it

// Inputs of a packed matrix, with the zeros that fill it up.
int padded_inputs(Format format, int n_in);

// Matrix::group: for kInt8 the largest multiple of kHadamard that divides n_in_padded and is at most kMaxGroup.
int group_inputs(Format format, int n_in_padded);

int64_t panel_bytes(Format format, int n_in_padded, int group);

// Panels of parts with n_out outputs in all: stacked, their outputs follow each other without gaps; interleaved, panel
// 2 i + p holds outputs i * kPanel .. of part p (two parts of the same size).
int count_panels(int n_out, bool interleaved);

// A part of a matrix: rows of n_in floats, `stride` floats apart.
struct FloatPart {
  const float* weights;
  int64_t stride;
  int n_out;
};

// Rows of 4-bit blocks of GGUF: a float16 d, for kQ4_1 a float16 m, then 16 bytes, whose low halves are the first 16
// inputs of a block and whose high halves are the rest. weight = (nibble - 8) * d, or nibble * d + m.
struct BlockPart {
  RowFormat format;  // kQ4_0 or kQ4_1
  const uint8_t* rows;
  int64_t stride;  // bytes from row to row
  int n_out;
};

// Both write all of `panels`: count_panels(...) times panel_bytes(...).
// kInt8 is rounded to the nearest, symmetric about 0, the largest turned weight of an output's group being +-127. kInt4
// takes, of a few scales and minima, those with the least squared error.
void pack_floats(Format format, const FloatPart* parts, int n_parts, int n_in, bool interleaved, uint8_t* panels,
                 Team& team);
// To kInt4, bit for bit. False if a scale is infinite or not a number, or is too large for its minimum to be a float16:
// then the panels are of no use.
bool pack_blocks(const BlockPart* parts, int n_parts, int n_in, bool interleaved, uint8_t* panels, Team& team);

}  // namespace orcaserve
