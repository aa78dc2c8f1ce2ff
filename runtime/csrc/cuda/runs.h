// Which run of a program the ranks of a clique are in, agreed on the host before anything of it is
// launched.
//
// XLA queues the runs of a device one after another, but two host threads that start two runs at
// once may have them queued in different orders on different devices. On the devices each would
// then wait for the other. So the ranks of a clique meet here once in every run, before its first
// launch, and of two runs that cross one is an error.

#ifndef HLOOM_RUNTIME_CSRC_CUDA_RUNS_H_
#define HLOOM_RUNTIME_CSRC_CUDA_RUNS_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda/driver/allocator.h"
#include "cuda/pads/collective_memory.h"

namespace hloom::cuda {

// A rank that comes to a run.
struct Arrival {
  std::vector<int64_t> clique;  // Device ordinals in the order of the ranks.
  size_t rank = 0;
  Place place;
  int64_t run = 0;                       // XLA's id of the run.
  std::chrono::milliseconds timeout{0};  // How long to wait for the other ranks.
};

// A launch as the kernels know it: Site::run and Site::launch.
struct LaunchId {
  uint32_t run = 0;
  uint32_t launch = 0;
};

// The devices that meet, with the pads that they share until the process ends.
class Clique {
 public:
  explicit Clique(std::unique_ptr<CollectiveMemory> pads);

  const CollectiveMemory& pads() const { return *pads_; }

 private:
  friend class Runs;

  // A run in which all ranks have met.
  struct Met {
    int64_t run;
    uint32_t number;                 // What the kernels call it; never 0.
    std::vector<uint32_t> launched;  // By rank: how many launches.
  };

  const std::unique_ptr<CollectiveMemory> pads_;
  // By rank; held while one launches. What runs on a device may wait for a launch of another rank,
  // never for one of its own.
  const std::unique_ptr<std::mutex[]> launching_;
  uint32_t runs_ = 0;
  std::deque<Met> met_;    // The last ones; the ranks are in the newest.
  bool recorded_ = false;  // Whether a graph holds launches, which nobody counts.
};

// Thread-safe. No lock is held while a device is waited for.
class Runs {
 public:
  explicit Runs(Allocator& allocator) : allocator_(allocator) {}
  Runs(const Runs&) = delete;
  Runs& operator=(const Runs&) = delete;

  // Waits until all ranks of the clique have come to the run, for the first call of a rank in it;
  // gives the clique, which lives as long as this, and in `number` what the rank's stream has to
  // write into its pad before any launch, or 0 where it has. Where a rank fails, does not come, or
  // waits in another run for one that waits here, the run is an error for all.
  Problem Enter(const Arrival& arrival, Clique** clique, uint32_t* number);

  // Calls `launch` for a rank that has entered the run, one call at a time for each rank. It is
  // not called where the run has failed or the ranks are in a later one.
  Problem Launch(Clique* clique, size_t rank, int64_t run, bool is_recorded,
                 const std::function<Problem(const LaunchId&)>& launch);

  // Makes the run an error for all ranks that come to it from now on or wait, and lets kernels
  // leave which would wait for those.
  void Fail(int64_t run, const std::string& why);

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Key = std::pair<int64_t, std::vector<int64_t>>;  // The run and the clique.

  // Ranks of a clique that wait for the others in a run.
  struct Meeting {
    int64_t run;
    std::vector<int64_t> devices;
    std::vector<std::optional<Place>> places;  // By rank; of those who have come.
    size_t arrived = 0;
    bool done = false;  // The three below hold.
    Problem problem;
    Clique* clique = nullptr;
    uint32_t number = 0;  // Clique::Met::number.
  };

  Problem Reason(int64_t run) const;
  Problem Join(const Arrival& arrival, std::shared_ptr<Meeting>* meeting);
  void Complete(Meeting* meeting, Lock& lock) noexcept;
  Problem FindOrMake(const Meeting& meeting, Clique** clique, Lock& lock);
  void Await(const Arrival& arrival, const Meeting& meeting, Lock& lock);
  bool Reaches(const Meeting& from, const Meeting& to, std::set<const Meeting*>* seen,
               int64_t* largest) const;
  std::string CrossingText(int64_t run) const;
  void FailLocked(int64_t run, const std::string& why);
  static void AbandonLaunches(const Clique& clique, const Clique::Met& met);

  Allocator& allocator_;
  std::mutex making_;  // Held while a clique's memory is made; taken before the other.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::vector<int64_t>, std::unique_ptr<Clique>> cliques_;
  std::map<Key, std::shared_ptr<Meeting>> meetings_;  // That not all have come to.
  std::map<int64_t, std::string> failed_;             // Why, of the last runs that failed.
  std::deque<int64_t> failed_order_;
};

}  // namespace hloom::cuda

#endif  // HLOOM_RUNTIME_CSRC_CUDA_RUNS_H_
