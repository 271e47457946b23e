// A matrix and the memory it lies in, packed by pack.cpp as the loader's matrices are.
#pragma once

#include "../model.h"
#include "array.h"

namespace orcaserve::check {

struct Packed {
  Matrix matrix;
  Array<uint8_t> panels;
  Array<float> bias;  // [n_panels * kPanel]
  Array<int32_t> exact;
  Array<Float16> exact_weights;
  Array<float> kept;
};

// A matrix whose panels are still to be written.
Packed room_for(Format format, int n_out, int n_in, bool interleaved);

// weight [n_out][n_in], bias [n_out] or empty. interleaved: its first and its second half are parts whose panels take
// turns.
Packed pack(Format format, const Array<float>& weight, const Array<float>& bias, int n_out, int n_in,
            bool interleaved = false);

// Makes some inputs of an int8 matrix exact ones.
void make_exact(Packed& packed, const Array<float>& weight, const Array<int32_t>& inputs, bool interleaved = false);

}  // namespace orcaserve::check
