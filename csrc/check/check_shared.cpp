// Numbers in shared memory: in order, whole, and the same for all, whoever is late, and whoever sleeps. The other processes
// are threads here, each with objects of its own over the same memory.
#include <sys/mman.h>

#include <chrono>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "../shared_numbers.h"
#include "array.h"
#include "checks.h"

namespace orcaserve::check {
namespace {

using std::chrono::milliseconds;

class SharedPages {
 public:
  explicit SharedPages(int64_t n) : n_(static_cast<size_t>(n)) {
    p_ = mmap(nullptr, n_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    expect(p_ != MAP_FAILED, "no shared memory is to be had");
  }
  ~SharedPages() { munmap(p_, n_); }
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;
  void* get() const { return p_; }

 private:
  const size_t n_;
  void* p_;
};

std::vector<float> message(int number, int n) {
  std::vector<float> x(static_cast<size_t>(n));
  std::iota(x.begin(), x.end(), static_cast<float>(1000 * number));
  return x;
}

// delay(side, number): before message `number`; side 0 is the sender's.
void deliver(int n_slots, int64_t slot_bytes, const std::vector<int>& sizes, const std::function<void(int, int)>& delay) {
  const SharedPages memory(Mailbox::bytes(n_slots, slot_bytes));
  std::thread sender([&] {
    Mailbox mailbox(memory.get(), n_slots, slot_bytes);
    for (int i = 0; i < static_cast<int>(sizes.size()); ++i) {
      delay(0, i);
      mailbox.put(message(i, sizes[static_cast<size_t>(i)]).data(), sizes[static_cast<size_t>(i)]);
    }
  });
  Mailbox mailbox(memory.get(), n_slots, slot_bytes);
  int n_wrong = 0;
  for (int i = 0; i < static_cast<int>(sizes.size()); ++i) {
    delay(1, i);
    std::vector<float> x(static_cast<size_t>(sizes[static_cast<size_t>(i)]));
    mailbox.take(x.data(), static_cast<int64_t>(x.size()));
    n_wrong += x != message(i, sizes[static_cast<size_t>(i)]);
  }
  sender.join();
  expect(n_wrong == 0, std::to_string(n_wrong) + " messages are not what was sent");
}

// Sums of arrays of many sizes, some longer than a round's. Everybody's must be those in the order of the shards.
void add_up(int n_shards, int64_t capacity, int n_rounds, const std::function<void(int, int)>& delay) {
  const SharedPages memory(SharedSums::bytes(n_shards, capacity));
  const auto size = [&](int round) { return 1 + (round * 37) % static_cast<int>(2 * capacity); };
  const auto own = [&](int shard, int round) {
    Random random(static_cast<uint64_t>(1000 * shard + round));
    std::vector<float> x(static_cast<size_t>(size(round)));
    for (float& value : x) value = static_cast<float>(static_cast<int32_t>(random.bits())) * 1e-5f;
    return x;
  };
  std::vector<int> n_wrong(static_cast<size_t>(n_shards));
  std::vector<std::thread> threads;
  for (int shard = 0; shard < n_shards; ++shard)
    threads.emplace_back([&, shard] {
      SharedSums sums(memory.get(), shard, n_shards, capacity);
      for (int round = 0; round < n_rounds; ++round) {
        std::vector<float> x = own(shard, round), expected = own(0, round);
        for (int other = 1; other < n_shards; ++other) {
          const std::vector<float> y = own(other, round);
          for (size_t i = 0; i < y.size(); ++i) expected[i] += y[i];
        }
        delay(shard, round);
        sums.add(x.data(), static_cast<int64_t>(x.size()));
        n_wrong[static_cast<size_t>(shard)] += x != expected;
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (int shard = 0; shard < n_shards; ++shard)
    expect(n_wrong[static_cast<size_t>(shard)] == 0, "shard " + std::to_string(shard) + " got other sums");
}

void sometimes_late(int who, int when) {
  if ((when * 7 + who * 3) % 16 == 0) std::this_thread::sleep_for(milliseconds(2));  // longer than anybody spins
}

}  // namespace

void check_shared(Report& report) {
  std::vector<int> sizes;
  for (int i = 0; i < 300; ++i) sizes.push_back(1 + (i * 131) % 5000);
  for (int n_slots : {1, 2, 5})
    report.check("mailbox of " + std::to_string(n_slots) + " slots", [&] { deliver(n_slots, 8192, sizes, sometimes_late); });
  report.check("mailbox: messages whose memory is given back",
               [] { deliver(2, int64_t{4} << 20, {900'000, 3, 700'000, 2'000'000, 900'000, 1}, sometimes_late); });
  for (int n_shards : {2, 3, 5})
    report.check("sums of " + std::to_string(n_shards) + " shards", [&] { add_up(n_shards, 256, 200, sometimes_late); });
}

}  // namespace orcaserve::check
