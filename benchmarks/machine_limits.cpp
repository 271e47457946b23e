// What this machine can do at most: bytes read and operations a second, one JSON object on standard output.
//
//   machine_limits THREADS BYTES...
//
// For every BYTES all threads together read a working set of that size, again and again; the best pass counts. Arithmetic
// runs in registers alone. Built for the machine it runs on (-march=native); what that has no instruction for is null.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
std::atomic<int> sink{0};  // results go here, so that no loop is thought useless

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Runs work(member) on n threads that begin together, `repeats` times; returns the seconds of the quickest.
double best_seconds(int n, int repeats, const std::function<void(int)>& work) {
  double best = 1e9;
  for (int i = 0; i < repeats; ++i) {
    std::atomic<int> waiting{n};
    std::atomic<bool> go{false};
    std::vector<std::thread> threads;
    for (int member = 0; member < n; ++member)
      threads.emplace_back([&, member] {
        --waiting;
        while (!go) std::this_thread::yield();
        work(member);
      });
    while (waiting) std::this_thread::yield();
    const auto start = Clock::now();
    go = true;
    for (auto& thread : threads) thread.join();
    best = std::min(best, seconds_since(start));
  }
  return best;
}

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX2__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif
using Vector = int32_t __attribute__((vector_size(kBytes)));

Vector load(const uint8_t* from) {
  Vector x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

int read_all(const uint8_t* begin, int64_t n) {
  Vector a{}, b{}, c{}, d{};
  for (int64_t i = 0; i + 4 * kBytes <= n; i += 4 * kBytes) {
    a ^= load(begin + i);
    b ^= load(begin + i + kBytes);
    c ^= load(begin + i + 2 * kBytes);
    d ^= load(begin + i + 3 * kBytes);
  }
  const Vector all = a ^ b ^ c ^ d;
  return all[0] + all[1];
}

// GB/s of reading `bytes`, cut into one piece a thread. A timing takes passes enough for 50 ms.
double read_bandwidth(int threads, int64_t bytes) {
  const int64_t piece = (bytes / threads + 255) / 256 * 256;
  const int64_t total = piece * threads;
  void* memory = mmap(nullptr, static_cast<size_t>(total), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    std::exit(1);
  }
  madvise(memory, static_cast<size_t>(total), MADV_HUGEPAGE);
  auto* data = static_cast<uint8_t*>(memory);
  std::memset(data, 1, static_cast<size_t>(total));
  const int64_t passes = std::max<int64_t>(1, 2'000'000'000 / total);
  const double seconds = best_seconds(threads, 8, [&](int member) {
    int sum = 0;
    for (int64_t pass = 0; pass < passes; ++pass) {
      sum += read_all(data + member * piece, piece);
      asm volatile("" ::: "memory");  // the next pass reads anew
    }
    sink += sum;
  });
  munmap(memory, static_cast<size_t>(total));
  return static_cast<double>(total * passes) / seconds / 1e9;
}

// Giga-operations a second of all threads. `step` is one instruction that adds to its register; 12 independent chains of it
// hide the latency of two units with up to 6 cycles each.
template <typename Step>
double peak(int threads, int operations_of_a_step, Step step) {
  constexpr int64_t kRounds = 5'000'000;
  const double seconds = best_seconds(threads, 8, [&](int) {
    Vector a{}, b{}, c{}, d{}, e{}, f{}, g{}, h{}, i{}, j{}, k{}, l{};
    for (int64_t round = 0; round < kRounds; ++round) {
      step(a), step(b), step(c), step(d), step(e), step(f);
      step(g), step(h), step(i), step(j), step(k), step(l);
    }
  });
  return threads * static_cast<double>(kRounds) * 12 * operations_of_a_step / seconds / 1e9;
}

#if defined(__AMX_INT8__) && defined(__AMX_BF16__)
// The same of an instruction of AMX on whole tiles; four of them hide its latency.
template <typename Step>
double tile_peak(int threads, int operations_of_a_step, Step step) {
  constexpr int64_t kRounds = 500'000;
  const double seconds = best_seconds(threads, 8, [&](int) {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    asm volatile("ldtilecfg %0" ::"m"(config));
    asm volatile("tilezero %tmm0\n\ttilezero %tmm1\n\ttilezero %tmm2\n\ttilezero %tmm3\n\ttilezero %tmm4\n\ttilezero %tmm5");
    for (int64_t round = 0; round < kRounds; ++round) step();
    asm volatile("tilerelease");
  });
  return threads * static_cast<double>(kRounds) * 4 * operations_of_a_step / seconds / 1e9;
}
#define ORCASERVE_FOUR(name) \
  asm volatile(name " %tmm5, %tmm4, %tmm0\n\t" name " %tmm5, %tmm4, %tmm1\n\t" name " %tmm5, %tmm4, %tmm2\n\t" name " %tmm5, %tmm4, %tmm3")
#endif

void print_peaks([[maybe_unused]] int threads) {
#if defined(__AVX512F__)
  std::printf(R"("float32": %.1f)", peak(threads, 32, [](Vector& x) { asm volatile("vfmadd231ps %0, %0, %0" : "+v"(x)); }));
#elif defined(__FMA__)
  std::printf(R"("float32": %.1f)", peak(threads, 16, [](Vector& x) { asm volatile("vfmadd231ps %0, %0, %0" : "+x"(x)); }));
#else
  std::printf(R"("float32": null)");
#endif
#if defined(__AMX_BF16__) && defined(__AMX_INT8__)
  std::printf(R"(, "bfloat16": %.1f, "int8": %.1f)", tile_peak(threads, 16 * 16 * 32 * 2, [] { ORCASERVE_FOUR("tdpbf16ps"); }),
              tile_peak(threads, 16 * 16 * 64 * 2, [] { ORCASERVE_FOUR("tdpbsud"); }));
#else
#if defined(__AVX512BF16__)
  std::printf(R"(, "bfloat16": %.1f)", peak(threads, 64, [](Vector& x) { asm volatile("vdpbf16ps %0, %0, %0" : "+v"(x)); }));
#else
  std::printf(R"(, "bfloat16": null)");
#endif
#if defined(__AVX512VNNI__)
  std::printf(R"(, "int8": %.1f)", peak(threads, 128, [](Vector& x) { asm volatile("vpdpbusd %0, %0, %0" : "+v"(x)); }));
#elif defined(__AVXVNNI__)
  std::printf(R"(, "int8": %.1f)",
              peak(threads, 64, [](Vector& x) { asm volatile("%{vex%} vpdpbusd %0, %0, %0" : "+x"(x)); }));
#elif defined(__AVX2__)
  // Without a dot product of bytes: multiply and add pairs, widen and add pairs, accumulate.
  std::printf(R"(, "int8": %.1f)", peak(threads, 64, [](Vector& x) {
                Vector y;
                asm volatile("vpmaddubsw %0, %0, %1\n\tvpmaddwd %1, %1, %1\n\tvpaddd %1, %0, %0" : "+x"(x), "=&x"(y));
              }));
#else
  std::printf(R"(, "int8": null)");
#endif
#endif
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 0;
  if (threads < 1 || argc < 3) {
    std::fprintf(stderr, "usage: machine_limits THREADS BYTES...\n");
    return 2;
  }
#if defined(__AMX_INT8__)
  constexpr int kAskForComponent = 0x1023, kTiles = 18;  // ARCH_REQ_XCOMP_PERM
  if (syscall(SYS_arch_prctl, kAskForComponent, kTiles) != 0) {
    std::perror("the system gives no AMX tiles");
    return 1;
  }
#endif
  std::printf(R"({"threads": %d, "giga_operations": {)", threads);
  print_peaks(threads);
  std::printf(R"(}, "read_gb_s": {)");
  for (int i = 2; i < argc; ++i) {
    const int64_t bytes = std::atoll(argv[i]);
    if (bytes < 1) {
      std::fprintf(stderr, "a working set must have a size\n");
      return 2;
    }
    std::printf(R"(%s"%lld": %.1f)", i == 2 ? "" : ", ", static_cast<long long>(bytes), read_bandwidth(threads, bytes));
  }
  std::printf("}}\n");
}
