#include "team.h"

#include <algorithm>
#include <chrono>

namespace orcaserve {
namespace {

// About 20 to 60 microseconds of waiting awake: longer than a unit of work, far shorter than a slice of the system's clock.
constexpr int kSpins = 1500;

// The number of a round counts in steps of this; the rest says how many members take part.
constexpr uint32_t kRound = Team::kMostThreads + 1;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Team::Team(int n_threads)
    : n_threads_(n_threads),
      size_(n_threads),
      sharing_(n_threads),
      waited_ns_(static_cast<size_t>(n_threads), -1),
      queues_(static_cast<size_t>(n_threads)),
      thread_ids_(static_cast<size_t>(n_threads)) {
  for (int member = 1; member < n_threads_; ++member) threads_.emplace_back([this, member] { serve(member); });
}

Team::~Team() {
  over_ = true;
  round_.fetch_add(kRound, std::memory_order_release);
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(void (*work)(void*, int), void* context) {
  const int64_t start = n_threads_ > 1 ? now_ns() : 0;
  if (size_ > 1) {
    work_ = work;
    context_ = context;
    const uint32_t last = round_.load(std::memory_order_relaxed);
    round_.store((last / kRound + 1) * kRound + static_cast<uint32_t>(size_), std::memory_order_release);
    round_.notify_all();
  }
  work(context, 0);
  barrier(0);
  if (n_threads_ == 1) return;
  worked_ns_ += now_ns() - start;
  if (worked_ns_ >= Sharing::kReportNs) share();
}

void Team::serve(int member) {
  thread_ids_[static_cast<size_t>(member)] = this_thread_id();
  for (uint32_t round = 0;;) {
    wait_while(round_, round);
    // A member that takes part keeps the round from ending; others may miss rounds.
    round = round_.load(std::memory_order_acquire);
    if (over_) return;
    if (static_cast<uint32_t>(member) >= round % kRound) continue;
    work_(context_, member);
    barrier(member);
  }
}

// Between runs: tells how long members have waited for cores (the caller also between the runs), and takes as many into
// the next runs as is best.
void Team::share() {
  const int caller = this_thread_id();
  int64_t longest = 0;
  int waiter = 0;
  for (int member = 0; member < size_; ++member) {
    const auto i = static_cast<size_t>(member);
    const bool first_look = waited_ns_[i] < 0 || (member == 0 && thread_ids_[0] != caller);
    if (member == 0) thread_ids_[0] = caller;
    const int64_t waited = waited_for_a_core_ns(thread_ids_[i]);
    if (!first_look && waited - waited_ns_[i] > longest) {
      longest = waited - waited_ns_[i];
      waiter = member;
    }
    waited_ns_[i] = waited;
  }
  sharing_.report(worked_ns_, longest);
  const int size = sharing_.working();
  // The core that was waited for is left to whoever takes it, as long as there is another one.
  if (size < size_ || (size == size_ && size < n_threads_ && longest > worked_ns_ / 2))
    cores_.exchange(threads_, waiter, size);
  worked_ns_ = 0;
  if (size > size_) {  // the one that comes back has not been here to keep these
    const auto back = static_cast<size_t>(size_);
    waited_ns_[back] = waited_for_a_core_ns(thread_ids_[back]);
    for (auto& next : queues_[back].next) next.store(0, std::memory_order_relaxed);
  }
  size_ = size;
}

void Team::barrier(int member) {
  const int size = size_;  // read before arriving: after the last barrier of a run it may change
  const uint32_t generation = generation_.load(std::memory_order_relaxed);
  // The work after this barrier counts where the work before the last one did, which everybody has left.
  queues_[static_cast<size_t>(member)].next[(generation + 1) & 1].store(0, std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < size) {
    wait_while(generation_, generation);
  } else {
    arrived_.store(0, std::memory_order_relaxed);
    next_unit_.store(0, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    if (size > 1) generation_.notify_all();
  }
}

int64_t Team::take() { return next_unit_.fetch_add(1, std::memory_order_relaxed); }

int64_t Team::take_from(int queue) {
  const uint32_t generation = generation_.load(std::memory_order_relaxed);
  return queues_[static_cast<size_t>(queue)].next[generation & 1].fetch_add(1, std::memory_order_relaxed);
}

uint64_t Team::progress() const {
  // Barriers in the upper half; units since the last one, which only grow until the next, in the lower.
  const uint32_t generation = generation_.load(std::memory_order_relaxed);
  auto units = static_cast<uint32_t>(next_unit_.load(std::memory_order_relaxed));
  for (const Queue& queue : queues_)
    units += static_cast<uint32_t>(queue.next[generation & 1].load(std::memory_order_relaxed));
  return uint64_t{generation} << 32 | units;
}

void Team::wait_while(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace orcaserve
