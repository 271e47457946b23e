// Team: the threads of the kernels, with a barrier and dispensers of work.
//
// Work is handed out in small units by shared counters, not cut into equal parts beforehand: a thread that the system takes
// the core from keeps the others waiting for one unit, not for its whole part. Every member has a queue of its own, of units
// whose data it made itself and has in its cache; it turns to the others' queues when its own is empty. Waiting threads spin
// for some microseconds, about as long as a unit takes, and then sleep, so an idle team uses no processor time. While other
// processes keep cores busy, fewer members work (sharing.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "cores.h"
#include "sharing.h"

namespace orcaserve {

class Team {
 public:
  static constexpr int kMostThreads = 1023;

  // 1 <= n_threads <= kMostThreads: the caller of run() and n_threads - 1 others, which start now and sleep.
  explicit Team(int n_threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int n_threads() const { return n_threads_; }

  // Members that take part in the next run, or in this one: n_threads() or fewer. Changes only at the end of a run.
  int size() const { return size_; }

  // From now on run() is called by this thread alone: it and the others each get a core for themselves, as the threads
  // `first` to first + n_threads() - 1 of `total` on this machine (cores.h). Threads that this one starts will share its core.
  void take_cores(int first, int total) { cores_.take(threads_, first, total); }

  // Runs work(context, member) on `size()` members, the caller being member 0, and returns when all have returned. `work`
  // must not throw. One caller at a time.
  void run(void (*work)(void* context, int member), void* context);

  // For use inside `work`, by every member alike. Waits until all have arrived; then the dispensers start from 0 again.
  void barrier(int member);

  // The next unit of work: 0, 1, 2, ... over all members since the last barrier (or since run began).
  int64_t take();

  // The same for the queue of one member.
  int64_t take_from(int queue);

  // A number that changes whenever a unit is taken or a barrier is passed, and only then; for any thread, at any time. While a
  // run is under way and it stays the same, every member is in the midst of a unit, or waits for one that is.
  uint64_t progress() const;

 private:
  void serve(int member);
  void share();
  static void wait_while(const std::atomic<uint32_t>& value, uint32_t old);

  const int n_threads_;
  int size_;
  Sharing sharing_;
  Cores cores_;
  int64_t worked_ns_ = 0;           // since the last report to sharing_
  std::vector<int64_t> waited_ns_;  // of each member for a core, at that time; -1: not looked at yet
  std::vector<std::thread> threads_;
  void (*work_)(void*, int) = nullptr;
  void* context_ = nullptr;
  std::atomic<bool> over_{false};
  // Each on a cache line of its own.
  alignas(64) std::atomic<uint32_t> round_{0};       // counts calls of run, and says who takes part; the others sleep on it
  alignas(64) std::atomic<uint32_t> generation_{0};  // counts barriers passed
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int64_t> next_unit_{0};
  // Each queue counts in one of two counters, in turn from barrier to barrier; the idle one is set back before the next.
  struct alignas(64) Queue {
    std::atomic<int64_t> next[2]{0, 0};
  };
  std::vector<Queue> queues_;
  std::vector<std::atomic<int>> thread_ids_;
};

}  // namespace orcaserve
