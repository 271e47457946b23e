#include "shared_numbers.h"

#include <algorithm>
#include <climits>
#include <cstring>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace orcaserve {
namespace {

constexpr int kSpins = 1500;  // as long as the team of threads does
constexpr int64_t kChunk = 2048;  // floats of a sum that stay in the first level meanwhile
constexpr int64_t kSystemPage = 4096;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The futexes of other systems than Linux are not reached between processes: there `orcaserve.data_plane` takes another way.
void sleep_while(std::atomic<uint32_t>& value, uint32_t old) {
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value), FUTEX_WAIT, old, nullptr, nullptr, 0);
#else
  pause();
#endif
}

void wake_all(std::atomic<uint32_t>& value) {
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
#endif
}

// Gives the whole pages of this part of the shared memory back to the system; where that fails it stays in use.
void give_back(uint8_t* from, int64_t n) {
#if defined(__linux__)
  const int64_t whole = n / kSystemPage * kSystemPage;
  if (whole > 0) madvise(from, static_cast<size_t>(whole), MADV_REMOVE);
#endif
}

int64_t in_lines(int64_t n) { return (n + 63) / 64 * 64; }
int64_t in_pages(int64_t n) { return (n + kSystemPage - 1) / kSystemPage * kSystemPage; }

}  // namespace

static_assert(sizeof(SharedCounter) == 64 && std::atomic<uint32_t>::is_always_lock_free);

void SharedCounter::set(uint32_t to) {
  value.store(to);  // in one order with the sleepers' count: either they see this value or they are seen here
  if (sleepers.load() != 0) wake_all(value);
}

void SharedCounter::wait_while(uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  ++sleepers;
  while (value.load() == old) sleep_while(value, old);
  --sleepers;
}

Mailbox::Mailbox(void* memory, int n_slots, int64_t slot_bytes)
    : sent_(static_cast<SharedCounter*>(memory)[0]),
      taken_(static_cast<SharedCounter*>(memory)[1]),
      slots_(static_cast<uint8_t*>(memory) + kSystemPage),
      n_slots_(static_cast<uint32_t>(n_slots)),
      slot_bytes_(in_pages(slot_bytes)) {}

int64_t Mailbox::bytes(int n_slots, int64_t slot_bytes) { return kSystemPage + n_slots * in_pages(slot_bytes); }

void Mailbox::put(const float* x, int64_t n) {
  const auto* from = reinterpret_cast<const uint8_t*>(x);
  for (int64_t left = n * int64_t{sizeof(float)}; left > 0;) {
    const uint32_t number = sent_.value.load(std::memory_order_relaxed);
    for (uint32_t taken; number - (taken = taken_.value.load(std::memory_order_acquire)) == n_slots_;)
      taken_.wait_while(taken);
    const int64_t piece = std::min(left, slot_bytes_);
    std::memcpy(slot(number), from, static_cast<size_t>(piece));
    sent_.set(number + 1);
    from += piece;
    left -= piece;
  }
}

void Mailbox::take(float* x, int64_t n) {
  auto* to = reinterpret_cast<uint8_t*>(x);
  for (int64_t left = n * int64_t{sizeof(float)}; left > 0;) {
    const uint32_t number = taken_.value.load(std::memory_order_relaxed);
    if (sent_.value.load(std::memory_order_acquire) == number) sent_.wait_while(number);
    const int64_t piece = std::min(left, slot_bytes_);
    std::memcpy(to, slot(number), static_cast<size_t>(piece));
    if (piece > kKept) give_back(slot(number) + kKept, in_pages(piece) - kKept);
    taken_.set(number + 1);
    to += piece;
    left -= piece;
  }
}

SharedSums::SharedSums(void* memory, int shard, int n_shards, int64_t capacity)
    : counters_(static_cast<SharedCounter*>(memory)),
      numbers_(reinterpret_cast<float*>(static_cast<uint8_t*>(memory) + in_pages(n_shards * int64_t{sizeof(SharedCounter)}))),
      shard_(shard),
      n_shards_(n_shards),
      capacity_(capacity),
      round_(counters_[shard].value.load()) {}

int64_t SharedSums::bytes(int n_shards, int64_t capacity) {
  return in_pages(n_shards * int64_t{sizeof(SharedCounter)}) +
         in_lines(2 * n_shards * capacity * int64_t{sizeof(float)});
}

void SharedSums::add(float* x, int64_t n) {
  for (int64_t first = 0; first < n; first += capacity_) add_piece(x + first, std::min(capacity_, n - first));
}

void SharedSums::add_piece(float* x, int64_t n) {
  const uint32_t round = ++round_;
  std::memcpy(numbers_of(shard_, round), x, static_cast<size_t>(n) * sizeof(float));
  round_of(shard_).set(round);
  waiting_.store(true, std::memory_order_relaxed);
  for (int shard = 0; shard < n_shards_; ++shard) {
    if (shard == shard_) continue;
    SharedCounter& other = round_of(shard);
    // It may be one round ahead, never two.
    if (other.value.load(std::memory_order_acquire) == round - 1) other.wait_while(round - 1);
  }
  waiting_.store(false, std::memory_order_relaxed);
  for (int64_t first = 0; first < n; first += kChunk) {
    const int64_t m = std::min(kChunk, n - first);
    float* to = x + first;
    const float *a = numbers_of(0, round) + first, *b = numbers_of(1, round) + first;
    for (int64_t i = 0; i < m; ++i) to[i] = a[i] + b[i];
    for (int shard = 2; shard < n_shards_; ++shard) {
      const float* c = numbers_of(shard, round) + first;
      for (int64_t i = 0; i < m; ++i) to[i] += c[i];
    }
  }
}

}  // namespace orcaserve
