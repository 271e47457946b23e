#include "cores.h"

#include <utility>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace orcaserve {

#if defined(__linux__)

void Cores::take(std::vector<std::thread>& others, int first, int total) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < total) return;
  const int n = static_cast<int>(others.size()) + 1;
  own_.clear();
  nobodys_.clear();
  for (int core = 0, number = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed)) continue;
    if (number >= total) nobodys_.push_back(core);
    else if (first <= number && number < first + n) own_.push_back(core);
    ++number;
  }
  for (int i = 0; i < n; ++i) place(others, i);
}

void Cores::exchange(std::vector<std::thread>& others, int a, int b) {
  if (own_.empty() || a == b) return;
  std::swap(own_[static_cast<size_t>(a)], own_[static_cast<size_t>(b)]);
  place(others, a);
  place(others, b);
}

void Cores::place(std::vector<std::thread>& others, int i) const {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (int core : nobodys_) CPU_SET(core, &cores);
  CPU_SET(own_[static_cast<size_t>(i)], &cores);
  const pthread_t thread = i == 0 ? pthread_self() : others[static_cast<size_t>(i) - 1].native_handle();
  pthread_setaffinity_np(thread, sizeof cores, &cores);
}

#else

void Cores::take(std::vector<std::thread>&, int, int) {}
void Cores::exchange(std::vector<std::thread>&, int, int) {}
void Cores::place(std::vector<std::thread>&, int) const {}

#endif

}  // namespace orcaserve
