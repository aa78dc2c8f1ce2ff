// Says whom kernels wait for, and why one stopped its device.
//
// A kernel that cannot go on ends with a trap, for the values after it would be wrong. All that
// CUDA, and so XLA, can tell of that is a launch failure. The kernel's own report is in host
// memory; a thread looks there now and then and writes it out. The same thread tells the kernels
// that the process runs: how long they wait is counted in the time in which it does.

#ifndef HLOOM_RUNTIME_CSRC_CUDA_PADS_FAULT_WATCH_H_
#define HLOOM_RUNTIME_CSRC_CUDA_PADS_FAULT_WATCH_H_

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cuda/pads/collective_memory.h"

namespace hloom::cuda {

// Thread-safe.
class FaultWatch {
 public:
  using Say = std::function<void(const std::string&)>;

  FaultWatch(std::chrono::milliseconds period, Say say) : period_(period), say_(std::move(say)) {}
  ~FaultWatch();
  FaultWatch(const FaultWatch&) = delete;
  FaultWatch& operator=(const FaultWatch&) = delete;

  // Looks at these pads, which outlive the watch, every period. Says a rank's fault once, and once
  // each time that it begins to wait for too long.
  void Add(const CollectiveMemory* pads);

 private:
  struct Watched {
    const CollectiveMemory* pads;
    // By rank.
    std::vector<bool> said_fault;
    std::vector<bool> said_late;
  };

  void Run();
  void Look(Watched* watched) const;

  const std::chrono::milliseconds period_;
  const Say say_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Watched> watched_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace hloom::cuda

#endif  // HLOOM_RUNTIME_CSRC_CUDA_PADS_FAULT_WATCH_H_
