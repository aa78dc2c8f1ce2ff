// Runs and their cliques alone, on host memory, with threads as ranks.
//
// usage: runs_test TEST...; without arguments, prints the names of the tests.

#include "cuda/runs.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cuda/pads/fault_watch.h"
#include "cuda/pads/signal_pads.h"
#include "tests/check.h"
#include "tests/cuda/host_memory.h"

namespace {

using hloom::cuda::Clique;
using hloom::cuda::HostAllocator;
using hloom::cuda::LaunchId;
using hloom::cuda::MaybeError;
using hloom::cuda::RunEntry;
using hloom::cuda::Runs;
using std::chrono::milliseconds;

using Devices = std::vector<int64_t>;

const Devices kClique = {4, 5, 6};
constexpr char kTwoRuns[] = "two runs on the same devices were started at once";

struct Entered {
  MaybeError error;
  Clique* clique = nullptr;
  uint32_t number = 0;
};

Entered Enter(Runs& runs, const Devices& clique, int64_t device, int64_t run,
              milliseconds timeout = milliseconds(30000)) {
  RunEntry entry;
  entry.clique = clique;
  while (clique[entry.rank] != device) ++entry.rank;
  entry.device.ordinal = device;
  entry.run = run;
  entry.timeout = timeout;
  Entered entered;
  entered.error = runs.Enter(entry, &entered.clique, &entered.number);
  return entered;
}

std::future<Entered> Entering(Runs& runs, const Devices& clique, int64_t device, int64_t run) {
  return std::async(std::launch::async, [=, &runs] { return Enter(runs, clique, device, run); });
}

// All devices of the clique, at the same time.
std::vector<Entered> EnterAll(Runs& runs, int64_t run, const Devices& clique = kClique) {
  std::vector<std::future<Entered>> futures;
  for (int64_t device : clique) futures.push_back(Entering(runs, clique, device, run));
  std::vector<Entered> all;
  for (auto& future : futures) all.push_back(future.get());
  return all;
}

Clique* MustEnter(Runs& runs, int64_t run) {
  std::vector<Entered> all = EnterAll(runs, run);
  for (const Entered& each : all) CHECK(!each.error && each.clique == all[0].clique);
  return all[0].clique;
}

MaybeError Launch(Runs& runs, Clique* clique, size_t rank, int64_t run, LaunchId* id = nullptr,
                  bool is_recorded = false) {
  return runs.Launch(clique, rank, run, is_recorded, [id](const LaunchId& launched) {
    if (id != nullptr) *id = launched;
    return MaybeError();
  });
}

// What kernels of a rank are told of a run: the first launch that is given up, or -1.
int64_t Abandoned(const Clique& clique, size_t rank, uint32_t number) {
  unsigned long long entry =
      hloom::cuda::PageOf(clique.pads(), rank)->abandoned[number % hloom::kAbandonedRuns];
  return entry >> 32 == number ? static_cast<int64_t>(entry & 0xffffffffu) : -1;
}

TEST(AllRanksGetTheSamePads) {
  HostAllocator allocator;
  Runs runs(allocator);
  Clique* clique = MustEnter(runs, 1);
  CHECK(clique->pads().devices().size() == 3 && clique->pads().devices()[2].ordinal == 6);
  for (int64_t run = 2; run < 40; ++run) CHECK(MustEnter(runs, run) == clique);
  CHECK(allocator.ranks_alive == 3);
  EnterAll(runs, 40, {5, 4, 6});
  CHECK(allocator.ranks_alive == 6);
}

TEST(RunsAreNumberedAlike) {
  HostAllocator allocator;
  Runs runs(allocator);
  uint32_t before = 0;
  for (int64_t run = 7; run < 20; ++run) {
    std::vector<Entered> all = EnterAll(runs, run);
    CHECK(all[0].number == before + 1);
    before = all[0].number;
    for (const Entered& each : all) CHECK(each.number == before);
    // Another call of the same program waits for nobody, and the stream is in the run.
    Entered again = Enter(runs, kClique, 5, run, milliseconds(1));
    CHECK(!again.error && again.clique == all[0].clique && again.number == 0);
  }
}

TEST(WhoDoesNotComeIsNamed) {
  HostAllocator allocator;
  Runs runs(allocator);
  for (int64_t run : {1, 2}) {
    auto other = std::async(std::launch::async,
                            [&] { return Enter(runs, kClique, 6, run, milliseconds(30000)); });
    MaybeError error = Enter(runs, kClique, 5, run, milliseconds(300)).error;
    CHECK(error == "device 4 did not come to this run within 300 ms");
    CHECK(other.get().error == error);
    // Nor does a latecomer wait.
    CHECK(Enter(runs, kClique, 4, run).error == error);
    MustEnter(runs, 10 + run);
  }
}

TEST(ComingTwiceIsAnError) {
  HostAllocator allocator;
  Runs runs(allocator);
  auto first = Entering(runs, kClique, 4, 1);
  std::this_thread::sleep_for(milliseconds(100));
  CHECK_TEXT(Enter(runs, kClique, 4, 1).error, "device 4 comes twice at once to one run");
  auto second = Entering(runs, kClique, 5, 1);
  CHECK(!Enter(runs, kClique, 6, 1).error);
  CHECK(!first.get().error && !second.get().error);
}

TEST(FailuresAreEveryonesAndLeaveNothing) {
  HostAllocator allocator;
  Runs runs(allocator);
  allocator.fails_on = 6;
  for (const Entered& each : EnterAll(runs, 1)) {
    CHECK(each.error == "device 6 is full, while making signals for devices 4-6");
  }
  allocator.fails_on = -1;
  allocator.connect_error = "no way";
  for (const Entered& each : EnterAll(runs, 2)) CHECK_TEXT(each.error, "no way, while making");
  allocator.connect_error = std::nullopt;
  CHECK(allocator.ranks_alive == 0);
  MustEnter(runs, 3);
}

TEST(WhatIsThrownIsEveryonesError) {
  HostAllocator allocator;
  Runs runs(allocator);
  allocator.throws = true;
  for (const Entered& each : EnterAll(runs, 1)) CHECK_TEXT(each.error, "bad_alloc");
  allocator.throws = false;
  MustEnter(runs, 2);
}

TEST(AFailedRunReleasesWhoWaits) {
  HostAllocator allocator;
  Runs runs(allocator);
  auto first = Entering(runs, kClique, 4, 1);
  auto second = Entering(runs, kClique, 5, 1);
  std::this_thread::sleep_for(milliseconds(100));
  runs.Fail(1, "no such kernel");
  for (auto* each : {&first, &second}) {
    CHECK(each->get().error == "another device has failed in this run: no such kernel");
  }
  CHECK_TEXT(Enter(runs, kClique, 6, 1).error, "no such kernel");
  MustEnter(runs, 2);
}

// Device 4 begins run 1, device 6 run 2; device 5 only comes when one is decided.
TEST(OfTwoRunsThatCrossOneGoesOn) {
  HostAllocator allocator;
  Runs runs(allocator);
  auto four = std::async(std::launch::async, [&] {
    CHECK(!Enter(runs, kClique, 4, 1).error);
    return Enter(runs, kClique, 4, 2).error;
  });
  auto six = std::async(std::launch::async, [&] {
    MaybeError error = Enter(runs, kClique, 6, 2).error;
    CHECK(!Enter(runs, kClique, 6, 1).error);
    return error;
  });
  CHECK(!Enter(runs, kClique, 5, 1).error);
  MaybeError error = six.get();
  CHECK_TEXT(error, kTwoRuns);
  CHECK_TEXT(error,
             ": device 6 took this one first, device 4 the other, and each would wait for the "
             "other for ever. This run is given up and the other goes on; start programs that "
             "share devices from one thread, or hold a lock around the calls that start them");
  CHECK(four.get() == error && Enter(runs, kClique, 5, 2).error == error);
  MustEnter(runs, 3);
}

// Each of three groups of two has come halfway, in three runs.
TEST(RunsThatCrossInACircle) {
  HostAllocator allocator;
  Runs runs(allocator);
  auto one = Entering(runs, {4, 5}, 4, 1);
  auto two = Entering(runs, {5, 6}, 5, 2);
  MaybeError three = Enter(runs, {6, 4}, 6, 3).error;
  CHECK_TEXT(three, kTwoRuns);
  CHECK(!Enter(runs, {5, 6}, 6, 2).error && !two.get().error);
  CHECK(!Enter(runs, {4, 5}, 5, 1).error && !one.get().error);
  CHECK(Enter(runs, {6, 4}, 4, 3).error == three);
}

// Where each run has threads of its own, all ranks of both come.
TEST(RunsThatDoNotCrossForLongGoOn) {
  HostAllocator allocator;
  Runs runs(allocator);
  for (int64_t run = 1; run < 40; run += 2) {
    auto first = Entering(runs, kClique, 4, run);
    auto second = Entering(runs, kClique, 6, run + 1);
    std::this_thread::sleep_for(milliseconds(5));
    std::vector<std::future<Entered>> rest;
    for (int64_t device : {5, 6}) rest.push_back(Entering(runs, kClique, device, run));
    for (int64_t device : {4, 5}) rest.push_back(Entering(runs, kClique, device, run + 1));
    for (auto& future : rest) CHECK(!future.get().error);
    CHECK(!first.get().error && !second.get().error);
  }
}

TEST(AnEarlierRunLaunchesNothingMore) {
  HostAllocator allocator;
  Runs runs(allocator);
  Clique* clique = MustEnter(runs, 1);
  LaunchId first, second;
  for (size_t rank : {0, 1}) CHECK(!Launch(runs, clique, rank, 1, &first));
  CHECK(!Launch(runs, clique, 0, 1, &second));
  CHECK(first.run == second.run && first.launch == 0 && second.launch == 1);
  MustEnter(runs, 2);
  LaunchId none;
  CHECK_TEXT(Launch(runs, clique, 2, 1, &none), kTwoRuns);
  CHECK(none.run == 0);
  CHECK_TEXT(Launch(runs, clique, 0, 1), kTwoRuns);
  CHECK_TEXT(Enter(runs, kClique, 1 + 4, 1).error, kTwoRuns);
  for (size_t rank : {0, 1, 2}) {
    // Rank 2 has launched nothing, so all of it is given up; nothing of the other.
    CHECK(Abandoned(*clique, rank, first.run) == 0);
    CHECK(!Launch(runs, clique, rank, 2, &second));
    CHECK(second.run == first.run + 1 && second.launch == 0);
    CHECK(Abandoned(*clique, rank, second.run) == -1);
  }
}

TEST(LaunchesThatAllHaveMadeAreNotGivenUp) {
  HostAllocator allocator;
  Runs runs(allocator);
  Clique* clique = MustEnter(runs, 1);
  LaunchId id;
  for (size_t rank : {0, 0, 0, 1, 1, 2}) CHECK(!Launch(runs, clique, rank, 1, &id));
  MaybeError error = runs.Launch(clique, 2, 1, false, [](const LaunchId& launched) {
    CHECK(launched.launch == 1);
    return MaybeError("the launch fails");
  });
  CHECK(error == "the launch fails");
  CHECK(Abandoned(*clique, 0, id.run) == 1);
  CHECK_TEXT(Launch(runs, clique, 1, 1), "the launch fails");
  runs.Fail(1, "again");
  CHECK(Abandoned(*clique, 1, id.run) == 1);
}

TEST(WhatGraphsLaunchIsNotGivenUp) {
  HostAllocator allocator;
  Runs runs(allocator);
  Clique* clique = MustEnter(runs, 1);
  LaunchId id;
  CHECK(!Launch(runs, clique, 0, 1, &id, true));
  CHECK(id.run == 0);
  CHECK(!Launch(runs, clique, 0, 1, &id));
  runs.Fail(1, "no");
  CHECK(Abandoned(*clique, 0, id.run) == -1);
  CHECK_TEXT(Launch(runs, clique, 1, 1, &id, true), "no");
}

TEST(OneAloneIsInNoRun) {
  HostAllocator allocator;
  Runs runs(allocator);
  Entered one = Enter(runs, {5}, 5, 1);
  CHECK(!one.error && one.number == 0);
  CHECK(!Enter(runs, {5}, 5, 2).error);
  LaunchId id;
  CHECK(!Launch(runs, one.clique, 0, 1, &id) && id.run != 0);
  CHECK(!Launch(runs, one.clique, 0, 2, &id) && !Launch(runs, one.clique, 0, 1, &id));
}

TEST(RandomRunsAgree) {
  HostAllocator allocator;
  Runs runs(allocator);
  const std::vector<Devices> cliques = {kClique, {4, 5}, {6, 5, 4}};
  constexpr int64_t kRuns = 300;
  auto clique_of = [&](int64_t run) { return cliques[static_cast<size_t>(run * 7 % 5) % 3]; };
  std::vector<std::map<int64_t, uint32_t>> numbers(3);
  std::vector<std::thread> threads;
  for (size_t index = 0; index < 3; ++index) {
    threads.emplace_back([&, index] {
      int64_t device = kClique[index];
      std::mt19937 random(static_cast<unsigned>(index));
      for (int64_t run = 1; run < kRuns; ++run) {
        const Devices devices = clique_of(run);
        auto found = std::find(devices.begin(), devices.end(), device);
        if (found == devices.end()) continue;
        // Every seventh run fails on one device, before or after it has come.
        bool fails = run % 7 == 0 && random() % 2 == 0;
        if (fails && random() % 2 == 0) runs.Fail(run, "as it is told");
        Entered entered = Enter(runs, devices, device, run);
        if (fails) runs.Fail(run, "as it is told");
        CHECK(run % 7 == 0 || !entered.error);
        if (entered.error) continue;
        numbers[index][run] = entered.number;
        size_t rank = static_cast<size_t>(found - devices.begin());
        for (unsigned launch = random() % 3; launch > 0; --launch) {
          MaybeError error = Launch(runs, entered.clique, rank, run);
          CHECK(run % 7 == 0 || !error);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& [run, number] : numbers[0]) {
    for (const auto& others : numbers) {
      auto other = others.find(run);
      CHECK(other == others.end() || other->second == number);
    }
  }
}

std::atomic<int> g_signals{0};

TEST(SignalsAreLeftToTheProcess) {
  HostAllocator allocator;
  Runs runs(allocator);
  signal(SIGUSR1, [](int) { ++g_signals; });
  hloom::cuda::FaultWatch watch(milliseconds(10), [](const std::string&) {});
  watch.Add(&MustEnter(runs, 1)->pads());
  // Now only the watch's thread could take it.
  sigset_t user;
  sigemptyset(&user);
  sigaddset(&user, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &user, nullptr);
  kill(getpid(), SIGUSR1);
  std::this_thread::sleep_for(milliseconds(100));
  CHECK(g_signals == 0);
  pthread_sigmask(SIG_UNBLOCK, &user, nullptr);
  CHECK(g_signals == 1);
}

}  // namespace

int main(int argc, char** argv) { return hloom::test::Run(argc, argv); }
