// Says why a kernel stopped its device.
//
// A kernel that cannot go on ends with a trap, for the values after it would be wrong. All that
// CUDA, and so XLA, can tell of that is a launch failure. The kernel's own report is in host
// memory; a thread looks there now and then and writes it out.

#ifndef HLOOM_RUNTIME_CUDA_FAULT_WATCH_H_
#define HLOOM_RUNTIME_CUDA_FAULT_WATCH_H_

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cuda/collective_memory.h"

namespace hloom::cuda {

// Thread-safe.
class FaultWatch {
 public:
  using Say = std::function<void(const std::string&)>;

  FaultWatch(std::chrono::milliseconds period, Say say) : period_(period), say_(std::move(say)) {}
  ~FaultWatch();
  FaultWatch(const FaultWatch&) = delete;
  FaultWatch& operator=(const FaultWatch&) = delete;

  // Looks at the memory, which holds pads, as long as it is in use; says each rank's fault once.
  void Add(const std::shared_ptr<const CollectiveMemory>& memory);

 private:
  struct Watched {
    std::weak_ptr<const CollectiveMemory> memory;
    std::vector<bool> said;  // By rank.
  };

  void Run();
  void Look(const CollectiveMemory& memory, std::vector<bool>* said) const;

  const std::chrono::milliseconds period_;
  const Say say_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Watched> watched_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace hloom::cuda

#endif  // HLOOM_RUNTIME_CUDA_FAULT_WATCH_H_
