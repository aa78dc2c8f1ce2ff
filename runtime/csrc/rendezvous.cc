#include "rendezvous.h"

#include <algorithm>
#include <exception>
#include <sstream>
#include <tuple>

#include "signals_blocked.h"

namespace hloom {
namespace {

// Failed runs whose latecomers get an answer; older ones are forgotten, so nothing grows.
constexpr size_t kRememberedRuns = 64;

// The longest timeout: a deadline never overflows the clock.
constexpr std::chrono::hours kLongestTimeout{24 * 365};

// The watcher's period, and its looks within a timeout: time in which the process was stopped
// counts as one look at most.
constexpr std::chrono::seconds kLongestLook{1};
constexpr int kLooksPerTimeout = 8;

std::string Seconds(std::chrono::duration<double> duration) {
  std::ostringstream text;
  text.precision(1);
  text << std::fixed << duration.count() << " s";
  return text.str();
}

std::string Ranks(std::vector<int64_t> ranks) {
  const bool one = ranks.size() == 1;
  return (one ? "rank " : "ranks ") + RanksText(std::move(ranks));
}

std::vector<int64_t> RanksOf(const std::vector<Member>& members) {
  std::vector<int64_t> ranks;
  for (const Member& member : members) ranks.push_back(member.rank);
  return ranks;
}

std::string Describe(const GroupCall& call) { return call.kind + " at " + call.site; }

std::string Identity(const GroupCall& call, int64_t run) {
  return "channel " + std::to_string(call.channel) + ", run " + std::to_string(run);
}

// Ends the process where a callback throws, which none may.
void Deliver(const Rendezvous::Callback& callback, const Outcome& outcome) noexcept {
  callback(outcome);
}

Outcome RunAction(const Rendezvous::Action& action, const GroupCall& call,
                  const std::vector<Rendezvous::Payload>& payloads) {
  if (!action) return std::nullopt;
  try {
    return action(payloads);
  } catch (const std::exception& error) {
    return Failure{FailureKind::kAction, Describe(call) + ": " + error.what()};
  } catch (...) {
    return Failure{FailureKind::kAction, Describe(call) + ": an unknown exception"};
  }
}

}  // namespace

std::string RanksText(std::vector<int64_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i < 3) end = i + 1;
    if (!text.empty()) text += ", ";
    text += std::to_string(ranks[i]);
    if (end - i > 1) text += "-" + std::to_string(ranks[end - 1]);
    i = end;
  }
  return text;
}

size_t Rendezvous::KeyHash::operator()(const Key& key) const noexcept {
  size_t hash = std::hash<int64_t>()(key.run);
  for (int64_t part : {key.channel, key.first_device}) {
    hash ^= std::hash<int64_t>()(part) + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
  }
  return hash;
}

Rendezvous& Rendezvous::OfProcess() {
  static Rendezvous* const rendezvous = new Rendezvous();
  return *rendezvous;
}

Rendezvous::~Rendezvous() {
  Releases releases;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    while (!pending_.empty()) {
      const GenerationPtr generation = pending_.begin()->second;
      FailLocked(generation,
                 {FailureKind::kPeer, Describe(*generation->call) + ": the rendezvous is gone"},
                 &releases);
    }
    watch_changed_.notify_all();
  }
  for (const auto& [callback, outcome] : releases) Deliver(callback, outcome);
  if (watcher_.joinable()) watcher_.join();
}

void Rendezvous::Arrive(const Arrival& arrival, Payload payload, const Action& action,
                        Callback callback, const Scheduler& schedule) noexcept {
  Releases releases;
  GenerationPtr complete;
  Outcome refused;
  try {
    std::lock_guard<std::mutex> lock(mutex_);
    refused = Enter(arrival, payload, &callback, &complete, &releases);
  } catch (const std::exception& error) {
    refused = Failure{FailureKind::kAction, Describe(*arrival.call) + ": " + error.what()};
  }
  for (const auto& [waiting, outcome] : releases) Deliver(waiting, outcome);
  if (refused.has_value()) return Deliver(callback, refused);
  if (complete == nullptr) return;

  const Outcome outcome = RunAction(action, *complete->call, complete->payloads);
  complete->payloads.clear();
  if (outcome.has_value()) {
    for (const Member& member : complete->call->members) {
      Abandon(complete->run, member, outcome->message);
    }
  }
  for (size_t i = 0; i < complete->callbacks.size(); ++i) {
    if (i == arrival.position) continue;
    if (!schedule) {
      Deliver(complete->callbacks[i], outcome);
      continue;
    }
    const std::function<void()> release = [waiting = std::move(complete->callbacks[i]), outcome] {
      Deliver(waiting, outcome);
    };
    try {
      schedule(release);
    } catch (...) {
      release();  // One after the other is better than never.
    }
  }
  Deliver(complete->callbacks[arrival.position], outcome);
}

Outcome Rendezvous::ArriveAndWait(const Arrival& arrival, Payload payload, const Action& action) {
  struct Wait {
    std::mutex mutex;
    std::condition_variable done;
    bool is_done = false;
    Outcome outcome;
  };
  const auto wait = std::make_shared<Wait>();
  Arrive(
      arrival, std::move(payload), action,
      [wait](const Outcome& outcome) {
        std::lock_guard<std::mutex> lock(wait->mutex);
        wait->outcome = outcome;
        wait->is_done = true;
        wait->done.notify_one();
      },
      /*schedule=*/nullptr);
  std::unique_lock<std::mutex> lock(wait->mutex);
  wait->done.wait(lock, [&] { return wait->is_done; });
  return wait->outcome;
}

void Rendezvous::Abandon(int64_t run, const Member& member, const std::string& message) noexcept {
  Releases releases;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    MarkFailed(run, member.device, message);
    SpreadFailures(run, &releases);
  }
  for (const auto& [callback, outcome] : releases) Deliver(callback, outcome);
}

size_t Rendezvous::pending() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return pending_.size();
}

// Takes `callback` when the arrival is accepted, and sets `complete` when it was the last one.
// Otherwise returns the failure and leaves `callback` to the caller.
Outcome Rendezvous::Enter(const Arrival& arrival, const Payload& payload, Callback* callback,
                          GenerationPtr* complete, Releases* releases) {
  const GroupCall& call = *arrival.call;
  if (arrival.position >= call.members.size() || call.timeout.count() <= 0) {
    return Failure{FailureKind::kMisuse,
                   Describe(call) + ": position " + std::to_string(arrival.position) + " of " +
                       std::to_string(call.members.size()) + " members, timeout " +
                       std::to_string(call.timeout.count()) + " ms"};
  }
  const Key key{arrival.run, call.channel, call.members.front().device};
  const auto found = pending_.find(key);
  GenerationPtr generation = found == pending_.end() ? nullptr : found->second;
  if (Outcome failure = Check(arrival, generation.get())) {
    if (generation != nullptr && failure->kind == FailureKind::kMisuse) {
      FailLocked(generation, *failure, releases);
    }
    MarkFailed(arrival.run, arrival.self().device, failure->message);
    SpreadFailures(arrival.run, releases);
    return failure;
  }
  if (generation == nullptr) generation = Open(arrival);
  generation->payloads[arrival.position] = payload;
  generation->callbacks[arrival.position] = std::move(*callback);
  if (++generation->arrived == call.members.size()) {
    pending_.erase(key);
    *complete = std::move(generation);
  }
  return std::nullopt;
}

Rendezvous::GenerationPtr Rendezvous::Open(const Arrival& arrival) {
  StartWatching();
  auto generation = std::make_shared<Generation>();
  generation->call = arrival.call;
  generation->run = arrival.run;
  const Clock::time_point now = Clock::now();
  generation->started = Watched(now);
  generation->deadline = generation->started + std::min<std::chrono::milliseconds>(
                                                   arrival.call->timeout, kLongestTimeout);
  generation->payloads.resize(arrival.call->members.size());
  generation->callbacks.resize(arrival.call->members.size());
  pending_.emplace(generation->key(), generation);
  const Clock::time_point planned = next_look_;
  PlanLook(now, *generation);
  if (next_look_ < planned) watch_changed_.notify_all();
  return generation;
}

// Makes the watcher look soon enough at a generation that waits.
void Rendezvous::PlanLook(Clock::time_point now, const Generation& generation) {
  const Clock::duration timeout = generation.deadline - generation.started;
  const Clock::duration look = std::min<Clock::duration>(kLongestLook, timeout / kLooksPerTimeout);
  const Clock::duration left = generation.deadline - Watched(now);
  next_look_ = std::min(next_look_, now + std::min(look, left));
}

// The failure of an arrival that cannot be accepted. `generation` is the one it would join, or
// null.
Outcome Rendezvous::Check(const Arrival& arrival, const Generation* generation) const {
  const GroupCall& call = *arrival.call;
  const std::string rank = std::to_string(arrival.self().rank);
  if (stopping_) return Failure{FailureKind::kPeer, Describe(call) + ": the rendezvous is gone"};
  if (generation != nullptr && generation->call->kind != call.kind) {
    // The last arrival reads all payloads as those of its own kind.
    return Failure{FailureKind::kMisuse, Describe(call) + ": rank " + rank + " comes to where " +
                                             Describe(*generation->call) +
                                             " waits; each channel is for one kind of call (" +
                                             Identity(call, arrival.run) + ")"};
  }
  if (generation != nullptr && !(generation->call->members == call.members)) {
    return Failure{FailureKind::kMisuse, Describe(call) + ": rank " + rank + " meets " +
                                             Ranks(RanksOf(call.members)) +
                                             ", but those who wait at " + generation->call->site +
                                             " meet " + Ranks(RanksOf(generation->call->members)) +
                                             " (" + Identity(call, arrival.run) + ")"};
  }
  if (generation != nullptr && generation->callbacks[arrival.position]) {
    return Failure{FailureKind::kMisuse, Describe(call) + ": rank " + rank +
                                             " came a second time before all had come once (" +
                                             Identity(call, arrival.run) + ")"};
  }
  const auto run = failed_runs_.find(arrival.run);
  if (run == failed_runs_.end()) return std::nullopt;
  std::vector<int64_t> failed;
  const std::string* reason = nullptr;
  for (size_t i = 0; i < call.members.size(); ++i) {
    if (generation != nullptr && generation->callbacks[i]) continue;
    const auto device = run->second.reason_by_device.find(call.members[i].device);
    if (device == run->second.reason_by_device.end()) continue;
    failed.push_back(call.members[i].rank);
    if (reason == nullptr) reason = &device->second;
  }
  if (reason == nullptr) return std::nullopt;
  return Failure{FailureKind::kPeer, Describe(call) + ": " + Ranks(std::move(failed)) +
                                         " failed earlier in this run: " + *reason};
}

// Removes the generation and fails the ranks that have arrived. They arrive at no other call of
// this run, so the next SpreadFailures fails whoever waits for one of them.
void Rendezvous::FailLocked(const GenerationPtr& generation, const Failure& failure,
                            Releases* releases) {
  const auto found = pending_.find(generation->key());
  if (found == pending_.end() || found->second != generation) return;  // It has failed already.
  pending_.erase(found);
  for (size_t i = 0; i < generation->callbacks.size(); ++i) {
    if (!generation->callbacks[i]) continue;
    MarkFailed(generation->run, generation->call->members[i].device, failure.message);
    releases->emplace_back(std::move(generation->callbacks[i]), failure);
  }
}

void Rendezvous::MarkFailed(int64_t run, int64_t device, const std::string& reason) {
  const auto [found, is_new] = failed_runs_.try_emplace(run);
  found->second.reason_by_device.try_emplace(device, reason);
  if (!is_new) return;
  failed_order_.push_back(run);
  if (failed_order_.size() <= kRememberedRuns) return;
  failed_runs_.erase(failed_order_.front());
  failed_order_.pop_front();
}

// Fails every call of the run that waits for a failed device, until there is none.
void Rendezvous::SpreadFailures(int64_t run, Releases* releases) {
  const auto doomed = [&]() -> std::pair<GenerationPtr, Failure> {
    const auto failed = failed_runs_.find(run);
    if (failed == failed_runs_.end()) return {};
    for (const auto& [key, generation] : pending_) {
      if (key.run != run) continue;
      const GroupCall& call = *generation->call;
      for (size_t i = 0; i < call.members.size(); ++i) {
        if (generation->callbacks[i]) continue;
        const auto device = failed->second.reason_by_device.find(call.members[i].device);
        if (device == failed->second.reason_by_device.end()) continue;
        return {
            generation,
            {FailureKind::kPeer, Describe(call) + ": rank " + std::to_string(call.members[i].rank) +
                                     " failed in this run: " + device->second}};
      }
    }
    return {};
  };
  for (auto [generation, failure] = doomed(); generation != nullptr;
       std::tie(generation, failure) = doomed()) {
    FailLocked(generation, failure, releases);
  }
}

void Rendezvous::StartWatching() {
  if (watcher_.joinable()) return;
  const SignalsBlocked blocked;
  watcher_ = std::thread([this] { Watch(); });
}

// Looks at the pending calls a few times within each timeout. Calls that complete do not wake it,
// and nothing does while none is pending.
//
// When a look comes late, the process was stopped or had no processor to run on: then the ranks did
// not run either, and deadlines move by as much.
void Rendezvous::Watch() noexcept {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    const Clock::time_point now = Clock::now();
    if (now > next_look_) not_watched_ += now - next_look_;
    std::vector<GenerationPtr> late;
    next_look_ = Clock::time_point::max();
    for (const auto& [key, generation] : pending_) {
      if (generation->deadline <= Watched(now)) {
        late.push_back(generation);
      } else {
        PlanLook(now, *generation);
      }
    }
    if (late.empty()) {
      if (next_look_ == Clock::time_point::max()) {
        watch_changed_.wait(lock);
      } else {
        watch_changed_.wait_until(lock, next_look_);
      }
      continue;
    }
    Releases releases;
    for (const GenerationPtr& generation : late) {
      const GroupCall& call = *generation->call;
      std::vector<int64_t> missing;
      std::vector<int64_t> came;
      for (size_t i = 0; i < call.members.size(); ++i) {
        (generation->callbacks[i] ? came : missing).push_back(call.members[i].rank);
      }
      FailLocked(generation,
                 {FailureKind::kTimeout,
                  Describe(call) + ": " + Ranks(std::move(missing)) + " did not come within " +
                      Seconds(Watched(now) - generation->started) + "; " + Ranks(std::move(came)) +
                      " waited (" + Identity(call, generation->run) + ")"},
                 &releases);
      SpreadFailures(generation->run, &releases);
    }
    lock.unlock();
    for (const auto& [callback, outcome] : releases) Deliver(callback, outcome);
    releases.clear();
    lock.lock();
  }
}

}  // namespace hloom
