// Collective memory on the host.

#ifndef HLOOM_TESTS_NATIVE_CUDA_HOST_MEMORY_H_
#define HLOOM_TESTS_NATIVE_CUDA_HOST_MEMORY_H_

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "cuda/allocator.h"

namespace hloom::cuda {

// Counts what is alive, and fails where a test wants it to.
class HostAllocator : public Allocator {
 public:
  Problem Connect(const std::vector<Place>&) override { return connect_problem; }

  Problem Allocate(const Place& place, size_t device_bytes, size_t host_bytes,
                   RankMemory* memory) override {
    if (throws) throw std::bad_alloc();
    if (place.ordinal == fails_on) return "device " + std::to_string(place.ordinal) + " is full";
    memory->device = Zeroed(device_bytes);
    memory->host = memory->host_on_device = Zeroed(host_bytes);
    ++ranks_alive;
    return std::nullopt;
  }

  Problem Write(const Place&, void* device, const void* from, size_t bytes) override {
    std::memcpy(device, from, bytes);
    return std::nullopt;
  }

  void Free(const Place&, const RankMemory& memory) override {
    std::free(memory.device);
    std::free(memory.host);
    --ranks_alive;
  }

  std::atomic<int> ranks_alive{0};
  Problem connect_problem;
  int64_t fails_on = -1;
  bool throws = false;

 private:
  static void* Zeroed(size_t bytes) {
    constexpr size_t kLine = 128;
    size_t rounded = (bytes + kLine - 1) / kLine * kLine;
    return std::memset(std::aligned_alloc(kLine, rounded), 0, rounded);
  }
};

}  // namespace hloom::cuda

#endif  // HLOOM_TESTS_NATIVE_CUDA_HOST_MEMORY_H_
