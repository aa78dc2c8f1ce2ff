// An allocator of collective memory on the host.

#ifndef HLOOM_RUNTIME_CSRC_TESTS_CUDA_HOST_MEMORY_H_
#define HLOOM_RUNTIME_CSRC_TESTS_CUDA_HOST_MEMORY_H_

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <set>
#include <vector>

#include "cuda/driver/allocator.h"

namespace hloom::cuda {

// Counts live allocations, and fails on demand.
class HostAllocator : public Allocator {
 public:
  // Frees the live allocations, for pads live as long as the process.
  ~HostAllocator() override {
    for (void* memory : alive_) std::free(memory);
  }

  MaybeError Connect(const std::vector<DeviceContext>&) override { return connect_error; }

  MaybeError Allocate(const DeviceContext& rank, size_t device_bytes, size_t host_bytes,
                      RankMemory* memory) override {
    if (throws) throw std::bad_alloc();
    if (rank.ordinal == fails_on) return "device " + std::to_string(rank.ordinal) + " is full";
    memory->device = Zeroed(device_bytes);
    memory->host = memory->host_on_device = Zeroed(host_bytes);
    ++ranks_alive;
    return std::nullopt;
  }

  MaybeError Write(const DeviceContext&, void* device, const void* from, size_t bytes) override {
    std::memcpy(device, from, bytes);
    return std::nullopt;
  }

  void Free(const DeviceContext&, const RankMemory& memory) override {
    for (void* part : {memory.device, memory.host}) {
      std::lock_guard<std::mutex> lock(mutex_);
      alive_.erase(part);
      std::free(part);
    }
    --ranks_alive;
  }

  std::atomic<int> ranks_alive{0};
  MaybeError connect_error;
  int64_t fails_on = -1;
  bool throws = false;

 private:
  void* Zeroed(size_t bytes) {
    constexpr size_t kLine = 128;
    size_t rounded = (bytes + kLine - 1) / kLine * kLine;
    void* memory = std::memset(std::aligned_alloc(kLine, rounded), 0, rounded);
    std::lock_guard<std::mutex> lock(mutex_);
    return *alive_.insert(memory).first;
  }

  std::mutex mutex_;
  std::set<void*> alive_;
};

}  // namespace hloom::cuda

#endif  // HLOOM_RUNTIME_CSRC_TESTS_CUDA_HOST_MEMORY_H_
