#include "rendezvous.h"

#include <algorithm>
#include <exception>
#include <sstream>
#include <tuple>

#include "signals_blocked.h"

namespace hloom {
namespace {

// Enough to answer latecomers of the last runs; old ones fall out, so nothing grows.
constexpr size_t kRememberedRuns = 64;

// Longer ones are cut to this, so that a deadline never overflows the clock.
constexpr std::chrono::hours kLongestTimeout{24 * 365};

// The watcher looks this often at what waits, and so many times within a timeout: a time in which
// the process was stopped counts as one look at most.
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

std::string Place(const Meeting& meeting) {
  return std::string(meeting.what) + " at " + std::string(meeting.site);
}

std::string Identity(const Meeting& meeting) {
  return "channel " + std::to_string(meeting.channel) + ", run " + std::to_string(meeting.run);
}

void Deliver(const Rendezvous::Then& then, const Outcome& outcome) noexcept { then(outcome); }

Outcome Carry(const Rendezvous::Action& action, const Meeting& meeting,
              const std::vector<Rendezvous::Payload>& payloads) {
  if (!action) return std::nullopt;
  try {
    return action(payloads);
  } catch (const std::exception& error) {
    return Failure{FailureKind::kAction, Place(meeting) + ": " + error.what()};
  } catch (...) {
    return Failure{FailureKind::kAction, Place(meeting) + ": an unknown exception"};
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
                 {FailureKind::kPeer, Place(generation->meeting) + ": the rendezvous is gone"},
                 &releases);
    }
    watch_changed_.notify_all();
  }
  for (const auto& [then, outcome] : releases) Deliver(then, outcome);
  if (watcher_.joinable()) watcher_.join();
}

void Rendezvous::Arrive(const Meeting& meeting, Payload payload, const Action& action, Then then,
                        const Launch& launch) noexcept {
  Releases releases;
  GenerationPtr complete;
  Outcome refused;
  try {
    std::lock_guard<std::mutex> lock(mutex_);
    refused = Enter(meeting, payload, &then, &complete, &releases);
  } catch (const std::exception& error) {
    refused = Failure{FailureKind::kAction, Place(meeting) + ": " + error.what()};
  }
  for (const auto& [waiting, outcome] : releases) Deliver(waiting, outcome);
  if (refused.has_value()) return Deliver(then, refused);
  if (complete == nullptr) return;

  const Outcome outcome = Carry(action, complete->meeting, complete->payloads);
  complete->payloads.clear();
  if (outcome.has_value()) {
    for (const Member& member : complete->meeting.members) {
      Abandon(complete->meeting.run, member, outcome->message);
    }
  }
  for (size_t i = 0; i < complete->thens.size(); ++i) {
    if (i == meeting.position) continue;
    if (!launch) {
      Deliver(complete->thens[i], outcome);
      continue;
    }
    const std::function<void()> release = [then = std::move(complete->thens[i]), outcome] {
      Deliver(then, outcome);
    };
    try {
      launch(release);
    } catch (...) {
      release();  // Not scheduled: better one after the other than never.
    }
  }
  Deliver(complete->thens[meeting.position], outcome);
}

Outcome Rendezvous::ArriveAndWait(const Meeting& meeting, Payload payload, const Action& action) {
  struct Wait {
    std::mutex mutex;
    std::condition_variable done;
    bool is_done = false;
    Outcome outcome;
  };
  const auto wait = std::make_shared<Wait>();
  Arrive(
      meeting, std::move(payload), action,
      [wait](const Outcome& outcome) {
        std::lock_guard<std::mutex> lock(wait->mutex);
        wait->outcome = outcome;
        wait->is_done = true;
        wait->done.notify_one();
      },
      /*launch=*/nullptr);
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
  for (const auto& [then, outcome] : releases) Deliver(then, outcome);
}

size_t Rendezvous::pending() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return pending_.size();
}

// Takes `then` when the arrival is accepted, and sets `complete` when it was the last one.
// Otherwise says why not; `then` is then left to the caller.
Outcome Rendezvous::Enter(const Meeting& meeting, const Payload& payload, Then* then,
                          GenerationPtr* complete, Releases* releases) {
  if (meeting.position >= meeting.members.size() || meeting.timeout.count() <= 0) {
    return Failure{FailureKind::kMisuse,
                   Place(meeting) + ": position " + std::to_string(meeting.position) + " of " +
                       std::to_string(meeting.members.size()) + " members, timeout " +
                       std::to_string(meeting.timeout.count()) + " ms"};
  }
  const Key key{meeting.run, meeting.channel, meeting.members.front().device};
  const auto found = pending_.find(key);
  GenerationPtr generation = found == pending_.end() ? nullptr : found->second;
  if (Outcome refusal = Refusal(meeting, generation.get())) {
    if (generation != nullptr && refusal->kind == FailureKind::kMisuse) {
      FailLocked(generation, *refusal, releases);
    }
    MarkFailed(meeting.run, meeting.members[meeting.position].device, refusal->message);
    SpreadFailures(meeting.run, releases);
    return refusal;
  }
  if (generation == nullptr) generation = Open(meeting);
  generation->payloads[meeting.position] = payload;
  generation->thens[meeting.position] = std::move(*then);
  if (++generation->arrived == meeting.members.size()) {
    pending_.erase(key);
    *complete = std::move(generation);
  }
  return std::nullopt;
}

Rendezvous::GenerationPtr Rendezvous::Open(const Meeting& meeting) {
  StartWatching();
  auto generation = std::make_shared<Generation>();
  generation->what = meeting.what;
  generation->site = meeting.site;
  generation->meeting = meeting;
  generation->meeting.what = generation->what;
  generation->meeting.site = generation->site;
  const Clock::time_point now = Clock::now();
  generation->started = Watched(now);
  generation->deadline =
      generation->started + std::min<std::chrono::milliseconds>(meeting.timeout, kLongestTimeout);
  generation->payloads.resize(meeting.members.size());
  generation->thens.resize(meeting.members.size());
  pending_.emplace(Key{meeting.run, meeting.channel, meeting.members.front().device}, generation);
  const Clock::time_point planned = next_look_;
  PlanLook(now, *generation);
  if (next_look_ < planned) watch_changed_.notify_all();
  return generation;
}

// Sees to it that the watcher looks soon enough at a meeting that waits.
void Rendezvous::PlanLook(Clock::time_point now, const Generation& generation) {
  const Clock::duration timeout = generation.deadline - generation.started;
  const Clock::duration look = std::min<Clock::duration>(kLongestLook, timeout / kLooksPerTimeout);
  const Clock::duration left = generation.deadline - Watched(now);
  next_look_ = std::min(next_look_, now + std::min(look, left));
}

// Why this arrival cannot be accepted, if so. `generation` is the one it would join, or null.
Outcome Rendezvous::Refusal(const Meeting& meeting, const Generation* generation) const {
  const Member& self = meeting.members[meeting.position];
  if (stopping_) return Failure{FailureKind::kPeer, Place(meeting) + ": the rendezvous is gone"};
  if (generation != nullptr && generation->what != meeting.what) {
    // Whoever comes last reads the payloads of all as its own kind's.
    return Failure{FailureKind::kMisuse, Place(meeting) + ": rank " + std::to_string(self.rank) +
                                             " comes to where " + Place(generation->meeting) +
                                             " waits; each channel is for one kind of call" + " (" +
                                             Identity(meeting) + ")"};
  }
  if (generation != nullptr && !(generation->meeting.members == meeting.members)) {
    return Failure{FailureKind::kMisuse,
                   Place(meeting) + ": rank " + std::to_string(self.rank) + " meets " +
                       Ranks(RanksOf(meeting.members)) + ", but those who wait at " +
                       generation->site + " meet " + Ranks(RanksOf(generation->meeting.members)) +
                       " (" + Identity(meeting) + ")"};
  }
  if (generation != nullptr && generation->thens[meeting.position]) {
    return Failure{FailureKind::kMisuse, Place(meeting) + ": rank " + std::to_string(self.rank) +
                                             " came a second time before all had come once (" +
                                             Identity(meeting) + ")"};
  }
  const auto run = failed_runs_.find(meeting.run);
  if (run == failed_runs_.end()) return std::nullopt;
  std::vector<int64_t> failed;
  const std::string* reason = nullptr;
  for (size_t i = 0; i < meeting.members.size(); ++i) {
    if (generation != nullptr && generation->thens[i]) continue;
    const auto device = run->second.reason_by_device.find(meeting.members[i].device);
    if (device == run->second.reason_by_device.end()) continue;
    failed.push_back(meeting.members[i].rank);
    if (reason == nullptr) reason = &device->second;
  }
  if (reason == nullptr) return std::nullopt;
  return Failure{FailureKind::kPeer, Place(meeting) + ": " + Ranks(std::move(failed)) +
                                         " failed earlier in this run: " + *reason};
}

// Takes the generation out and fails those who have arrived. They come to no other meeting of
// this run, so whoever waits for one of them fails with the next call of SpreadFailures.
void Rendezvous::FailLocked(const GenerationPtr& generation, const Failure& failure,
                            Releases* releases) {
  const Meeting& meeting = generation->meeting;
  const auto found =
      pending_.find(Key{meeting.run, meeting.channel, meeting.members.front().device});
  if (found == pending_.end() || found->second != generation) return;  // It has failed already.
  pending_.erase(found);
  for (size_t i = 0; i < meeting.members.size(); ++i) {
    if (!generation->thens[i]) continue;
    MarkFailed(meeting.run, meeting.members[i].device, failure.message);
    releases->emplace_back(std::move(generation->thens[i]), failure);
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

// Fails every meeting of the run that waits for a failed device, until there is none.
void Rendezvous::SpreadFailures(int64_t run, Releases* releases) {
  const auto doomed = [&]() -> std::pair<GenerationPtr, Failure> {
    const auto failed = failed_runs_.find(run);
    if (failed == failed_runs_.end()) return {};
    for (const auto& [key, generation] : pending_) {
      if (key.run != run) continue;
      const Meeting& meeting = generation->meeting;
      for (size_t i = 0; i < meeting.members.size(); ++i) {
        if (generation->thens[i]) continue;
        const auto device = failed->second.reason_by_device.find(meeting.members[i].device);
        if (device == failed->second.reason_by_device.end()) continue;
        return {generation,
                {FailureKind::kPeer, Place(meeting) + ": rank " +
                                         std::to_string(meeting.members[i].rank) +
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

// Looks at what waits, a few times within each timeout. Meetings that complete do not wake it, and
// nothing does while none waits.
//
// When it comes late to a look, the process was stopped, or had no processor to run on: then the
// ranks did not run either, and deadlines move by as much.
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
      const Meeting& meeting = generation->meeting;
      std::vector<int64_t> missing;
      std::vector<int64_t> came;
      for (size_t i = 0; i < meeting.members.size(); ++i) {
        (generation->thens[i] ? came : missing).push_back(meeting.members[i].rank);
      }
      FailLocked(generation,
                 {FailureKind::kTimeout,
                  Place(meeting) + ": " + Ranks(std::move(missing)) + " did not come within " +
                      Seconds(Watched(now) - generation->started) + "; " + Ranks(std::move(came)) +
                      " waited (" + Identity(meeting) + ")"},
                 &releases);
      SpreadFailures(meeting.run, &releases);
    }
    lock.unlock();
    for (const auto& [then, outcome] : releases) Deliver(then, outcome);
    releases.clear();
    lock.lock();
  }
}

}  // namespace hloom
