// The rendezvous: failures and timeouts reach every rank that waits. Part of rendezvous_test.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>
#include <thread>

#include "tests/rendezvous_test.h"

namespace hloom::test {
namespace {

TEST(AFailedActionFailsEveryone) {
  Rendezvous rendezvous;
  const auto fails = [](const std::vector<Rendezvous::Payload>&) -> Outcome {
    return Failure{FailureKind::kAction, "slice 3 of rank 1 is out of bounds"};
  };
  auto first = Arrive(rendezvous, At(1, 7, Group(2), 0), fails);
  const Outcome second = Arrive(rendezvous, At(1, 7, Group(2), 1), fails).get();
  CHECK_SAYS(second, FailureKind::kAction, "slice 3 of rank 1");
  CHECK(first.get()->message == second->message);
}

TEST(AnActionThatThrowsFailsEveryone) {
  Rendezvous rendezvous;
  const auto throws = [](const std::vector<Rendezvous::Payload>&) -> Outcome {
    throw std::runtime_error("no memory for 3 bytes");
  };
  auto first = Arrive(rendezvous, At(1, 7, Group(2), 0), throws);
  CHECK_SAYS(Arrive(rendezvous, At(1, 7, Group(2), 1), throws).get(), FailureKind::kAction,
             "the site: no memory for 3 bytes");
  CHECK(first.get().has_value());
}

TEST(ATimeoutNamesWhoIsMissingAndWhoWaited) {
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

TEST(ADeadlineEarlierThanTheOneBeforeIsKept) {
  Rendezvous rendezvous;
  auto patient = Arrive(rendezvous, At(1, 7, Group(2), 0, kLong));
  std::this_thread::sleep_for(kShort);  // The watcher sleeps for a minute now.
  auto hasty = Arrive(rendezvous, At(2, 7, Group(2), 0, kShort));
  CHECK_SAYS(hasty.get(), FailureKind::kTimeout, "rank 1 did not come");
  CHECK(!IsReady(patient) && rendezvous.pending() == 1);
}

// Stops this process for longer than the timeout, while one rank waits and the other is to come.
TEST(TimeInWhichTheProcessIsStoppedDoesNotCount) {
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

TEST(ATimeoutTooLongForTheClockIsKept) {
  Rendezvous rendezvous;
  auto first = Arrive(rendezvous, At(1, 7, Group(2), 0, milliseconds::max()));
  std::this_thread::sleep_for(kShort);
  CHECK(!IsReady(first));
  CHECK(!Arrive(rendezvous, At(1, 7, Group(2), 1, milliseconds::max())).get() && !first.get());
}

TEST(ALatecomerFailsAtOnce) {
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

TEST(AFailureReachesWhoWaitsForTheFailed) {
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

TEST(EveryWayOfFailingReachesWhoWaits) {
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
    return Failure{FailureKind::kAction, "the action broke"};
  };
  auto after_action = Arrive(rendezvous, At(3, 8, Group(2, 1), 1));
  auto first = Arrive(rendezvous, At(3, 7, Group(2), 0), fails);
  CHECK(Arrive(rendezvous, At(3, 7, Group(2), 1), fails).get().has_value());
  CHECK(first.get().has_value() && IsReady(after_action));
  CHECK_SAYS(after_action.get(), FailureKind::kPeer, "the action broke");
}

TEST(WhoHasArrivedMayFailWithoutHarm) {
  Rendezvous rendezvous;
  auto first = Arrive(rendezvous, At(1, 7, Group(2), 0));
  rendezvous.Abandon(1, {0, 100}, "failed in something that runs beside");
  CHECK(!IsReady(first));
  CHECK(!Arrive(rendezvous, At(1, 7, Group(2), 1)).get() && !first.get());
}

TEST(OnlySoManyFailedRunsAreRemembered) {
  Rendezvous rendezvous;
  for (int64_t run = 0; run < 1000; ++run) rendezvous.Abandon(run, {0, 100}, "failed");
  CHECK(IsReady(Arrive(rendezvous, At(999, 7, Group(2), 1))));
  auto forgotten = Arrive(rendezvous, At(1, 7, Group(2), 1, kShort));
  CHECK(!IsReady(forgotten));
  CHECK_SAYS(forgotten.get(), FailureKind::kTimeout, "rank 0 did not come");
}

TEST(ComingTwiceIsAnErrorForAll) {
  Rendezvous rendezvous;
  auto first = Arrive(rendezvous, At(1, 7, Group(2), 0));
  auto second = Arrive(rendezvous, At(1, 7, Group(2), 0));
  CHECK_SAYS(second.get(), FailureKind::kMisuse, "rank 0 came a second time before all had");
  CHECK(first.get().has_value() && rendezvous.pending() == 0);
}

// Whoever comes last reads the payloads of all as its own kind's.
TEST(KindsOfCallsDoNotMix) {
  Rendezvous rendezvous;
  const auto reads = [](const std::vector<Rendezvous::Payload>&) -> Outcome {
    std::fprintf(stderr, "payloads of another kind were read\n");
    std::_Exit(1);
  };
  auto first = Arrive(rendezvous, At(1, 7, Group(2), 0), reads);
  const GroupCall call{7, Group(2), kLong, "hloom.ragged_all_to_all", "another site"};
  const Arrival other{std::make_shared<const GroupCall>(call), 1, 1};
  CHECK_SAYS(Arrive(rendezvous, other, reads).get(), FailureKind::kMisuse,
             "hloom.ragged_all_to_all at another site: rank 1 comes to where hloom.barrier at the "
             "site waits; each channel is for one kind of call (channel 7, run 1)");
  CHECK(first.get().has_value() && rendezvous.pending() == 0);
}

TEST(DisagreeingOnWhoMeetsIsAnErrorForAll) {
  Rendezvous rendezvous;
  auto first = Arrive(rendezvous, At(1, 7, Group(4), 0));
  auto second = Arrive(rendezvous, At(1, 7, Group(2), 1));
  CHECK_SAYS(second.get(), FailureKind::kMisuse,
             "rank 1 meets ranks 0, 1, but those who wait at the site meet ranks 0-3");
  CHECK(first.get().has_value() && rendezvous.pending() == 0);
}

TEST(NonsenseIsRefused) {
  Rendezvous rendezvous;
  CHECK(Arrive(rendezvous, At(1, 7, {}, 0)).get()->kind == FailureKind::kMisuse);
  CHECK(Arrive(rendezvous, At(1, 7, Group(2), 2)).get()->kind == FailureKind::kMisuse);
  CHECK(Arrive(rendezvous, At(1, 7, Group(2), 0, milliseconds(0))).get()->kind ==
        FailureKind::kMisuse);
  CHECK(rendezvous.pending() == 0);
}

TEST(DestructionFailsWhoWaits) {
  std::future<Outcome> waiting;
  {
    Rendezvous rendezvous;
    waiting = Arrive(rendezvous, At(1, 7, Group(2), 0));
  }
  CHECK_SAYS(waiting.get(), FailureKind::kPeer, "the rendezvous is gone");
}

}  // namespace
}  // namespace hloom::test
