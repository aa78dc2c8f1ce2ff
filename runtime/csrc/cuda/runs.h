// The run that the ranks of a clique are in, agreed on the host before its first launch.
//
// XLA queues the runs of a device one after another, but two host threads that start two runs at
// once may have them queued in different orders on different devices, where each would then wait
// for the other. So the ranks of a clique enter every run together here, before its first launch,
// and of two runs that cross one fails.

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

// A rank's request to enter a run.
struct RunEntry {
  std::vector<int64_t> clique;  // Device ordinals in the order of the ranks.
  size_t rank = 0;
  DeviceContext device;
  int64_t run = 0;                       // XLA's id of the run.
  std::chrono::milliseconds timeout{0};  // For the other ranks.
};

// The identity of a launch in the kernels: Site::run and Site::launch.
struct LaunchId {
  uint32_t run = 0;
  uint32_t launch = 0;
};

// Devices that synchronize with each other, with the pads that they share until the process ends.
class Clique {
 public:
  explicit Clique(std::unique_ptr<CollectiveMemory> pads);

  const CollectiveMemory& pads() const { return *pads_; }

 private:
  friend class Runs;

  // A run that all ranks have entered.
  struct EnteredRun {
    int64_t run;
    uint32_t number;                 // The run's number in the kernels; never 0.
    std::vector<uint32_t> launched;  // By rank: the number of launches.
  };

  const std::unique_ptr<CollectiveMemory> pads_;
  // By rank; held during a launch. Work on a device may wait for a launch of another rank, never
  // for one of its own.
  const std::unique_ptr<std::mutex[]> launching_;
  uint32_t runs_ = 0;
  std::deque<EnteredRun> entered_;  // The last runs; the ranks are in the newest.
  bool recorded_ = false;           // Whether a graph holds launches, which are not counted.
};

// Thread-safe. No lock is held while waiting for a device.
class Runs {
 public:
  explicit Runs(Allocator& allocator) : allocator_(allocator) {}
  Runs(const Runs&) = delete;
  Runs& operator=(const Runs&) = delete;

  // Waits until all ranks of the clique have entered the run, at a rank's first call in it. Sets
  // `clique`, which lives as long as this, and `number` to the value that the rank's stream has to
  // write into its pad before any launch, or 0 where it has written it. The run fails for all ranks
  // where one fails, does not come, or waits in another run for one that waits here.
  MaybeError Enter(const RunEntry& entry, Clique** clique, uint32_t* number);

  // Calls `launch` for a rank that has entered the run, one call at a time for each rank. An error
  // without a call where the run has failed or the ranks are in a later one.
  MaybeError Launch(Clique* clique, size_t rank, int64_t run, bool is_recorded,
                    const std::function<MaybeError(const LaunchId&)>& launch);

  // Fails the run for all ranks that wait in it or enter it later, and lets kernels leave that
  // would wait for those.
  void Fail(int64_t run, const std::string& error);

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Key = std::pair<int64_t, std::vector<int64_t>>;  // The run and the clique.

  // A run that some ranks of a clique have entered.
  struct PendingRun {
    int64_t run;
    std::vector<int64_t> ordinals;                       // By rank, as is:
    std::vector<std::optional<DeviceContext>> contexts;  // Empty for ranks that have not come.
    size_t arrived = 0;
    bool done = false;  // The three members below are final.
    MaybeError error;
    Clique* clique = nullptr;
    uint32_t number = 0;  // Clique::EnteredRun::number.
  };

  MaybeError ErrorOf(int64_t run) const;
  MaybeError Join(const RunEntry& entry, std::shared_ptr<PendingRun>* pending);
  void Complete(PendingRun* pending, Lock& lock) noexcept;
  MaybeError FindOrMake(const PendingRun& pending, Clique** clique, Lock& lock);
  void Await(const RunEntry& entry, const PendingRun& pending, Lock& lock);
  bool Reaches(const PendingRun& from, const PendingRun& to, std::set<const PendingRun*>* seen,
               int64_t* largest) const;
  std::string CrossingText(int64_t run) const;
  void FailLocked(int64_t run, const std::string& error);
  static void AbandonLaunches(const Clique& clique, const Clique::EnteredRun& entered);

  Allocator& allocator_;
  std::mutex making_;  // Held while a clique's memory is made; taken before the other.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::vector<int64_t>, std::unique_ptr<Clique>> cliques_;
  std::map<Key, std::shared_ptr<PendingRun>> pending_;
  std::map<int64_t, std::string> failed_;  // By run, the error of the last ones that failed.
  std::deque<int64_t> failed_order_;
};

}  // namespace hloom::cuda

#endif  // HLOOM_RUNTIME_CSRC_CUDA_RUNS_H_
