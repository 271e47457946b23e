// What the processor and the operating system (which must save the wide registers) offer: one question per instruction
// set, has_<set>(). A set that has the features of a narrower one says so by asking for it too.
#pragma once

namespace orcaserve::cpu {

// Needs nothing beyond the architecture itself, so there is no machine that lacks every set.
bool has_plain();

#if defined(__x86_64__)
bool has_avx2();        // with FMA and F16C
bool has_avxvnni();     // the 256-bit form, of processors without AVX-512
bool has_avx512();      // F, BW, DQ, VL
bool has_avx512vnni();
bool has_amx();         // tiles, int8 and bfloat16; asks the system for leave to use them
#endif

}  // namespace orcaserve::cpu
