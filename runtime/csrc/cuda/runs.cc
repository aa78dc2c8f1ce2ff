#include "cuda/runs.h"

#include <algorithm>
#include <exception>

#include "cuda/pads/signal_pads.h"
#include "rendezvous.h"

namespace hloom::cuda {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// How often a rank that waits looks about.
constexpr milliseconds kLook{100};

// How long two runs may cross before one is given up: where XLA has a thread for each, the ranks
// that are missing may yet come.
constexpr milliseconds kGrace{500};

// Enough to answer latecomers; old ones fall out, so nothing grows.
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
    : pads_(std::move(pads)), launching_(new std::mutex[pads_->places().size()]) {}

Problem Runs::Enter(const Arrival& arrival, Clique** clique, uint32_t* number) {
  *number = 0;
  Lock lock(mutex_);
  if (Problem problem = Reason(arrival.run)) return problem;
  auto known = cliques_.find(arrival.clique);
  if (known != cliques_.end()) {
    *clique = known->second.get();
    // One alone waits for nobody, and what it launches need not be in any order of runs.
    if (arrival.clique.size() == 1) return std::nullopt;
    const std::deque<Clique::Met>& met = (*clique)->met_;
    for (size_t i = 0; i < met.size(); ++i) {
      if (met[i].run != arrival.run) continue;
      // Another call of the same program.
      if (i + 1 == met.size()) return std::nullopt;
      FailLocked(arrival.run, Superseded());
      return Superseded();
    }
  }
  std::shared_ptr<Meeting> meeting;
  if (Problem problem = Join(arrival, &meeting)) return problem;
  if (meeting->arrived == meeting->places.size()) {
    Complete(meeting.get(), lock);
  } else {
    Await(arrival, *meeting, lock);
  }
  if (meeting->problem) return meeting->problem;
  *clique = meeting->clique;
  // A run that has come between is found out at the first launch.
  if (arrival.clique.size() > 1) *number = meeting->number;
  return std::nullopt;
}

Problem Runs::Launch(Clique* clique, size_t rank, int64_t run, bool is_recorded,
                     const std::function<Problem(const LaunchId&)>& launch) {
  // One alone is in no run.
  if (clique->pads().places().size() == 1) return launch(LaunchId{1, 0});
  std::lock_guard<std::mutex> launching(clique->launching_[rank]);
  LaunchId id;
  {
    Lock lock(mutex_);
    if (Problem problem = Reason(run)) return problem;
    if (is_recorded) {
      clique->recorded_ = true;
    } else {
      Clique::Met& met = clique->met_.back();
      if (met.run != run) {
        FailLocked(run, Superseded());
        return Superseded();
      }
      id = LaunchId{met.number, met.launched[rank]++};
    }
  }
  Problem problem = launch(id);
  if (!problem || is_recorded) return problem;
  Lock lock(mutex_);
  for (Clique::Met& met : clique->met_) {
    if (met.run == run) --met.launched[rank];
  }
  FailLocked(run, *problem);
  return problem;
}

void Runs::Fail(int64_t run, const std::string& why) {
  Lock lock(mutex_);
  FailLocked(run, "another device has failed in this run: " + why);
}

// Why the run has failed; nothing where it has not.
Problem Runs::Reason(int64_t run) const {
  auto failed = failed_.find(run);
  return failed == failed_.end() ? Problem() : failed->second;
}

Problem Runs::Join(const Arrival& arrival, std::shared_ptr<Meeting>* meeting) {
  Key key(arrival.run, arrival.clique);
  auto found = meetings_.find(key);
  if (found == meetings_.end()) {
    auto made = std::make_shared<Meeting>();
    made->run = arrival.run;
    made->devices = arrival.clique;
    made->places.resize(arrival.clique.size());
    found = meetings_.emplace(key, std::move(made)).first;
  }
  std::optional<Place>& place = found->second->places[arrival.rank];
  if (place) {
    return "device " + std::to_string(arrival.place.ordinal) + " comes twice at once to one run";
  }
  place = arrival.place;
  *meeting = found->second;
  if (++(*meeting)->arrived == (*meeting)->places.size()) meetings_.erase(found);
  return std::nullopt;
}

// Whatever happens, nobody is left waiting.
void Runs::Complete(Meeting* meeting, Lock& lock) noexcept {
  try {
    Problem problem = FindOrMake(*meeting, &meeting->clique, lock);
    if (!problem) problem = Reason(meeting->run);
    if (problem) {
      meeting->problem = problem;
      FailLocked(meeting->run, *problem);
    } else {
      Clique& clique = *meeting->clique;
      if (++clique.runs_ == 0) ++clique.runs_;
      clique.met_.push_back(
          {meeting->run, clique.runs_, std::vector<uint32_t>(meeting->places.size(), 0)});
      if (clique.met_.size() > kRememberedRuns) clique.met_.pop_front();
      meeting->number = clique.runs_;
    }
  } catch (const std::exception& error) {
    if (!lock.owns_lock()) lock.lock();
    meeting->problem = error.what();
  }
  meeting->done = true;
  changed_.notify_all();
}

Problem Runs::FindOrMake(const Meeting& meeting, Clique** clique, Lock& lock) {
  auto known = cliques_.find(meeting.devices);
  if (known == cliques_.end()) {
    lock.unlock();
    std::lock_guard<std::mutex> making(making_);
    lock.lock();
    // Another run may have made it meanwhile.
    known = cliques_.find(meeting.devices);
    if (known == cliques_.end()) {
      lock.unlock();
      std::vector<Place> places;
      for (const std::optional<Place>& place : meeting.places) places.push_back(*place);
      std::unique_ptr<CollectiveMemory> pads;
      Problem problem = MakeSignalPads(allocator_, std::move(places), &pads);
      lock.lock();
      if (problem) {
        return *problem + ", while making signals for devices " + RanksText(meeting.devices);
      }
      known = cliques_.emplace(meeting.devices, std::make_unique<Clique>(std::move(pads))).first;
    }
  }
  *clique = known->second.get();
  return std::nullopt;
}

void Runs::Await(const Arrival& arrival, const Meeting& meeting, Lock& lock) {
  // Counted in looks: time in which the process is stopped is not waited.
  milliseconds waited{0};
  milliseconds crossed{0};
  Clock::time_point before = Clock::now();
  while (!meeting.done) {
    changed_.wait_for(lock, std::min(kLook, arrival.timeout));
    auto elapsed = std::chrono::duration_cast<milliseconds>(Clock::now() - before);
    before += elapsed;
    elapsed = std::min(elapsed, 2 * kLook);
    // The last one sees to it then.
    if (meeting.done || meeting.arrived == meeting.places.size()) continue;
    waited += elapsed;
    std::set<const Meeting*> seen;
    int64_t largest = meeting.run;
    crossed = Reaches(meeting, meeting, &seen, &largest) ? crossed + elapsed : milliseconds{0};
    if (crossed >= kGrace) {
      FailLocked(largest, CrossingText(largest));
    } else if (waited >= arrival.timeout) {
      std::vector<int64_t> missing;
      for (size_t rank = 0; rank < meeting.places.size(); ++rank) {
        if (!meeting.places[rank]) missing.push_back(meeting.devices[rank]);
      }
      std::string text = (missing.size() == 1 ? "device " : "devices ") + RanksText(missing) +
                         " did not come to this run within " +
                         std::to_string(arrival.timeout.count()) + " ms";
      FailLocked(meeting.run, text);
    }
  }
}

// Whether who waits in `from` waits for somebody who waits in `to`, or in a meeting of which the
// same holds. `largest` becomes the largest run on the way.
bool Runs::Reaches(const Meeting& from, const Meeting& to, std::set<const Meeting*>* seen,
                   int64_t* largest) const {
  for (size_t rank = 0; rank < from.places.size(); ++rank) {
    if (from.places[rank]) continue;
    for (const auto& [key, next] : meetings_) {
      const std::vector<int64_t>& devices = next->devices;
      auto found = std::find(devices.begin(), devices.end(), from.devices[rank]);
      if (found == devices.end() || !next->places[found - devices.begin()]) continue;
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
  for (const auto& [key, meeting] : meetings_) {
    if (meeting->run != run) continue;
    auto arrived = std::find_if(meeting->places.begin(), meeting->places.end(),
                                [](const auto& place) { return place.has_value(); });
    auto missing = std::find(meeting->places.begin(), meeting->places.end(), std::nullopt);
    text += ": device " + std::to_string(meeting->devices[arrived - meeting->places.begin()]) +
            " took this one first, device " +
            std::to_string(meeting->devices[missing - meeting->places.begin()]) +
            " the other, and each would wait for the other for ever";
    break;
  }
  return text + ". This run is given up and the other goes on; " + kRemedy;
}

void Runs::FailLocked(int64_t run, const std::string& why) {
  if (failed_.emplace(run, why).second) {
    failed_order_.push_back(run);
    if (failed_order_.size() > kRememberedFailures) {
      failed_.erase(failed_order_.front());
      failed_order_.pop_front();
    }
  }
  for (auto entry = meetings_.begin(); entry != meetings_.end();) {
    if (entry->first.first == run) {
      entry->second->problem = why;
      entry->second->done = true;
      entry = meetings_.erase(entry);
    } else {
      ++entry;
    }
  }
  for (const auto& [devices, clique] : cliques_) {
    for (const Clique::Met& met : clique->met_) {
      if (met.run == run) AbandonLaunches(*clique, met);
    }
  }
  changed_.notify_all();
}

// Nothing more of the run is launched now, on any rank: kernels that some rank has not launched
// would wait for ever.
void Runs::AbandonLaunches(const Clique& clique, const Clique::Met& met) {
  // Where a graph holds launches, ranks need not have counted the same ones.
  if (clique.recorded_) return;
  Abandon(clique.pads(), met.number, *std::min_element(met.launched.begin(), met.launched.end()));
}

}  // namespace hloom::cuda
