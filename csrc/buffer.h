// Memory that grows and is not initialised, on cache lines of its own.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace orcaserve {

class Buffer {
 public:
  // At least n bytes; what was in them is lost when it grows.
  void* reserve(size_t n) {
    if (n > size_) {
      const size_t rounded = (n + kLine - 1) / kLine * kLine;
      memory_.reset();
      size_ = 0;
      memory_.reset(std::aligned_alloc(kLine, rounded));
      if (!memory_) throw std::bad_alloc();
      size_ = rounded;
    }
    return memory_.get();
  }

 private:
  static constexpr size_t kLine = 64;
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> memory_;
  size_t size_ = 0;
};

}  // namespace orcaserve
