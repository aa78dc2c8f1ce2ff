// The rendezvous: ranks are released together.
//
// usage: rendezvous_test TEST...; without arguments, prints the names of the tests.

#include "tests/rendezvous_test.h"

#include <atomic>
#include <functional>
#include <random>
#include <thread>

namespace hloom::test {
namespace {

TEST(NobodyIsReleasedBeforeTheLast) {
  Rendezvous rendezvous;
  auto first = Arrive(rendezvous, At(1, 7, Group(3), 0));
  auto second = Arrive(rendezvous, At(1, 7, Group(3), 2));
  CHECK(!IsReady(first) && !IsReady(second) && rendezvous.pending() == 1);
  auto last = Arrive(rendezvous, At(1, 7, Group(3), 1));
  CHECK(IsReady(first) && IsReady(second) && IsReady(last));
  CHECK(!first.get() && !second.get() && !last.get() && rendezvous.pending() == 0);
}

TEST(OneAloneMeetsItself) {
  Rendezvous rendezvous;
  CHECK(!Arrive(rendezvous, At(1, 7, Group(1), 0)).get());
}

TEST(RunsChannelsAndGroupsAreApart) {
  Rendezvous rendezvous;
  auto base = Arrive(rendezvous, At(1, 7, Group(2), 0));
  auto other_run = Arrive(rendezvous, At(2, 7, Group(2), 1));
  auto other_channel = Arrive(rendezvous, At(1, 8, Group(2), 1));
  auto other_group = Arrive(rendezvous, At(1, 7, Group(2, 10), 1));
  CHECK(rendezvous.pending() == 4);
  CHECK(!IsReady(base) && !IsReady(other_run) && !IsReady(other_channel) && !IsReady(other_group));
  CHECK(!Arrive(rendezvous, At(1, 7, Group(2), 1)).get() && !base.get());
  CHECK(!Arrive(rendezvous, At(2, 7, Group(2), 0)).get() && !other_run.get());
  CHECK(!Arrive(rendezvous, At(1, 8, Group(2), 0)).get() && !other_channel.get());
  CHECK(!Arrive(rendezvous, At(1, 7, Group(2, 10), 0)).get() && !other_group.get());
}

// A rank that is released first comes again while the others have not been released yet.
TEST(AFastRankComesAgainWhileOthersHaveNotLeft) {
  Rendezvous rendezvous;
  std::vector<std::function<void()>> launched;
  const auto later = [&](std::function<void()> release) { launched.push_back(std::move(release)); };
  std::future<Outcome> again;
  std::atomic<int> released{0};
  rendezvous.Arrive(
      At(1, 7, Group(2), 0), nullptr, nullptr, [&](const Outcome&) { ++released; }, later);
  rendezvous.Arrive(
      At(1, 7, Group(2), 1), nullptr, nullptr,
      [&](const Outcome& outcome) {
        CHECK(!outcome);
        ++released;
        again = Arrive(rendezvous, At(1, 7, Group(2), 1));
      },
      later);
  CHECK(released == 1 && launched.size() == 1 && !IsReady(again) && rendezvous.pending() == 1);
  launched[0]();
  CHECK(released == 2 && !IsReady(again));
  CHECK(!Arrive(rendezvous, At(1, 7, Group(2), 0)).get() && !again.get());
}

TEST(TheLastSeesEveryPayloadBeforeAnyIsReleased) {
  Rendezvous rendezvous;
  std::atomic<int> released{0};
  int acted = 0;
  const auto act = [&](const std::vector<Rendezvous::Payload>& payloads) -> Outcome {
    CHECK(released == 0 && payloads.size() == 3);
    for (int i = 0; i < 3; ++i) CHECK(*static_cast<const int*>(payloads[i].get()) == 10 + i);
    ++acted;
    return std::nullopt;
  };
  const auto arrive = [&](int position) {
    rendezvous.Arrive(
        At(1, 7, Group(3), static_cast<size_t>(position)), std::make_shared<int>(10 + position),
        act,
        [&](const Outcome& outcome) {
          CHECK(!outcome && acted == 1);
          ++released;
        },
        nullptr);
  };
  arrive(2);
  arrive(0);
  CHECK(acted == 0);
  arrive(1);
  CHECK(acted == 1 && released == 3);
}

TEST(ALaunchThatThrowsStillReleases) {
  Rendezvous rendezvous;
  auto first = Arrive(rendezvous, At(1, 7, Group(2), 0));
  bool released = false;
  rendezvous.Arrive(
      At(1, 7, Group(2), 1), nullptr, nullptr, [&](const Outcome&) { released = true; },
      [](const std::function<void()>&) { throw std::bad_alloc(); });
  CHECK(released && IsReady(first) && !first.get());
}

TEST(BlockingRanksMeetInALoop) {
  Rendezvous rendezvous;
  constexpr size_t kRanks = 8;
  constexpr int kRounds = 500;
  std::atomic<int> counted{0};
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      for (int round = 0; round < kRounds; ++round) {
        ++counted;
        CHECK(!rendezvous.ArriveAndWait(At(1, 7, Group(kRanks), rank), nullptr, nullptr));
        // Nobody counts on before all have passed the second one.
        CHECK(counted == static_cast<int>(kRanks) * (round + 1));
        CHECK(!rendezvous.ArriveAndWait(At(1, 8, Group(kRanks), rank), nullptr, nullptr));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(rendezvous.pending() == 0);
}

// Ranks come in random order, some far too late and some never; everyone gets an answer, and
// those who are released have all met.
TEST(RandomRunsAlwaysEnd) {
  Rendezvous rendezvous;
  constexpr size_t kRanks = 5;
  for (int64_t run = 0; run < 60; ++run) {
    std::vector<std::thread> threads;
    std::vector<int> met(kRanks, 0);
    for (size_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        std::mt19937 random(static_cast<unsigned>(run * 100 + static_cast<int64_t>(rank)));
        for (int64_t channel = 0; channel < 6; ++channel) {
          if (random() % 40 == 0) std::this_thread::sleep_for(milliseconds(15));
          if (random() % 60 == 0) return;  // Never comes again.
          if (random() % 60 == 0) {
            return rendezvous.Abandon(
                run, {static_cast<int64_t>(rank), static_cast<int64_t>(rank) + 100}, "random");
          }
          if (rendezvous.ArriveAndWait(At(run, channel, Group(kRanks), rank, milliseconds(10)),
                                       nullptr, nullptr)) {
            return;
          }
          ++met[rank];
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const int each : met) CHECK(each == met.front());
    CHECK(rendezvous.pending() == 0);
  }
}

TEST(RanksReadWell) {
  CHECK(RanksText({}).empty());
  CHECK(RanksText({5}) == "5");
  CHECK(RanksText({2, 1, 0, 5, 7, 8}) == "0-2, 5, 7, 8");
}

}  // namespace
}  // namespace hloom::test

int main(int argc, char** argv) { return hloom::test::Run(argc, argv); }
