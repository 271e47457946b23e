// How near the kernels' numbers are to the oracle's.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "report.h"

namespace orcaserve::check {

template <typename Floats>
bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Largest error of a row, as a share of the row's root mean square; infinite if there is something that is not a
// number.
template <typename Floats>
double distance(const Floats& row, const std::vector<double>& truth) {
  double largest = 0, square = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    const double error = std::abs(double{row[i]} - truth[i]);
    largest = error <= largest ? largest : std::isnan(error) ? INFINITY : error;
    square += truth[i] * truth[i] / static_cast<double>(truth.size());
  }
  return largest / std::sqrt(square);
}

// The distances of many rows. Where numbers are quantised on the way, the rounding of floats moves one of them to its
// neighbour now and then, which the oracle's does not, and what follows differs by the size of such a step. So the
// nearest quarter of the rows must be as near as floats allow, and no row may be farther than steps take.
class Closeness {
 public:
  template <typename Floats>
  void add(const Floats& row, const std::vector<double>& truth) {
    distances_.push_back(distance(row, truth));
  }

  void expect_within(double quarter, double all) {
    std::sort(distances_.begin(), distances_.end());
    const double near = distances_[distances_.size() / 4], last = distances_.back();
    expect(near <= quarter, "three quarters of the rows are off by " + std::to_string(near) + " of their size or more");
    expect(last <= all, "a row is off by " + std::to_string(last) + " of its size");
  }

 private:
  std::vector<double> distances_;
};

}  // namespace orcaserve::check
