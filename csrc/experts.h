// The rows of a block by the experts that they have chosen. Compiled once per instruction set, as everything that the kernels
// call.
#pragma once

#include "kernels.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

// An *entry* is a row at one of its experts. Entries of an expert stand together, in the order of rows, so that they go through
// its Linears as the rows of one.
struct Routing {
  int n_chosen, n_entries, n_used;
  const int32_t* chosen;  // [n_rows][n_chosen]: experts of a row, by their numbers
  const float* shares;    // [n_rows][n_chosen]: what they count
  int32_t* places;        // [n_rows][n_chosen]: entries of a row
  int32_t* row_of;        // [n_entries]
  int32_t* expert_of;     // [n_entries]
  int32_t* begins;        // [n_experts + 1]: the first entry of an expert
  int32_t* used;          // [n_used]: experts that have entries

  static int64_t ints(int64_t n_rows, int n_chosen, int n_experts) { return 3 * n_rows * n_chosen + 2 * int64_t{n_experts} + 1; }

  // memory: of so many ints.
  Routing(int n_rows, int n_chosen_, int n_experts, const int32_t* chosen_, const float* shares_, int32_t* memory)
      : n_chosen(n_chosen_), n_entries(n_rows * n_chosen_), n_used(0), chosen(chosen_), shares(shares_), places(memory),
        row_of(places + n_entries), expert_of(row_of + n_entries), begins(expert_of + n_entries), used(begins + n_experts + 1) {
    for (int e = 0; e <= n_experts; ++e) begins[e] = 0;
    for (int i = 0; i < n_entries; ++i) ++begins[chosen[i] + 1];
    for (int e = 0; e < n_experts; ++e) {
      if (begins[e + 1] > 0) used[n_used++] = e;
      begins[e + 1] += begins[e];
    }
    // Each expert's first entry moves on while its entries are given away, to where the next one's begin, and back.
    for (int i = 0; i < n_entries; ++i) {
      const int entry = begins[chosen[i]]++;
      places[i] = entry;
      row_of[entry] = i / n_chosen;
      expert_of[entry] = chosen[i];
    }
    for (int e = n_experts; e > 0; --e) begins[e] = begins[e - 1];
    begins[0] = 0;
  }

  int n_rows(int expert) const { return begins[expert + 1] - begins[expert]; }
};

}  // namespace
}  // namespace orcaserve::ORCASERVE_ISA
