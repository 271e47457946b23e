// Numbers from process to process of one machine, in memory that all of them have mapped.
//
// Nothing here knows how that memory was come by. It must be zero at first and 64-byte aligned; every process makes its own
// objects over the same bytes. Who waits spins for some microseconds and then sleeps in the kernel (a futex), so a stage that
// has nothing to do takes no core from the others. A wait ends by news alone: whoever ends the processes ends it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace orcaserve {

// Counts upwards, seen by all. One process counts, any may wait.
struct alignas(64) SharedCounter {
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;

  void set(uint32_t to);
  // Until `value` is not `old`.
  void wait_while(uint32_t old);
};

// From one process to another, first in, first out.
class Mailbox {
 public:
  // A message takes a slot, or as many as it needs. The sender waits only when all are full.
  Mailbox(void* memory, int n_slots, int64_t slot_bytes);
  static int64_t bytes(int n_slots, int64_t slot_bytes);

  void put(const float* x, int64_t n);
  // The receiver has to know n; the sender's must be the same.
  void take(float* x, int64_t n);

 private:
  // Of a slot, so many bytes stay in memory once they have been used; the rest of a long message is given back.
  static constexpr int64_t kKept = int64_t{1} << 20;

  uint8_t* slot(uint32_t number) const { return slots_ + static_cast<int64_t>(number % n_slots_) * slot_bytes_; }

  SharedCounter& sent_;
  SharedCounter& taken_;
  uint8_t* const slots_;
  const uint32_t n_slots_;
  const int64_t slot_bytes_;
};

// Arrays of several processes added up, each shard's in its place: ((s0 + s1) + s2) ..., whatever the size of the array.
//
// A shard writes its numbers of a round where the others read them, in one of two places in turn. It comes to the round
// after the next only when all others have begun the next one, and so have done with this one.
class SharedSums {
 public:
  // capacity: floats that are added up in a round; larger arrays take several.
  SharedSums(void* memory, int shard, int n_shards, int64_t capacity);
  static int64_t bytes(int n_shards, int64_t capacity);

  // x [n] becomes the sum. All shards call it with the same n, in the same order.
  void add(float* x, int64_t n);

  // Whether `add` waits for other shards now. From any thread.
  bool waiting() const { return waiting_.load(std::memory_order_relaxed); }

 private:
  SharedCounter& round_of(int shard) const { return counters_[shard]; }
  float* numbers_of(int shard, uint32_t round) const {
    return numbers_ + (int64_t{2} * shard + (round & 1)) * capacity_;
  }
  void add_piece(float* x, int64_t n);

  SharedCounter* const counters_;
  float* const numbers_;
  const int shard_, n_shards_;
  const int64_t capacity_;
  uint32_t round_;
  std::atomic<bool> waiting_{false};
};

}  // namespace orcaserve
