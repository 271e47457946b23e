// Cores: where the threads of a team run.
//
// Left alone, the system wakes a thread on the core that it slept on, or on its waker's, and where cores share no cache (those
// of many virtual machines) it looks no further: two threads that wake each other stay on one core for many milliseconds,
// and the other core idles. So each gets a core that no other computing thread uses.
#pragma once

#include <thread>
#include <vector>

namespace orcaserve {

class Cores {
 public:
  // The calling thread and `others` are the computing threads `first`, `first` + 1, ... of `total` on this machine. Nothing
  // is done, now and later, if there are fewer than `total` cores or the system does not let threads choose.
  void take(std::vector<std::thread>& others, int first, int total);

  // Two threads change places: one waits for its core, which somebody else uses, and the other does not work now.
  void exchange(std::vector<std::thread>& others, int a, int b);

 private:
  void place(std::vector<std::thread>& others, int i) const;

  std::vector<int> own_;      // a core for each thread; empty: nothing was taken
  std::vector<int> nobodys_;
};

}  // namespace orcaserve
