// Rows on their way into a Linear: their memory, as one matrix or another wants them.
#pragma once

#include "kernels.h"

namespace orcaserve::ORCASERVE_ISA {
namespace {

inline int least(int a, int b) { return a < b ? a : b; }
inline int most(int a, int b) { return a > b ? a : b; }

inline bool is_integer(const Matrix& w) { return w.format == Format::kInt8 || w.format == Format::kInt4; }
inline int groups_of(const Matrix& w) { return w.n_in_padded / w.group; }

// Hands out pieces of one allocation; with base null it only counts.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<uint8_t*>(base)) {}
  template <typename T>
  T* take(int64_t n) {
    const size_t at = used_;
    used_ += (static_cast<size_t>(n) * sizeof(T) + 63) / 64 * 64;
    return base_ ? reinterpret_cast<T*>(base_ + at) : nullptr;
  }
  size_t used() const { return used_; }

 private:
  uint8_t* base_;
  size_t used_ = 0;
};

// Room for the operand of any of some matrices.
struct OperandRoom {
  int n_in = 0, q_stride = 0, n_groups = 0, exact = 0;
  void fit(const Matrix& w) {
    n_in = most(n_in, w.n_in);
    if (is_integer(w)) fit_integers(w);
  }
  void fit_integers(const Matrix& w) {
    q_stride = most(q_stride, w.n_in_padded);
    n_groups = most(n_groups, groups_of(w));
    exact = most(exact, exact_floats(w.n_exact));
  }
  Operand carve(Carver& c, int rows) const {
    Operand o{};
    o.x = c.take<float>(int64_t{rows} * n_in);
    o.stride = n_in;
    o.q = c.take<int8_t>(int64_t{rows} * q_stride);
    o.scales = c.take<float>(int64_t{rows} * n_groups);
    o.sums = c.take<int32_t>(int64_t{rows} * n_groups);
    o.exact = c.take<float>(int64_t{rows} * exact);
    return o;
  }
  // The same memory from this row on.
  Operand from(Operand o, int64_t row) const {
    o.x += row * n_in;
    o.q += row * q_stride;
    o.scales += row * n_groups;
    o.sums += row * n_groups;
    o.exact += row * exact;
    return o;
  }
};

// The same memory, seen as rows for one matrix.
inline Operand shaped(const Operand& room, const Matrix& w) {
  Operand o = room;
  o.stride = w.n_in;
  o.q_stride = w.n_in_padded;
  o.n_groups = is_integer(w) ? groups_of(w) : 0;
  return o;
}

}  // namespace
}  // namespace orcaserve::ORCASERVE_ISA
