// Linears on the tiles of AMX. Compiled for the set `amx`, and by the checks with tiles in plain C++
// (check/amx_shim.h).
#pragma once

#include "kernels.h"

#if (defined(__AMX_INT8__) && defined(__AMX_BF16__)) || defined(ORCASERVE_AMX_SHIM)
#define ORCASERVE_AMX 1
#else
#define ORCASERVE_AMX 0
#endif

#if ORCASERVE_AMX
namespace orcaserve::ORCASERVE_ISA {

// From so many rows on int8 tiles are faster than vectors: below, loading weights into tiles takes as long as using
// them.
constexpr int kAmxRows = 4;

// As multiply_int8, with the same bits.
void multiply_int8_amx(const Matrix& w, int panel, const Operand& x, int row, int n_rows, float* out,
                       const uint8_t* ahead);

// As multiply_bfloat16, with other last bits: where it is used it must be used for any number of rows.
void multiply_bfloat16_amx(const Matrix& w, int panel, const Operand& x, int row, int n_rows, float* out,
                           const uint8_t* ahead);

}  // namespace orcaserve::ORCASERVE_ISA
#endif
