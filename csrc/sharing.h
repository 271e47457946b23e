// Sharing: how many members of a team should work while other processes want the same cores.
//
// A member that waits for a core keeps all the others waiting at the next barrier: with one of two cores taken by a busy
// process, two members get less done than one. So the members that wait are counted out, and tried again later.
#pragma once

#include <cstdint>

namespace orcaserve {

class Sharing {
 public:
  // Between two reports lies so much work at least: some slices of the system's clock, so that waiting shows.
  static constexpr int64_t kReportNs = 20'000'000;

  explicit Sharing(int n_members) : n_members_(n_members), working_(n_members) {}

  // Members that should work now, at least 1.
  int working() const { return working_; }

  // In `worked_ns` of work since the last report, the member that waited longest for a core waited `waited_ns`.
  void report(int64_t worked_ns, int64_t waited_ns);

 private:
  const int n_members_;
  int working_;
  int64_t pause_ns_ = kFirstPauseNs;  // how long the next member that is counted out stays out, in time of work
  int64_t left_ns_ = 0;               // of the present pause
  int64_t quiet_ns_ = kReportNs;      // since all members work without waiting

  static constexpr int64_t kFirstPauseNs = 200'000'000;
  static constexpr int64_t kLongestPauseNs = 800'000'000;
};

// Nanoseconds that a thread of this process has waited for a core so far; 0 where the system does not tell.
int64_t waited_for_a_core_ns(int thread_id);

// The system's number of the calling thread.
int this_thread_id();

}  // namespace orcaserve
