// A thread that logs which peers kernels wait for, and why one stopped its device.
//
// A kernel that cannot continue ends with a trap, for the values after it would be wrong. CUDA, and
// so XLA, reports only a launch failure. The kernel's own report is in host memory, where the
// thread finds and logs it. The same thread advances the clock in which kernels count their
// waiting, so that time in which the process is stopped does not count.

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
  using Log = std::function<void(const std::string&)>;

  FaultWatch(std::chrono::milliseconds period, Log log) : period_(period), log_(std::move(log)) {}
  ~FaultWatch();
  FaultWatch(const FaultWatch&) = delete;
  FaultWatch& operator=(const FaultWatch&) = delete;

  // Checks these pads, which outlive the watch, every period. Logs a rank's fault once, and a wait
  // that is too long once each time it begins.
  void Add(const CollectiveMemory* pads);

 private:
  struct Watched {
    const CollectiveMemory* pads;
    // By rank.
    std::vector<bool> logged_fault;
    std::vector<bool> logged_late;
  };

  void Run();
  void Check(Watched* watched) const;

  const std::chrono::milliseconds period_;
  const Log log_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Watched> watched_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace hloom::cuda

#endif  // HLOOM_RUNTIME_CSRC_CUDA_PADS_FAULT_WATCH_H_
