// The cache of collective memory alone, on host memory, with threads as ranks.
//
// usage: collective_memory_test CHECK...; without arguments, prints the names of the checks.

#include "cuda/collective_memory.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "host_memory.h"

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::_Exit(1);                                                       \
    }                                                                      \
  } while (false)

namespace {

using hloom::cuda::Allocator;
using hloom::cuda::CollectiveMemory;
using hloom::cuda::CollectiveMemoryCache;
using hloom::cuda::HostAllocator;
using hloom::cuda::MemoryKey;
using hloom::cuda::MemoryRequest;
using hloom::cuda::Place;
using hloom::cuda::Problem;
using std::chrono::milliseconds;

using MemoryPointer = std::shared_ptr<const CollectiveMemory>;

struct Got {
  MemoryPointer memory;
  Problem problem;
};

const MemoryKey kSignals{{4, 5, 6}, 1024, 64, "signals"};

MemoryRequest Request(const MemoryKey& key, size_t rank, int64_t run,
                      milliseconds timeout = milliseconds(30000)) {
  MemoryRequest request;
  request.key = key;
  request.rank = rank;
  request.place.ordinal = key.clique[rank];
  request.run = run;
  request.timeout = timeout;
  return request;
}

Got Ask(CollectiveMemoryCache& cache, const MemoryRequest& request,
        const CollectiveMemoryCache::Prepare& prepare = nullptr) {
  Got got;
  got.problem = cache.Acquire(request, prepare, &got.memory);
  return got;
}

// Asks for each request at the same time.
std::vector<Got> AskAll(CollectiveMemoryCache& cache, const std::vector<MemoryRequest>& requests,
                        const CollectiveMemoryCache::Prepare& prepare = nullptr) {
  std::vector<Got> got(requests.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < requests.size(); ++i) {
    threads.emplace_back([&, i] { got[i] = Ask(cache, requests[i], prepare); });
  }
  for (std::thread& thread : threads) thread.join();
  return got;
}

std::vector<MemoryRequest> Everyone(const MemoryKey& key, int64_t run) {
  std::vector<MemoryRequest> requests;
  for (size_t rank = 0; rank < key.clique.size(); ++rank) {
    requests.push_back(Request(key, rank, run));
  }
  return requests;
}

void AwaitAlive(const CollectiveMemoryCache& cache, size_t count) {
  for (int i = 0; i < 1000 && cache.alive() != count; ++i) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  CHECK(cache.alive() == count);
}

void AllRanksGetTheSameMemory() {
  HostAllocator allocator;
  CollectiveMemoryCache cache(allocator);
  std::atomic<int> prepared{0};
  std::vector<Got> got = AskAll(cache, Everyone(kSignals, 1), [&](Allocator&, const auto& memory) {
    CHECK(memory.places().size() == 3);
    ++prepared;
    return Problem();
  });
  CHECK(prepared == 1);
  for (const Got& each : got) {
    CHECK(!each.problem && each.memory == got[0].memory);
  }
  CHECK(got[0].memory->places()[2].ordinal == 6);
  const char* bytes = static_cast<const char*>(got[0].memory->of_rank(1).device);
  for (size_t i = 0; i < kSignals.device_bytes; ++i) CHECK(bytes[i] == 0);
  // From now on nobody waits for anybody.
  CHECK(Ask(cache, Request(kSignals, 1, 2, milliseconds(1))).memory == got[0].memory);
  CHECK(cache.alive() == 1 && allocator.ranks_alive == 3);
  got.clear();
  AwaitAlive(cache, 0);
  CHECK(allocator.ranks_alive == 0);
}

void KeysAreApart() {
  HostAllocator allocator;
  CollectiveMemoryCache cache(allocator);
  std::vector<Got> kept;
  for (const MemoryKey& key :
       {kSignals, MemoryKey{{4, 5, 6}, 1024, 64, "scratch"},
        MemoryKey{{4, 5, 6}, 2048, 64, "signals"}, MemoryKey{{5, 4, 6}, 1024, 64, "signals"}}) {
    for (Got& got : AskAll(cache, Everyone(key, 1))) kept.push_back(std::move(got));
  }
  CHECK(cache.alive() == 4);
}

void RanksThatDisagreeGetBothKeys() {
  HostAllocator allocator;
  CollectiveMemoryCache cache(allocator);
  std::vector<MemoryRequest> requests = Everyone(kSignals, 1);
  requests[2].key.use = "scratch";
  requests[2].key.device_bytes = 77;
  for (const Got& got : AskAll(cache, requests)) {
    CHECK(got.memory == nullptr);
    CHECK(got.problem ==
          "the ranks do not agree on what they share: rank 0 wants 1024 + 64 bytes for signals on "
          "devices 4, 5, 6, rank 2 wants 77 + 64 bytes for scratch on devices 4, 5, 6");
  }
  CHECK(allocator.ranks_alive == 0);
  for (const Got& got : AskAll(cache, Everyone(kSignals, 2))) CHECK(!got.problem);
}

void WhoDoesNotComeIsNamed() {
  HostAllocator allocator;
  CollectiveMemoryCache cache(allocator);
  std::vector<MemoryRequest> requests = Everyone(kSignals, 1);
  for (MemoryRequest& request : requests) request.timeout = milliseconds(200);
  requests.erase(requests.begin());
  for (const Got& got : AskAll(cache, requests)) {
    CHECK(
        got.problem ==
        "ranks 0 did not come within 200 ms to share 1024 + 64 bytes for signals on devices 4, 5, "
        "6");
  }
  for (const Got& got : AskAll(cache, Everyone(kSignals, 1))) CHECK(!got.problem);
}

void AskingTwiceIsAnError() {
  HostAllocator allocator;
  CollectiveMemoryCache cache(allocator);
  auto first = std::async(std::launch::async, [&] { return Ask(cache, Request(kSignals, 0, 1)); });
  std::this_thread::sleep_for(milliseconds(100));
  CHECK(Ask(cache, Request(kSignals, 0, 1)).problem->find("rank 0 asks twice at once") == 0);
  CHECK(!AskAll(cache, {Request(kSignals, 1, 1), Request(kSignals, 2, 1)})[0].problem);
  CHECK(!first.get().problem);
}

// Rank 0 of run 2 waits; then run 1 makes the memory, and the others of run 2 find it there.
void MemoryOfAnotherRunReleasesWhoWaits() {
  HostAllocator allocator;
  CollectiveMemoryCache cache(allocator);
  auto early = std::async(std::launch::async, [&] { return Ask(cache, Request(kSignals, 0, 2)); });
  std::this_thread::sleep_for(milliseconds(100));
  std::vector<Got> first = AskAll(cache, Everyone(kSignals, 1));
  CHECK(early.wait_for(milliseconds(5000)) == std::future_status::ready);
  CHECK(early.get().memory == first[0].memory);
  CHECK(Ask(cache, Request(kSignals, 1, 2, milliseconds(1))).memory == first[0].memory);
}

void FailuresAreEveryonesAndLeaveNothing() {
  HostAllocator allocator;
  CollectiveMemoryCache cache(allocator);
  allocator.fails_on = 6;
  for (const Got& got : AskAll(cache, Everyone(kSignals, 1))) {
    CHECK(got.problem->find("device 6 is full, while sharing 1024 + 64 bytes for signals") == 0);
  }
  allocator.fails_on = -1;
  auto refuse = [](Allocator&, const CollectiveMemory&) { return Problem("not today"); };
  for (const Got& got : AskAll(cache, Everyone(kSignals, 2), refuse)) {
    CHECK(got.problem->find("not today, while sharing ") == 0);
  }
  allocator.connect_problem = "no way";
  for (const Got& got : AskAll(cache, Everyone(kSignals, 3))) {
    CHECK(got.problem->find("no way, while sharing ") == 0);
  }
  CHECK(cache.alive() == 0 && allocator.ranks_alive == 0);
}

void MemoryIsFreedWhenItsDevicesAreIdle() {
  HostAllocator allocator;
  std::promise<void> idle;
  std::shared_future<void> until_idle(idle.get_future());
  allocator.synchronize = [until_idle](const Place& place) {
    if (place.ordinal == 5) until_idle.wait();
    return Problem();
  };
  CollectiveMemoryCache cache(allocator);
  AskAll(cache, Everyone(kSignals, 1)).clear();
  std::this_thread::sleep_for(milliseconds(100));
  CHECK(cache.alive() == 1 && allocator.ranks_alive == 3);
  // While the device is waited for, others get memory, of the same key as well.
  std::vector<Got> next = AskAll(cache, Everyone(kSignals, 2));
  CHECK(!next[0].problem && cache.alive() == 2);
  idle.set_value();
  AwaitAlive(cache, 1);
  CHECK(allocator.ranks_alive == 3);
}

void MemoryOfADeadDeviceIsLeftAlone() {
  HostAllocator allocator;
  allocator.synchronize = [](const Place& place) {
    return place.ordinal == 4 ? Problem("dead") : std::nullopt;
  };
  {
    CollectiveMemoryCache cache(allocator);
    AskAll(cache, Everyone(kSignals, 1)).clear();
  }
  CHECK(allocator.ranks_alive == 3);
}

// What the devices of a process hold together while an executable lives: the first that has got
// the memory has it for all.
struct Executable {
  std::mutex mutex;
  MemoryPointer memory;
  size_t users = 0;

  MemoryPointer Get() {
    std::lock_guard<std::mutex> lock(mutex);
    return memory;
  }
  MemoryPointer Keep(MemoryPointer got) {
    std::lock_guard<std::mutex> lock(mutex);
    if (memory == nullptr) memory = std::move(got);
    return memory;
  }
  void Leave() {
    std::lock_guard<std::mutex> lock(mutex);
    if (--users == 0) memory = nullptr;
  }
};

void RandomUseEndsWithNothing() {
  HostAllocator allocator;
  CollectiveMemoryCache cache(allocator);
  const std::vector<MemoryKey> keys = {
      kSignals, {{4, 5, 6}, 256, 64, "scratch"}, {{4, 5}, 1024, 64, "signals"}};
  std::vector<Executable> executables(300);
  auto key_of = [&](size_t run) { return keys[run * 7 % 5 % keys.size()]; };
  for (size_t run = 0; run < executables.size(); ++run) {
    executables[run].users = key_of(run).clique.size();
  }
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      std::mt19937 random(static_cast<unsigned>(rank));
      std::vector<Executable*> held;
      for (size_t run = 0; run < executables.size(); ++run) {
        const MemoryKey key = key_of(run);
        if (rank < key.clique.size()) {
          Executable& executable = executables[run];
          MemoryPointer memory = executable.Get();
          if (memory == nullptr) {
            Got got = Ask(cache, Request(key, rank, static_cast<int64_t>(run)));
            CHECK(!got.problem);
            memory = executable.Keep(std::move(got.memory));
          }
          CHECK(memory->key().use == key.use);
          held.push_back(&executable);
        }
        while (!held.empty() && random() % 2 == 0) {
          held.front()->Leave();
          held.erase(held.begin());
        }
      }
      for (Executable* executable : held) executable->Leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
  AwaitAlive(cache, 0);
  CHECK(allocator.ranks_alive == 0);
}

#define NAMED(check) {#check, check}

const std::map<std::string, void (*)()> kChecks = {
    NAMED(AllRanksGetTheSameMemory),
    NAMED(AskingTwiceIsAnError),
    NAMED(FailuresAreEveryonesAndLeaveNothing),
    NAMED(KeysAreApart),
    NAMED(MemoryIsFreedWhenItsDevicesAreIdle),
    NAMED(MemoryOfADeadDeviceIsLeftAlone),
    NAMED(MemoryOfAnotherRunReleasesWhoWaits),
    NAMED(RandomUseEndsWithNothing),
    NAMED(RanksThatDisagreeGetBothKeys),
    NAMED(WhoDoesNotComeIsNamed),
};

}  // namespace

int main(int argc, char** argv) {
  if (argc == 1) {
    for (const auto& [name, check] : kChecks) std::puts(name.c_str());
  }
  for (int i = 1; i < argc; ++i) kChecks.at(argv[i])();
  return 0;
}
