// Matrices packed number by number, by the description in model.h: what pack.cpp must give as well.
#pragma once

#include "../model.h"
#include "array.h"

namespace orcaserve::check {

struct Packed {
  Matrix matrix;
  Array<uint8_t> panels;
  Array<float> bias;  // [n_panels * kPanel]
};

// weight [n_out][n_in], bias [n_out] or empty. interleaved: outputs of the first and of the second half in turns, panel by
// panel.
Packed pack(const Array<float>& weight, const Array<float>& bias, int n_out, int n_in, Format format, bool interleaved);

}  // namespace orcaserve::check
