// The rendezvous alone, with threads as ranks. Each argument names a check; the first that fails
// ends the program with a line that says where.

#include "rendezvous.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using hloom::FailureKind;
using hloom::Meeting;
using hloom::Member;
using hloom::Outcome;
using hloom::Rendezvous;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::_Exit(1);                                                       \
    }                                                                      \
  } while (false)

void CheckSays(int line, const Outcome& outcome, FailureKind kind, const std::string& part) {
  if (outcome.has_value() && outcome->kind == kind &&
      outcome->message.find(part) != std::string::npos) {
    return;
  }
  std::fprintf(stderr, "%s:%d: \"%s\" does not say \"%s\"\n", __FILE__, line,
               outcome.has_value() ? outcome->message.c_str() : "all met", part.c_str());
  std::_Exit(1);
}

#define CHECK_SAYS(outcome, kind, part) CheckSays(__LINE__, outcome, kind, part)

constexpr milliseconds kLong{60000};
constexpr milliseconds kShort{50};

// Ranks are partitions, devices their ordinals: different numbers, so that a mix-up shows.
std::vector<Member> Group(size_t size, int64_t first = 0) {
  std::vector<Member> members;
  for (size_t i = 0; i < size; ++i) {
    const int64_t rank = first + static_cast<int64_t>(i);
    members.push_back({rank, rank + 100});
  }
  return members;
}

Meeting At(int64_t run, int64_t channel, std::vector<Member> members, size_t position,
           milliseconds timeout = kLong) {
  Meeting meeting;
  meeting.run = run;
  meeting.channel = channel;
  meeting.members = std::move(members);
  meeting.position = position;
  meeting.timeout = timeout;
  meeting.what = "hloom.barrier";
  meeting.site = "the site";
  return meeting;
}

// An arrival whose outcome can be asked for.
std::future<Outcome> Arrive(Rendezvous& rendezvous, const Meeting& meeting,
                            const Rendezvous::Action& action = nullptr) {
  auto promise = std::make_shared<std::promise<Outcome>>();
  std::future<Outcome> outcome = promise->get_future();
  rendezvous.Arrive(
      meeting, nullptr, action, [promise](const Outcome& result) { promise->set_value(result); },
      nullptr);
  return outcome;
}

bool IsReady(const std::future<Outcome>& outcome) {
  return outcome.wait_for(milliseconds(0)) == std::future_status::ready;
}

void NobodyIsReleasedBeforeTheLast() {
  Rendezvous rendezvous;
  auto first = Arrive(rendezvous, At(1, 7, Group(3), 0));
  auto second = Arrive(rendezvous, At(1, 7, Group(3), 2));
  CHECK(!IsReady(first) && !IsReady(second) && rendezvous.pending() == 1);
  auto last = Arrive(rendezvous, At(1, 7, Group(3), 1));
  CHECK(IsReady(first) && IsReady(second) && IsReady(last));
  CHECK(!first.get() && !second.get() && !last.get() && rendezvous.pending() == 0);
}

void OneAloneMeetsItself() {
  Rendezvous rendezvous;
  CHECK(!Arrive(rendezvous, At(1, 7, Group(1), 0)).get());
}

void RunsChannelsAndGroupsAreApart() {
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
void AFastRankComesAgainWhileOthersHaveNotLeft() {
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

void TheLastSeesEveryPayloadBeforeAnyIsReleased() {
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

void AFailedActionFailsEveryone() {
  Rendezvous rendezvous;
  const auto fails = [](const std::vector<Rendezvous::Payload>&) -> Outcome {
    return hloom::Failure{FailureKind::kAction, "slice 3 of rank 1 is out of bounds"};
  };
  auto first = Arrive(rendezvous, At(1, 7, Group(2), 0), fails);
  const Outcome second = Arrive(rendezvous, At(1, 7, Group(2), 1), fails).get();
  CHECK_SAYS(second, FailureKind::kAction, "slice 3 of rank 1");
  CHECK(first.get()->message == second->message);
}

void AnActionThatThrowsFailsEveryone() {
  Rendezvous rendezvous;
  const auto throws = [](const std::vector<Rendezvous::Payload>&) -> Outcome {
    throw std::runtime_error("no memory for 3 bytes");
  };
  auto first = Arrive(rendezvous, At(1, 7, Group(2), 0), throws);
  CHECK_SAYS(Arrive(rendezvous, At(1, 7, Group(2), 1), throws).get(), FailureKind::kAction,
             "the site: no memory for 3 bytes");
  CHECK(first.get().has_value());
}

void ALaunchThatThrowsStillReleases() {
  Rendezvous rendezvous;
  auto first = Arrive(rendezvous, At(1, 7, Group(2), 0));
  bool released = false;
  rendezvous.Arrive(
      At(1, 7, Group(2), 1), nullptr, nullptr, [&](const Outcome&) { released = true; },
      [](const std::function<void()>&) { throw std::bad_alloc(); });
  CHECK(released && IsReady(first) && !first.get());
}

void ATimeoutNamesWhoIsMissingAndWhoWaited() {
  Rendezvous rendezvous;
  const auto start = Clock::now();
  std::vector<std::future<Outcome>> outcomes;
  for (const size_t position : {0, 1, 2, 4, 6}) {
    outcomes.push_back(Arrive(rendezvous, At(1, 7, Group(8), position, kShort)));
  }
  for (auto& outcome : outcomes) {
    const Outcome failed = outcome.get();
    CHECK_SAYS(failed, FailureKind::kTimeout,
               "hloom.barrier at the site: ranks 3, 5, 7 did not come within 0.");
    CHECK_SAYS(failed, FailureKind::kTimeout, "; ranks 0-2, 4, 6 waited (channel 7, run 1)");
  }
  CHECK(Clock::now() - start >= kShort);
  CHECK(Clock::now() - start < milliseconds(10000));
  CHECK(rendezvous.pending() == 0);
}

void ADeadlineEarlierThanTheOneBeforeIsKept() {
  Rendezvous rendezvous;
  auto patient = Arrive(rendezvous, At(1, 7, Group(2), 0, kLong));
  std::this_thread::sleep_for(kShort);  // The watcher sleeps for a minute now.
  auto hasty = Arrive(rendezvous, At(2, 7, Group(2), 0, kShort));
  CHECK_SAYS(hasty.get(), FailureKind::kTimeout, "rank 1 did not come");
  CHECK(!IsReady(patient) && rendezvous.pending() == 1);
}

// Stops this process for longer than the timeout, while one rank waits and the other is to come.
void TimeInWhichTheProcessIsStoppedDoesNotCount() {
  int begin[2];
  CHECK(pipe(begin) == 0);
  const pid_t self = getpid();
  const pid_t helper = fork();
  CHECK(helper >= 0);
  if (helper == 0) {
    char byte;
    const bool has_begun = read(begin[0], &byte, 1) == 1;
    if (has_begun) kill(self, SIGSTOP);
    sleep(4);
    kill(self, SIGCONT);
    _exit(has_begun ? 0 : 1);
  }
  Rendezvous rendezvous;
  auto first = Arrive(rendezvous, At(1, 7, Group(2), 0, milliseconds(2000)));
  CHECK(write(begin[1], "", 1) == 1);
  int status = 1;
  CHECK(waitpid(helper, &status, 0) == helper && status == 0);
  std::this_thread::sleep_for(kShort);  // The watcher has run again.
  CHECK(!IsReady(first));
  CHECK(!Arrive(rendezvous, At(1, 7, Group(2), 1, milliseconds(2000))).get() && !first.get());
  // The next one has its time, and no more.
  CHECK_SAYS(Arrive(rendezvous, At(2, 7, Group(2), 0, milliseconds(300))).get(),
             FailureKind::kTimeout, "rank 1 did not come within 0.");
}

void ATimeoutTooLongForTheClockIsKept() {
  Rendezvous rendezvous;
  auto first = Arrive(rendezvous, At(1, 7, Group(2), 0, milliseconds::max()));
  std::this_thread::sleep_for(kShort);
  CHECK(!IsReady(first));
  CHECK(!Arrive(rendezvous, At(1, 7, Group(2), 1, milliseconds::max())).get() && !first.get());
}

void ALatecomerFailsAtOnce() {
  Rendezvous rendezvous;
  auto first = Arrive(rendezvous, At(1, 7, Group(2), 0, kShort));
  CHECK(first.get().has_value());
  auto late = Arrive(rendezvous, At(1, 7, Group(2), 1, kLong));
  CHECK(IsReady(late));
  CHECK_SAYS(late.get(), FailureKind::kPeer, "rank 0 failed earlier in this run: ");
  // Neither does it wait elsewhere in this run, nor others for it.
  CHECK_SAYS(Arrive(rendezvous, At(1, 8, Group(2), 1, kLong)).get(), FailureKind::kPeer,
             "failed earlier in this run: hloom.barrier at the site: rank 1 did not come");
  CHECK(rendezvous.pending() == 0);
  // The next run is another matter.
  auto again = Arrive(rendezvous, At(2, 7, Group(2), 0));
  CHECK(!Arrive(rendezvous, At(2, 7, Group(2), 1)).get() && !again.get());
}

void AFailureReachesWhoWaitsForTheFailed() {
  Rendezvous rendezvous;
  // Rank 1 waits for 2, 2 waits for 3; 0 and 1 are apart from them, but 3 fails.
  auto one = Arrive(rendezvous, At(1, 7, Group(2, 1), 0));
  auto two = Arrive(rendezvous, At(1, 8, Group(2, 2), 0));
  auto apart = Arrive(rendezvous, At(1, 9, Group(2, 5), 0));
  auto other_run = Arrive(rendezvous, At(2, 8, Group(2, 2), 0));
  rendezvous.Abandon(1, {3, 103}, "rank 3 broke");
  CHECK_SAYS(two.get(), FailureKind::kPeer, "rank 3 failed in this run: rank 3 broke");
  CHECK_SAYS(one.get(), FailureKind::kPeer, "rank 2 failed in this run: ");
  CHECK(!IsReady(apart) && !IsReady(other_run) && rendezvous.pending() == 2);
}

void EveryWayOfFailingReachesWhoWaits() {
  // By a timeout: rank 1 fails, for which rank 2 waits elsewhere.
  Rendezvous rendezvous;
  auto after_timeout = Arrive(rendezvous, At(1, 8, Group(2, 1), 1));
  CHECK(Arrive(rendezvous, At(1, 7, Group(2), 1, kShort)).get().has_value());
  CHECK_SAYS(after_timeout.get(), FailureKind::kPeer, "rank 1 failed in this run: ");

  // By being refused.
  auto after_refusal = Arrive(rendezvous, At(2, 8, Group(2, 1), 1));
  rendezvous.Abandon(2, {0, 100}, "rank 0 broke");
  CHECK(!IsReady(after_refusal));
  CHECK(Arrive(rendezvous, At(2, 7, Group(2), 1)).get().has_value());
  CHECK(IsReady(after_refusal));
  CHECK_SAYS(after_refusal.get(), FailureKind::kPeer, "rank 0 broke");

  // By an action that fails.
  const auto fails = [](const std::vector<Rendezvous::Payload>&) -> Outcome {
    return hloom::Failure{FailureKind::kAction, "the action broke"};
  };
  auto after_action = Arrive(rendezvous, At(3, 8, Group(2, 1), 1));
  auto first = Arrive(rendezvous, At(3, 7, Group(2), 0), fails);
  CHECK(Arrive(rendezvous, At(3, 7, Group(2), 1), fails).get().has_value());
  CHECK(first.get().has_value() && IsReady(after_action));
  CHECK_SAYS(after_action.get(), FailureKind::kPeer, "the action broke");
}

void WhoHasArrivedMayFailWithoutHarm() {
  Rendezvous rendezvous;
  auto first = Arrive(rendezvous, At(1, 7, Group(2), 0));
  rendezvous.Abandon(1, {0, 100}, "failed in something that runs beside");
  CHECK(!IsReady(first));
  CHECK(!Arrive(rendezvous, At(1, 7, Group(2), 1)).get() && !first.get());
}

void OnlySoManyFailedRunsAreRemembered() {
  Rendezvous rendezvous;
  for (int64_t run = 0; run < 1000; ++run) rendezvous.Abandon(run, {0, 100}, "failed");
  CHECK(IsReady(Arrive(rendezvous, At(999, 7, Group(2), 1))));
  auto forgotten = Arrive(rendezvous, At(1, 7, Group(2), 1, kShort));
  CHECK(!IsReady(forgotten));
  CHECK_SAYS(forgotten.get(), FailureKind::kTimeout, "rank 0 did not come");
}

void ComingTwiceIsAnErrorForAll() {
  Rendezvous rendezvous;
  auto first = Arrive(rendezvous, At(1, 7, Group(2), 0));
  auto second = Arrive(rendezvous, At(1, 7, Group(2), 0));
  CHECK_SAYS(second.get(), FailureKind::kMisuse, "rank 0 came a second time before all had");
  CHECK(first.get().has_value() && rendezvous.pending() == 0);
}

// Whoever comes last reads the payloads of all as its own kind's.
void KindsOfCallsDoNotMix() {
  Rendezvous rendezvous;
  const auto reads = [](const std::vector<Rendezvous::Payload>&) -> Outcome {
    std::fprintf(stderr, "payloads of another kind were read\n");
    std::_Exit(1);
  };
  auto first = Arrive(rendezvous, At(1, 7, Group(2), 0), reads);
  Meeting other = At(1, 7, Group(2), 1);
  other.what = "hloom.ragged_all_to_all";
  other.site = "another site";
  CHECK_SAYS(Arrive(rendezvous, other, reads).get(), FailureKind::kMisuse,
             "hloom.ragged_all_to_all at another site: rank 1 comes to where hloom.barrier at the "
             "site waits; each channel is for one kind of call (channel 7, run 1)");
  CHECK(first.get().has_value() && rendezvous.pending() == 0);
}

void DisagreeingOnWhoMeetsIsAnErrorForAll() {
  Rendezvous rendezvous;
  auto first = Arrive(rendezvous, At(1, 7, Group(4), 0));
  auto second = Arrive(rendezvous, At(1, 7, Group(2), 1));
  CHECK_SAYS(second.get(), FailureKind::kMisuse,
             "rank 1 meets ranks 0, 1, but those who wait at the site meet ranks 0-3");
  CHECK(first.get().has_value() && rendezvous.pending() == 0);
}

void NonsenseIsRefused() {
  Rendezvous rendezvous;
  CHECK(Arrive(rendezvous, At(1, 7, {}, 0)).get()->kind == FailureKind::kMisuse);
  CHECK(Arrive(rendezvous, At(1, 7, Group(2), 2)).get()->kind == FailureKind::kMisuse);
  CHECK(Arrive(rendezvous, At(1, 7, Group(2), 0, milliseconds(0))).get()->kind ==
        FailureKind::kMisuse);
  CHECK(rendezvous.pending() == 0);
}

void DestructionFailsWhoWaits() {
  std::future<Outcome> waiting;
  {
    Rendezvous rendezvous;
    waiting = Arrive(rendezvous, At(1, 7, Group(2), 0));
  }
  CHECK_SAYS(waiting.get(), FailureKind::kPeer, "the rendezvous is gone");
}

void BlockingRanksMeetInALoop() {
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
void RandomRunsAlwaysEnd() {
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

void RanksReadWell() {
  CHECK(hloom::RanksText({}).empty());
  CHECK(hloom::RanksText({5}) == "5");
  CHECK(hloom::RanksText({2, 1, 0, 5, 7, 8}) == "0-2, 5, 7, 8");
}

#define NAMED(check) {#check, check}

const std::map<std::string, void (*)()> kChecks = {
    NAMED(NobodyIsReleasedBeforeTheLast),
    NAMED(OneAloneMeetsItself),
    NAMED(RunsChannelsAndGroupsAreApart),
    NAMED(AFastRankComesAgainWhileOthersHaveNotLeft),
    NAMED(TheLastSeesEveryPayloadBeforeAnyIsReleased),
    NAMED(AFailedActionFailsEveryone),
    NAMED(AnActionThatThrowsFailsEveryone),
    NAMED(ALaunchThatThrowsStillReleases),
    NAMED(ATimeoutNamesWhoIsMissingAndWhoWaited),
    NAMED(ADeadlineEarlierThanTheOneBeforeIsKept),
    NAMED(TimeInWhichTheProcessIsStoppedDoesNotCount),
    NAMED(ATimeoutTooLongForTheClockIsKept),
    NAMED(ALatecomerFailsAtOnce),
    NAMED(AFailureReachesWhoWaitsForTheFailed),
    NAMED(EveryWayOfFailingReachesWhoWaits),
    NAMED(WhoHasArrivedMayFailWithoutHarm),
    NAMED(OnlySoManyFailedRunsAreRemembered),
    NAMED(ComingTwiceIsAnErrorForAll),
    NAMED(KindsOfCallsDoNotMix),
    NAMED(DisagreeingOnWhoMeetsIsAnErrorForAll),
    NAMED(NonsenseIsRefused),
    NAMED(DestructionFailsWhoWaits),
    NAMED(BlockingRanksMeetInALoop),
    NAMED(RandomRunsAlwaysEnd),
    NAMED(RanksReadWell),
};

}  // namespace

// Without arguments, prints the names of the checks.
int main(int argc, char** argv) {
  if (argc == 1) {
    for (const auto& [name, check] : kChecks) std::puts(name.c_str());
  }
  for (int i = 1; i < argc; ++i) kChecks.at(argv[i])();
  return 0;
}
