// What a low-rank adapter adds to a Linear, in plain loops and double precision, by the description in adapters.h.
#pragma once

#include "oracle.h"

namespace orcaserve::check {

// x [n_in] -> [n_out], in the order of Dense. interleaved: as of Dense.
Doubles adapted(const AdaptedLinear& w, const Matrix& m, bool interleaved, const Doubles& x);

}  // namespace orcaserve::check
