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

// Largest error of a row, as a share of the row's root mean square; infinite if there is something that is not a number.
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

// Rows whose numbers were quantised on the way: in some the rounding of floats moved a quantised number to its neighbour,
// which the oracle's did not. So most rows must be as near as floats allow, and no row may be farther than such a step takes.
class Closeness {
 public:
  Closeness(double usual, double most) : usual_(usual), most_(most) {}

  template <typename Floats>
  void add(const Floats& row, const std::vector<double>& truth) {
    distances_.push_back(distance(row, truth));
  }

  void expect_close() {
    std::sort(distances_.begin(), distances_.end());
    const double median = distances_[distances_.size() / 2], last = distances_.back();
    expect(median <= usual_, "half of the rows are off by " + std::to_string(median) + " of their size or more");
    expect(last <= most_, "a row is off by " + std::to_string(last) + " of its size");
  }

  double median() const { return distances_[distances_.size() / 2]; }

 private:
  double usual_, most_;
  std::vector<double> distances_;
};

}  // namespace orcaserve::check
