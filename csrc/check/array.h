// What the checks give to the kernels: arrays without room to spare, and random numbers that are the same everywhere.
#pragma once

#include <cmath>
#include <cstdint>
#include <new>
#include <vector>

namespace orcaserve::check {

// Memory of its own on a cache line of its own and not a byte longer than asked for, so that the address sanitizer sees
// whoever reads beyond it.
template <typename T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};
  LineAllocator() = default;
  template <typename U>
  LineAllocator(const LineAllocator<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kLine)); }
  void deallocate(T* p, size_t) { ::operator delete(p, kLine); }
  template <typename U>
  bool operator==(const LineAllocator<U>&) const { return true; }
};

template <typename T>
using Array = std::vector<T, LineAllocator<T>>;

// SplitMix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  int below(int n) { return static_cast<int>(bits() % static_cast<uint64_t>(n)); }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }

  // Of mean 0 and standard deviation 1: close to normal.
  float normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return static_cast<float>(sum);
  }

  template <typename Floats>
  void fill(Floats& x, double deviation, double mean = 0) {
    for (auto& value : x) value = static_cast<float>(mean + deviation * normal());
  }

 private:
  uint64_t state_;
};

}  // namespace orcaserve::check
