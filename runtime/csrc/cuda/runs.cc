#include "cuda/runs.h"

#include <algorithm>
#include <exception>

#include "cuda/pads/signal_pads.h"
#include "rendezvous.h"

namespace hloom::cuda {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The period in which a waiting rank checks for errors.
constexpr milliseconds kLook{100};

// The time that two runs may cross before one is given up: where XLA has a thread for each, the
// missing ranks may yet come.
constexpr milliseconds kGrace{500};

// Enough to answer latecomers; older ones are forgotten, so nothing grows.
constexpr size_t kRememberedFailures = 256;
constexpr size_t kRememberedRuns = 16;

constexpr char kRemedy[] =
    "start programs that share devices from one thread, or hold a lock around the calls that "
    "start them";

std::string Superseded() {
  return std::string(
             "two runs on the same devices were started at once, and the devices have begun the "
             "other one: ") +
         kRemedy;
}

}  // namespace

Clique::Clique(std::unique_ptr<CollectiveMemory> pads)
    : pads_(std::move(pads)), launching_(new std::mutex[pads_->devices().size()]) {}

MaybeError Runs::Enter(const RunEntry& entry, Clique** clique, uint32_t* number) {
  *number = 0;
  Lock lock(mutex_);
  if (MaybeError error = ErrorOf(entry.run)) return error;
  auto known = cliques_.find(entry.clique);
  if (known != cliques_.end()) {
    *clique = known->second.get();
    // A single device waits for no other, and its launches need no order of runs.
    if (entry.clique.size() == 1) return std::nullopt;
    const std::deque<Clique::EnteredRun>& entered = (*clique)->entered_;
    for (size_t i = 0; i < entered.size(); ++i) {
      if (entered[i].run != entry.run) continue;
      // Another call of the same program.
      if (i + 1 == entered.size()) return std::nullopt;
      FailLocked(entry.run, Superseded());
      return Superseded();
    }
  }
  std::shared_ptr<PendingRun> pending;
  if (MaybeError error = Join(entry, &pending)) return error;
  if (pending->arrived == pending->contexts.size()) {
    Complete(pending.get(), lock);
  } else {
    Await(entry, *pending, lock);
  }
  if (pending->error) return pending->error;
  *clique = pending->clique;
  // A run that was entered in between is detected at the first launch.
  if (entry.clique.size() > 1) *number = pending->number;
  return std::nullopt;
}

MaybeError Runs::Launch(Clique* clique, size_t rank, int64_t run, bool is_recorded,
                        const std::function<MaybeError(const LaunchId&)>& launch) {
  // A single device is in no run.
  if (clique->pads().devices().size() == 1) return launch(LaunchId{1, 0});
  std::lock_guard<std::mutex> launching(clique->launching_[rank]);
  LaunchId id;
  {
    Lock lock(mutex_);
    if (MaybeError error = ErrorOf(run)) return error;
    if (is_recorded) {
      clique->recorded_ = true;
    } else {
      Clique::EnteredRun& entered = clique->entered_.back();
      if (entered.run != run) {
        FailLocked(run, Superseded());
        return Superseded();
      }
      id = LaunchId{entered.number, entered.launched[rank]++};
    }
  }
  MaybeError error = launch(id);
  if (!error || is_recorded) return error;
  Lock lock(mutex_);
  for (Clique::EnteredRun& entered : clique->entered_) {
    if (entered.run == run) --entered.launched[rank];
  }
  FailLocked(run, *error);
  return error;
}

void Runs::Fail(int64_t run, const std::string& error) {
  Lock lock(mutex_);
  FailLocked(run, "another device has failed in this run: " + error);
}

// The error of a failed run; empty where it has not failed.
MaybeError Runs::ErrorOf(int64_t run) const {
  auto failed = failed_.find(run);
  return failed == failed_.end() ? MaybeError() : failed->second;
}

MaybeError Runs::Join(const RunEntry& entry, std::shared_ptr<PendingRun>* pending) {
  Key key(entry.run, entry.clique);
  auto found = pending_.find(key);
  if (found == pending_.end()) {
    auto made = std::make_shared<PendingRun>();
    made->run = entry.run;
    made->ordinals = entry.clique;
    made->contexts.resize(entry.clique.size());
    found = pending_.emplace(key, std::move(made)).first;
  }
  std::optional<DeviceContext>& context = found->second->contexts[entry.rank];
  if (context) {
    return "device " + std::to_string(entry.device.ordinal) + " comes twice at once to one run";
  }
  context = entry.device;
  *pending = found->second;
  if (++(*pending)->arrived == (*pending)->contexts.size()) pending_.erase(found);
  return std::nullopt;
}

// Releases the waiting ranks whatever happens.
void Runs::Complete(PendingRun* pending, Lock& lock) noexcept {
  try {
    MaybeError error = FindOrMake(*pending, &pending->clique, lock);
    if (!error) error = ErrorOf(pending->run);
    if (error) {
      pending->error = error;
      FailLocked(pending->run, *error);
    } else {
      Clique& clique = *pending->clique;
      if (++clique.runs_ == 0) ++clique.runs_;
      clique.entered_.push_back(
          {pending->run, clique.runs_, std::vector<uint32_t>(pending->contexts.size(), 0)});
      if (clique.entered_.size() > kRememberedRuns) clique.entered_.pop_front();
      pending->number = clique.runs_;
    }
  } catch (const std::exception& error) {
    if (!lock.owns_lock()) lock.lock();
    pending->error = error.what();
  }
  pending->done = true;
  changed_.notify_all();
}

MaybeError Runs::FindOrMake(const PendingRun& pending, Clique** clique, Lock& lock) {
  auto known = cliques_.find(pending.ordinals);
  if (known == cliques_.end()) {
    lock.unlock();
    std::lock_guard<std::mutex> making(making_);
    lock.lock();
    // Another run may have made the clique meanwhile.
    known = cliques_.find(pending.ordinals);
    if (known == cliques_.end()) {
      lock.unlock();
      std::vector<DeviceContext> contexts;
      for (const std::optional<DeviceContext>& place : pending.contexts) contexts.push_back(*place);
      std::unique_ptr<CollectiveMemory> pads;
      MaybeError error = MakeSignalPads(allocator_, std::move(contexts), &pads);
      lock.lock();
      if (error) {
        return *error + ", while making signals for devices " + RanksText(pending.ordinals);
      }
      known = cliques_.emplace(pending.ordinals, std::make_unique<Clique>(std::move(pads))).first;
    }
  }
  *clique = known->second.get();
  return std::nullopt;
}

void Runs::Await(const RunEntry& entry, const PendingRun& pending, Lock& lock) {
  // Time in which the process is stopped does not count.
  milliseconds waited{0};
  milliseconds crossed{0};
  Clock::time_point before = Clock::now();
  while (!pending.done) {
    changed_.wait_for(lock, std::min(kLook, entry.timeout));
    auto elapsed = std::chrono::duration_cast<milliseconds>(Clock::now() - before);
    before += elapsed;
    elapsed = std::min(elapsed, 2 * kLook);
    // The last rank completes the run then.
    if (pending.done || pending.arrived == pending.contexts.size()) continue;
    waited += elapsed;
    std::set<const PendingRun*> seen;
    int64_t largest = pending.run;
    crossed = Reaches(pending, pending, &seen, &largest) ? crossed + elapsed : milliseconds{0};
    if (crossed >= kGrace) {
      FailLocked(largest, CrossingText(largest));
    } else if (waited >= entry.timeout) {
      std::vector<int64_t> missing;
      for (size_t rank = 0; rank < pending.contexts.size(); ++rank) {
        if (!pending.contexts[rank]) missing.push_back(pending.ordinals[rank]);
      }
      std::string text = (missing.size() == 1 ? "device " : "devices ") + RanksText(missing) +
                         " did not come to this run within " +
                         std::to_string(entry.timeout.count()) + " ms";
      FailLocked(pending.run, text);
    }
  }
}

// Whether a rank that `from` waits for waits in `to`, directly or through other pending runs.
// `largest` becomes the largest run on the way.
bool Runs::Reaches(const PendingRun& from, const PendingRun& to, std::set<const PendingRun*>* seen,
                   int64_t* largest) const {
  for (size_t rank = 0; rank < from.contexts.size(); ++rank) {
    if (from.contexts[rank]) continue;
    for (const auto& [key, next] : pending_) {
      const std::vector<int64_t>& devices = next->ordinals;
      auto found = std::find(devices.begin(), devices.end(), from.ordinals[rank]);
      if (found == devices.end() || !next->contexts[found - devices.begin()]) continue;
      if (next.get() != &to) {
        if (!seen->insert(next.get()).second || !Reaches(*next, to, seen, largest)) continue;
      }
      *largest = std::max(*largest, next->run);
      return true;
    }
  }
  return false;
}

std::string Runs::CrossingText(int64_t run) const {
  std::string text = "two runs on the same devices were started at once";
  for (const auto& [key, pending] : pending_) {
    if (pending->run != run) continue;
    auto arrived = std::find_if(pending->contexts.begin(), pending->contexts.end(),
                                [](const auto& place) { return place.has_value(); });
    auto missing = std::find(pending->contexts.begin(), pending->contexts.end(), std::nullopt);
    text += ": device " + std::to_string(pending->ordinals[arrived - pending->contexts.begin()]) +
            " took this one first, device " +
            std::to_string(pending->ordinals[missing - pending->contexts.begin()]) +
            " the other, and each would wait for the other for ever";
    break;
  }
  return text + ". This run is given up and the other goes on; " + kRemedy;
}

void Runs::FailLocked(int64_t run, const std::string& error) {
  if (failed_.emplace(run, error).second) {
    failed_order_.push_back(run);
    if (failed_order_.size() > kRememberedFailures) {
      failed_.erase(failed_order_.front());
      failed_order_.pop_front();
    }
  }
  for (auto found = pending_.begin(); found != pending_.end();) {
    if (found->first.first == run) {
      found->second->error = error;
      found->second->done = true;
      found = pending_.erase(found);
    } else {
      ++found;
    }
  }
  for (const auto& [devices, clique] : cliques_) {
    for (const Clique::EnteredRun& entered : clique->entered_) {
      if (entered.run == run) AbandonLaunches(*clique, entered);
    }
  }
  changed_.notify_all();
}

// Lets kernels leave whose peers will not be launched: nothing more of the run is launched on any
// rank from now on.
void Runs::AbandonLaunches(const Clique& clique, const Clique::EnteredRun& entered) {
  // Where a graph holds launches, the ranks' counts need not agree.
  if (clique.recorded_) return;
  Abandon(clique.pads(), entered.number,
          *std::min_element(entered.launched.begin(), entered.launched.end()));
}

}  // namespace hloom::cuda
