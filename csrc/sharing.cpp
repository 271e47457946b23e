#include "sharing.h"

#include <cstdio>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace orcaserve {

void Sharing::report(int64_t worked_ns, int64_t waited_ns) {
  // All wait for the one, so `waited` of `worked` is lost; without the member it is its share of the work.
  if (working_ > 1 && waited_ns > worked_ns / working_) {
    // After quiet, the first time may be anything that needed a core for one slice of the clock.
    const bool first = quiet_ns_ > 0;
    quiet_ns_ = 0;
    if (first) return;
    --working_;
    left_ns_ = pause_ns_;
    // Every trial costs those who wait for the result, so the next one comes later.
    pause_ns_ = 2 * pause_ns_ < kLongestPauseNs ? 2 * pause_ns_ : kLongestPauseNs;
    return;
  }
  if (left_ns_ > 0) {
    left_ns_ -= worked_ns;
  } else if (working_ < n_members_) {
    ++working_;
  } else {
    quiet_ns_ += worked_ns;
    if (quiet_ns_ >= kFirstPauseNs) pause_ns_ = kFirstPauseNs;
  }
}

#if defined(__linux__)

int64_t waited_for_a_core_ns(int thread_id) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", thread_id);
  std::FILE* file = std::fopen(path, "re");
  if (!file) return 0;
  long long ran = 0, waited = 0;
  const bool told = std::fscanf(file, "%lld %lld", &ran, &waited) == 2;
  std::fclose(file);
  return told ? waited : 0;
}

int this_thread_id() { return static_cast<int>(::syscall(SYS_gettid)); }

#else

int64_t waited_for_a_core_ns(int) { return 0; }
int this_thread_id() { return 0; }

#endif

}  // namespace orcaserve
