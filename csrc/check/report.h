// The outcome of the checks: one line each.
#pragma once

#include <chrono>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

namespace orcaserve::check {

// Throws, which ends the check that it stands in.
inline void expect(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error(what);
}

class Report {
 public:
  // Runs work(), which throws if it finds something wrong.
  template <typename Work>
  void check(const std::string& name, const Work& work) {
    const auto start = std::chrono::steady_clock::now();
    std::string error;
    try {
      work();
    } catch (const std::exception& e) {
      error = e.what();
      ++n_failed_;
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("%-6s %s (%.2f s)%s%s\n", error.empty() ? "ok" : "FAILED", name.c_str(), seconds.count(),
                error.empty() ? "" : ": ", error.c_str());
    std::fflush(stdout);
    ++n_checks_;
  }

  int n_checks() const { return n_checks_; }
  int n_failed() const { return n_failed_; }

 private:
  int n_checks_ = 0, n_failed_ = 0;
};

}  // namespace orcaserve::check
