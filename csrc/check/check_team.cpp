// The team of threads: every unit once, nobody through a barrier before all have come, and nothing lost when members
// sleep.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <functional>
#include <thread>
#include <vector>

#include "../sharing.h"
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
  const int n = team.size();  // it may change when the run ends
  std::vector<int> faults(static_cast<size_t>(n)), visits(static_cast<size_t>(n));
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
  for (int member = 0; member < n; ++member) {
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
  expect(team.n_threads() == n_threads, "the team has another size than asked for");
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

// What another thread sees of the work: every unit and every barrier, and nothing while there is none.
void shows_progress(int n_threads) {
  Team team(n_threads);
  std::atomic<bool> over{false};
  std::thread onlooker([&] {
    while (!over) team.progress();
  });
  std::atomic<int> faults{0};
  run(team, [&](int member) {
    for (int phase = 0; phase < 50; ++phase) {
      const uint64_t before = team.progress();
      if (phase % 2)
        team.take_from(member);
      else
        team.take();
      const uint64_t taken = team.progress();
      team.barrier(member);
      faults += taken == before || team.progress() == taken;
      team.barrier(member);
    }
  });
  over = true;
  onlooker.join();
  expect(faults == 0, "a unit or a barrier did not show");
  const uint64_t idle = team.progress();
  expect(team.progress() == idle, "an idle team moves");
}

constexpr int64_t kReport = Sharing::kReportNs;

// Reports until a member that was counted out is tried again.
int reports_until_trial(Sharing& sharing) {
  const int working = sharing.working();
  int reports = 0;
  while (sharing.working() == working && reports < 1000) {
    sharing.report(kReport, 0);
    ++reports;
  }
  return reports;
}

// Who waits for a core longer than its share of the work is worth, is counted out; trials come ever later, until one
// succeeds.
void sharing_reports() {
  Sharing sharing(2);
  sharing.report(kReport, kReport / 2);
  expect(sharing.working() == 2, "a member was counted out that did its part");
  sharing.report(kReport, kReport);
  expect(sharing.working() == 2, "a member was counted out for one disturbance");
  int last = 0;
  for (int trial = 0; trial < 8; ++trial) {
    sharing.report(kReport, kReport * 2 / 3);
    expect(sharing.working() == 1, "a member that waits stayed");
    sharing.report(kReport, kReport);
    expect(sharing.working() == 1, "the last member was counted out");
    const int reports = reports_until_trial(sharing);
    expect(sharing.working() == 2 && reports < 1000, "a member was never tried again");
    expect(reports >= last, "a trial came sooner than the one before");
    last = reports;
  }
  sharing.report(kReport, 0);
  for (int i = 0; i < 2; ++i) sharing.report(kReport, kReport * 2 / 3);
  expect(reports_until_trial(sharing) >= last, "one quiet report made trials come sooner");
  for (int i = 0; i < 20; ++i) sharing.report(kReport, 0);
  for (int i = 0; i < 2; ++i) sharing.report(kReport, kReport * 2 / 3);
  expect(reports_until_trial(sharing) < last, "after a quiet time trials came as late as before it");
}

// Of many members one goes at a time, and once it is quiet all come back, one a report.
void sharing_of_many() {
  Sharing sharing(16);
  sharing.report(kReport, kReport);
  for (int i = 1; i < 20; ++i) {
    sharing.report(kReport, kReport);
    expect(sharing.working() == std::max(1, 16 - i), "not one member a report was counted out");
  }
  reports_until_trial(sharing);
  for (int i = 3; i <= 16; ++i) {
    sharing.report(kReport, 0);
    expect(sharing.working() == i, "not one member a report came back");
  }
}

// Real members that wait for cores: more of them than there are cores, all busy. Whatever the size, all units are done.
void crowded() {
  const int n_threads = 2 * static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  Team team(n_threads);
  int least = n_threads;
  for (int round = 0; round < 300; ++round) {
    deal(team, 2, 64, [](int, int) {
      const auto end = std::chrono::steady_clock::now() + microseconds(500);
      while (std::chrono::steady_clock::now() < end) {}
    });
    least = std::min(least, team.size());
  }
  expect(waited_for_a_core_ns(this_thread_id()) == 0 || least < n_threads, "members that waited for cores were all kept");
  expect(team.n_threads() == n_threads, "the number of threads changed");
}

}  // namespace

void check_team(Report& report) {
  for (int n_threads : {1, 2, 4, 7}) {
    const std::string team = "team of " + std::to_string(n_threads);
    report.check(team + ": many rounds", [&] { many_rounds(n_threads); });
    report.check(team + ": members that sleep", [&] { rounds_that_sleep(n_threads); });
    report.check(team + ": progress", [&] { shows_progress(n_threads); });
  }
  report.check("teams begin and end", start_and_end);
  report.check("two teams at once", two_teams_at_once);
  report.check("an idle team sleeps", sleeps_when_idle);
  report.check("sharing: reports and trials", sharing_reports);
  report.check("sharing: of many members", sharing_of_many);
  report.check("sharing: a crowded machine", crowded);
}

}  // namespace orcaserve::check
