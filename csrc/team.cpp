#include "team.h"

namespace orcaserve {
namespace {

// About 20 to 60 microseconds of waiting awake: longer than a unit of work, far shorter than a slice of the system's clock.
constexpr int kSpins = 1500;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Team::Team(int n_threads) : size_(n_threads), queues_(static_cast<size_t>(n_threads)) {
  for (int member = 1; member < size_; ++member) threads_.emplace_back([this, member] { serve(member); });
}

Team::~Team() {
  over_ = true;
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(void (*work)(void*, int), void* context) {
  if (size_ > 1) {
    work_ = work;
    context_ = context;
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
  }
  work(context, 0);
  barrier(0);
}

void Team::serve(int member) {
  for (uint32_t round = 0;; ++round) {
    wait_while(round_, round);
    if (over_) return;
    work_(context_, member);
    barrier(member);
  }
}

void Team::barrier(int member) {
  const uint32_t generation = generation_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < size_) {
    wait_while(generation_, generation);
  } else {
    arrived_.store(0, std::memory_order_relaxed);
    next_unit_.store(0, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    if (size_ > 1) generation_.notify_all();
  }
  // Everybody has left the work before this barrier, whose counter is the one that the work after the next will use.
  queues_[static_cast<size_t>(member)].next[generation & 1].store(0, std::memory_order_relaxed);
}

int64_t Team::take() { return next_unit_.fetch_add(1, std::memory_order_relaxed); }

int64_t Team::take_from(int queue) {
  const uint32_t generation = generation_.load(std::memory_order_relaxed);
  return queues_[static_cast<size_t>(queue)].next[generation & 1].fetch_add(1, std::memory_order_relaxed);
}

void Team::wait_while(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace orcaserve
