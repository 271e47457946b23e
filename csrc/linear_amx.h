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

// Tiles for runs of `height` rows, until end_multiply. Costs nothing if they are as wanted already, and else 50 to 100 ns, a
// tenth of a panel.
void configure_tiles(int height);

// As multiply_bfloat16, with other last bits: where it is used it must be used for any number of rows.
void multiply_bfloat16_amx(const Matrix& w, int panel, const Operand& x, int row, int n_rows, float* out,
                           const uint8_t* ahead);

}  // namespace orcaserve::ORCASERVE_ISA
#endif
