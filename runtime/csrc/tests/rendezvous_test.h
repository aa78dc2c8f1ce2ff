// Arrivals of ranks for the rendezvous tests: threads as ranks.

#ifndef HLOOM_RUNTIME_CSRC_TESTS_RENDEZVOUS_TEST_H_
#define HLOOM_RUNTIME_CSRC_TESTS_RENDEZVOUS_TEST_H_

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous.h"
#include "tests/check.h"

namespace hloom::test {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

inline void CheckSays(const char* file, int line, const Outcome& outcome, FailureKind kind,
                      const std::string& part) {
  if (outcome.has_value() && outcome->kind == kind &&
      outcome->message.find(part) != std::string::npos) {
    return;
  }
  std::fprintf(stderr, "%s:%d: \"%s\" does not say \"%s\"\n", file, line,
               outcome.has_value() ? outcome->message.c_str() : "all met", part.c_str());
  std::_Exit(1);
}

#define CHECK_SAYS(outcome, kind, part) CheckSays(__FILE__, __LINE__, outcome, kind, part)

constexpr milliseconds kLong{60000};
constexpr milliseconds kShort{50};

// Ranks are partitions, devices their ordinals: different numbers, so that a mix-up shows.
inline std::vector<Member> Group(size_t size, int64_t first = 0) {
  std::vector<Member> members;
  for (size_t i = 0; i < size; ++i) {
    const int64_t rank = first + static_cast<int64_t>(i);
    members.push_back({rank, rank + 100});
  }
  return members;
}

inline Arrival At(int64_t run, int64_t channel, std::vector<Member> members, size_t position,
                  milliseconds timeout = kLong) {
  const GroupCall call{channel, std::move(members), timeout, "hloom.barrier", "the site"};
  return {std::make_shared<const GroupCall>(call), run, position};
}

// An arrival whose outcome can be asked for.
inline std::future<Outcome> Arrive(Rendezvous& rendezvous, const Arrival& arrival,
                                   const Rendezvous::Action& action = nullptr) {
  auto promise = std::make_shared<std::promise<Outcome>>();
  std::future<Outcome> outcome = promise->get_future();
  rendezvous.Arrive(
      arrival, nullptr, action, [promise](const Outcome& result) { promise->set_value(result); },
      nullptr);
  return outcome;
}

inline bool IsReady(const std::future<Outcome>& outcome) {
  return outcome.wait_for(milliseconds(0)) == std::future_status::ready;
}

}  // namespace hloom::test

#endif  // HLOOM_RUNTIME_CSRC_TESTS_RENDEZVOUS_TEST_H_
