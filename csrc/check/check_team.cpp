// The team of threads: every unit once, nobody through a barrier before all have come, and nothing lost when members
// sleep.
#include <chrono>
#include <ctime>
#include <functional>
#include <thread>
#include <vector>

#include "../team.h"
#include "checks.h"

namespace orcaserve::check {
namespace {

using std::chrono::microseconds;

// Runs work(member) on every member.
void run(Team& team, std::function<void(int)> work) {
  team.run([](void* p, int member) { (*static_cast<std::function<void(int)>*>(p))(member); }, &work);
}

// `n_phases` times: units are dealt, then, behind a barrier, every member looks at what all have done. The counters are
// plain integers on purpose: that writes of one member are seen by the others behind a barrier is what is checked.
void deal(Team& team, int n_phases, int n_units, std::function<void(int member, int phase)> delay) {
  std::vector<std::vector<int>> rounds(static_cast<size_t>(n_phases), std::vector<int>(static_cast<size_t>(n_units)));
  std::vector<int> faults(static_cast<size_t>(team.size())), visits(static_cast<size_t>(team.size()));
  run(team, [&](int member) {
    ++visits[static_cast<size_t>(member)];
    for (int phase = 0; phase < n_phases; ++phase) {
      std::vector<int>& taken = rounds[static_cast<size_t>(phase)];
      delay(member, phase);
      for (int64_t unit; (unit = team.take()) < n_units;) ++taken[static_cast<size_t>(unit)];
      team.barrier(member);
      for (int count : taken) faults[static_cast<size_t>(member)] += count != 1;
    }
  });
  for (int member = 0; member < team.size(); ++member) {
    const std::string who = "member " + std::to_string(member);
    expect(visits[static_cast<size_t>(member)] == 1, who + " did not run exactly once");
    expect(faults[static_cast<size_t>(member)] == 0, who + " saw units not dealt exactly once");
  }
}

// The same with the members' own queues, of as many units each as their number says; whoever is done helps the others.
void deal_queues(Team& team, int n_phases) {
  const int n = team.size();
  std::vector<std::vector<std::vector<int>>> taken(static_cast<size_t>(n_phases));
  for (auto& queues : taken)
    for (int queue = 0; queue < n; ++queue) queues.emplace_back(static_cast<size_t>(3 * queue + 1));
  std::vector<int> faults(static_cast<size_t>(n));
  run(team, [&](int member) {
    for (auto& queues : taken) {
      for (int i = 0; i < n; ++i) {
        const int queue = (member + i) % n;
        std::vector<int>& units = queues[static_cast<size_t>(queue)];
        const auto n_units = static_cast<int64_t>(units.size());
        for (int64_t unit; (unit = team.take_from(queue)) < n_units;) ++units[static_cast<size_t>(unit)];
      }
      team.barrier(member);
      for (const std::vector<int>& units : queues)
        for (int count : units) faults[static_cast<size_t>(member)] += count != 1;
    }
  });
  for (int fault : faults) expect(fault == 0, "units of the members' queues were not dealt exactly once");
}

void many_rounds(int n_threads) {
  Team team(n_threads);
  expect(team.size() == n_threads, "the team has another size than asked for");
  const auto at_once = [](int, int) {};
  const int n_rounds = n_threads <= 2 ? 2000 : 300;  // with more members than cores, a round is mostly waiting
  for (int round = 0; round < n_rounds; ++round) {
    deal(team, 1 + round % 3, round % 17, at_once);
    deal_queues(team, round % 4);
  }
}

// Long enough for everyone else to stop spinning and sleep.
void rounds_that_sleep(int n_threads) {
  Team team(n_threads);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(microseconds(500));
    deal(team, 3, 10, [&](int member, int phase) {
      if ((member + phase) % n_threads == 0) std::this_thread::sleep_for(microseconds(500));
    });
  }
}

void start_and_end() {
  for (int round = 0; round < 100; ++round) {
    Team idle(1 + round % 4);
    if (round % 3 == 0) continue;
    deal(idle, 1, 5, [](int, int) {});
  }
}

// As two engines in one process have them.
void two_teams_at_once() {
  std::vector<std::thread> callers;
  std::vector<std::string> errors(2);
  for (size_t caller = 0; caller < errors.size(); ++caller)
    callers.emplace_back([&errors, caller] {
      try {
        many_rounds(2);
      } catch (const std::exception& e) {
        errors[caller] = e.what();
      }
    });
  for (std::thread& thread : callers) thread.join();
  for (const std::string& error : errors) expect(error.empty(), error);
}

// CPU time of the whole process while a team waits for work.
void sleeps_when_idle() {
  Team team(4);
  deal(team, 2, 10, [](int, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::clock_t start = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const double used = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  expect(used < 0.02, "an idle team used " + std::to_string(used) + " s of processor time in 0.2 s");
}

}  // namespace

void check_team(Report& report) {
  for (int n_threads : {1, 2, 4, 7}) {
    const std::string team = "team of " + std::to_string(n_threads);
    report.check(team + ": many rounds", [&] { many_rounds(n_threads); });
    report.check(team + ": members that sleep", [&] { rounds_that_sleep(n_threads); });
  }
  report.check("teams begin and end", start_and_end);
  report.check("two teams at once", two_teams_at_once);
  report.check("an idle team sleeps", sleeps_when_idle);
}

}  // namespace orcaserve::check
