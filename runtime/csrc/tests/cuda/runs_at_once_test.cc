// Concurrent runs, and runs that fail on one device, on a fake driver: a failed run is an error on
// the host, the others give correct results, and no kernel stops its device.
//
// usage: runs_at_once_test LIBRARY TEST...

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/cuda/custom_call.h"
#include "tests/cuda/fake/fake_driver.h"
#include "tests/cuda/fake/fake_xla.h"

namespace handlers_test {
namespace {

constexpr char kTwoRuns[] = "two runs on the same devices were started at once";

Attributes Ragged() { return AttributesOf("hloom_ragged_all_to_all"); }

Attributes OtherBarrier() {
  Attributes attributes = AttributesOf("hloom_barrier");
  attributes["site"] = std::string("entry of @other");
  attributes["channel"] = int64_t{4};
  return attributes;
}

// The exchange of a run on all devices; its rows are found nowhere else.
struct RunOfExchange {
  explicit RunOfExchange(int64_t run) : run(run) {
    for (int device : kAll) {
      exchanges.emplace_back(device);
      for (int peer : kAll) exchanges[device].operand[peer] = Row(device, peer);
    }
  }

  int64_t Row(int from, int to) const { return run * 100 + from * 10 + to; }

  std::string Execute(CustomCall& ragged, int device) {
    return exchanges[device].Execute(ragged, device, run);
  }

  void CheckRight() const {
    for (int device : kAll) {
      for (int peer : kAll) CHECK(exchanges[device].output[peer] == Row(peer, device));
    }
  }

  void CheckUntouched() const {
    for (const Exchange& exchange : exchanges) {
      CHECK(exchange.output == std::vector<int64_t>(kDevices));
    }
  }

  int64_t run;
  std::vector<Exchange> exchanges;
};

void InitializeAll(CustomCall& call, int64_t run) {
  CheckFine(OnDevices(kAll, [&](int device) { return call.Initialize(device, run); }));
}

void AwaitAll() {
  for (int device : kAll) Fake().wait(StreamOf(device));
}

// A run after others: nothing is left of them.
void CheckNextRun(CustomCall& ragged, int64_t run) {
  RunOfExchange next(run);
  InitializeAll(ragged, run);
  CheckFine(OnDevices(kAll, [&](int device) { return next.Execute(ragged, device); }));
  AwaitAll();
  next.CheckRight();
}

TEST(AnEmptySliceMayLieAnywhere) {
  CustomCall ragged("ragged_all_to_all", Ragged());
  RunOfExchange run(1);
  Exchange& from = run.exchanges[1];
  from.send_sizes[2] = 0;
  from.output_offsets[2] = 99;
  from.input_offsets[2] = -7;
  InitializeAll(ragged, 1);
  CheckFine(OnDevices(kAll, [&](int device) { return run.Execute(ragged, device); }));
  AwaitAll();
  CHECK(run.exchanges[2].output[1] == 0);
  run.exchanges[2].output[1] = run.Row(1, 2);
  run.CheckRight();
  CheckNextRun(ragged, 2);
}

// Each device would launch both, in an order of its own.
void SwappedOrder(const Attributes& first, const Attributes& second) {
  CustomCall one("barrier", first), two("barrier", second);
  CustomCall ragged("ragged_all_to_all", Ragged());
  InitializeAll(one, 1);
  InitializeAll(two, 2);
  for (int device : kAll) {
    if (device < 2) CHECK_TEXT(ExecuteBarrier(one, device, 1), kTwoRuns);
    CHECK(ExecuteBarrier(two, device, 2).empty());
    if (device >= 2) CHECK_TEXT(ExecuteBarrier(one, device, 1), kTwoRuns);
  }
  AwaitAll();
  CheckNextRun(ragged, 3);
}

TEST(TwoProgramsInSwappedOrder) { SwappedOrder(AttributesOf("hloom_barrier"), OtherBarrier()); }

TEST(EqualProgramsInSwappedOrder) {
  SwappedOrder(AttributesOf("hloom_barrier"), AttributesOf("hloom_barrier"));
}

TEST(TwoRunsOfOneProgramInSwappedOrder) {
  CustomCall ragged("ragged_all_to_all", Ragged());
  RunOfExchange one(1), two(2);
  InitializeAll(ragged, 1);
  InitializeAll(ragged, 2);
  for (int device : kAll) {
    if (device < 2) CHECK_TEXT(one.Execute(ragged, device), kTwoRuns);
    CHECK(two.Execute(ragged, device).empty());
    if (device >= 2) CHECK_TEXT(one.Execute(ragged, device), kTwoRuns);
  }
  AwaitAll();
  one.CheckUntouched();
  two.CheckRight();
  CheckNextRun(ragged, 3);
}

// Device 0 has launched run 1 when run 2 begins; the others have not, and do not any more.
TEST(ARunThatIsHalfLaunchedIsLeft) {
  CustomCall barrier("barrier", AttributesOf("hloom_barrier"));
  CustomCall ragged("ragged_all_to_all", Ragged());
  RunOfExchange one(1), two(2);
  InitializeAll(barrier, 1);
  InitializeAll(ragged, 1);
  for (int device : kAll) CHECK(ExecuteBarrier(barrier, device, 1).empty());
  for (int device : {0, 3}) CHECK(one.Execute(ragged, device).empty());
  InitializeAll(ragged, 2);
  CHECK(two.Execute(ragged, 0).empty());
  CHECK_TEXT(one.Execute(ragged, 1), kTwoRuns);
  for (int device : {1, 2, 3}) CHECK(two.Execute(ragged, device).empty());
  CHECK_TEXT(one.Execute(ragged, 2), kTwoRuns);
  AwaitAll();
  one.CheckUntouched();
  two.CheckRight();
  CheckNextRun(ragged, 3);
}

// As XLA has it: one thread for each device, which takes one run after the other.
TEST(RunsQueuedInDifferentOrders) {
  CustomCall ragged("ragged_all_to_all", Ragged());
  RunOfExchange one(1), two(2);
  std::mutex mutex;
  std::map<int64_t, std::vector<std::string>> errors;
  OnDevices(kAll, [&](int device) {
    std::vector<RunOfExchange*> queue = {&one, &two};
    if (device >= 2) std::swap(queue[0], queue[1]);
    for (RunOfExchange* each : queue) {
      std::string error = ragged.Initialize(device, each->run);
      if (error.empty()) error = each->Execute(ragged, device);
      std::lock_guard<std::mutex> lock(mutex);
      errors[each->run].push_back(error);
    }
    return std::string();
  });
  AwaitAll();
  CheckFine(errors[1]);
  for (const std::string& error : errors[2]) {
    CHECK_TEXT(error, kTwoRuns);
    CHECK_TEXT(error, "start programs that share devices from one thread, or hold a lock");
  }
  one.CheckRight();
  two.CheckUntouched();
  CheckNextRun(ragged, 3);
}

// Two threads for each device, as fast as they can.
TEST(RacingThreads) {
  CustomCall ragged("ragged_all_to_all", Ragged());
  for (int64_t round = 0; round < 60; ++round) {
    RunOfExchange first(2 * round + 1), second(2 * round + 2);
    std::map<RunOfExchange*, std::string> errors = {{&first, ""}, {&second, ""}};
    std::vector<std::thread> threads;
    for (auto& entry : errors) {
      threads.emplace_back([&ragged, &entry] {
        RunOfExchange& run = *entry.first;
        for (const std::string& error : OnDevices(kAll, [&](int device) {
               std::string error = ragged.Initialize(device, run.run);
               return error.empty() ? run.Execute(ragged, device) : error;
             })) {
          if (!error.empty()) CHECK_TEXT(error, kTwoRuns);
          entry.second += error;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    AwaitAll();
    CHECK(errors[&first].empty() || errors[&second].empty());
    for (const auto& [run, error] : errors) {
      if (error.empty()) run->CheckRight();
    }
  }
  CheckNextRun(ragged, 1000);
}

// The host is ahead of the devices: nobody waits for one.
TEST(RunsInFlightFollowEachOther) {
  CustomCall ragged("ragged_all_to_all", Ragged());
  std::vector<std::unique_ptr<RunOfExchange>> runs;
  Fake().sleep(StreamOf(3), 500);
  for (int64_t run = 1; run <= 20; ++run) {
    runs.push_back(std::make_unique<RunOfExchange>(run));
    InitializeAll(ragged, run);
    for (int device : kAll) CHECK(runs.back()->Execute(ragged, device).empty());
  }
  runs.front()->CheckUntouched();
  AwaitAll();
  for (const auto& run : runs) run->CheckRight();
}

// A failed run between runs that are in flight does nothing to them.
TEST(ARunThatFailsBetweenOthersIsLeft) {
  CustomCall ragged("ragged_all_to_all", Ragged());
  RunOfExchange before(1), failed(2), after(3);
  for (int device : {1, 3}) Fake().sleep(StreamOf(device), 200 * device);
  for (RunOfExchange* run : {&before, &failed, &after}) {
    InitializeAll(ragged, run->run);
    if (run == &failed) run->exchanges[2].send_sizes.pop_back();
    for (int device : kAll) {
      std::string error = run->Execute(ragged, device);
      if (run == &failed && device == 2) {
        CHECK_TEXT(error, "offsets and sizes must have one type");
      }
      if (run == &failed && device == 3) {
        CHECK_TEXT(error, "on device 3: another device has failed in this run: ");
      }
      CHECK(error.empty() != (run == &failed && device >= 2));
    }
  }
  AwaitAll();
  before.CheckRight();
  failed.CheckUntouched();
  after.CheckRight();
  CheckNextRun(ragged, 4);
}

TEST(ADeviceThatFailsIsEveryonesErrorAtInitialize) {
  CustomCall barrier("barrier", AttributesOf("hloom_barrier"));
  CustomCall wrong("barrier", AttributesOf("hloom_nothing"));
  std::vector<std::string> errors = OnDevices(
      kAll, [&](int device) { return (device == 2 ? wrong : barrier).Initialize(device, 1); });
  CHECK_TEXT(errors[2], "cuLibraryGetKernel");
  for (int device : {0, 1, 3}) {
    CHECK_TEXT(errors[device], "another device has failed in this run: hloom.barrier");
  }
  RunBarrier(barrier, 2);
}

// While one thread captures, another may drop an executable.
TEST(NothingIsCalledWhenAnExecutableGoes) {
  auto barrier = std::make_unique<CustomCall>("barrier", AttributesOf("hloom_barrier"));
  RunBarrier(*barrier, 1);
  size_t allocations = Fake().allocations();
  Fake().begin_capture(StreamOf(3));
  Fake().take_calls();
  barrier.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(std::string(Fake().take_calls()).empty());
  Fake().end_capture(StreamOf(3));
  for (int64_t run = 2; run < 20; ++run) {
    CustomCall next("barrier", AttributesOf("hloom_barrier"));
    RunBarrier(next, run);
  }
  CHECK(Fake().allocations() == allocations);
}

// What a graph launches belongs to the run in which it is launched.
TEST(GraphsFollowTheRun) {
  CustomCall ragged("ragged_all_to_all", Ragged());
  RunOfExchange recorded(1);
  InitializeAll(ragged, 1);
  std::vector<void*> graphs;
  for (int device : kAll) {
    Fake().begin_capture(StreamOf(device));
    CHECK(recorded.Execute(ragged, device).empty());
    graphs.push_back(Fake().end_capture(StreamOf(device)));
  }
  for (int64_t run = 2; run < 100; ++run) {
    RunOfExchange direct(run);
    for (Exchange& exchange : recorded.exchanges) exchange.output.assign(kDevices, 0);
    InitializeAll(ragged, run);
    for (int device : kAll) {
      // The others are ahead of it.
      if (device == run % kDevices) Fake().sleep(StreamOf(device), 2);
      Fake().replay(graphs[device], StreamOf(device));
      CHECK(direct.Execute(ragged, device).empty());
    }
    AwaitAll();
    recorded.CheckRight();
    direct.CheckRight();
  }
}

}  // namespace
}  // namespace handlers_test

int main(int argc, char** argv) { return handlers_test::Run(argc, argv); }
