#include "cuda/driver/allocator.h"

#include <cstring>
#include <string>

namespace hloom::cuda {
namespace {

constexpr ResultCode kPeerAccessAlreadyEnabled = 704;
constexpr unsigned kPortableAndMapped = 1 | 2;  // CU_MEMHOSTALLOC_PORTABLE, _DEVICEMAP

DevicePointer Address(void* pointer) { return reinterpret_cast<DevicePointer>(pointer); }

Problem DeviceOf(const Driver& driver, const Place& place, int* device) {
  CurrentContext current(driver, place.context);
  if (current.problem()) return current.problem();
  return driver.Check(driver.cuCtxGetDevice(device), "cuCtxGetDevice");
}

// Not the whole device: a barrier that runs there may wait for what this thread does next.
Problem SynchronizeDefaultStream(const Driver& driver) {
  return driver.Check(driver.cuStreamSynchronize(nullptr), "cuStreamSynchronize");
}

}  // namespace

Problem DriverAllocator::Connect(const std::vector<Place>& clique) {
  std::vector<int> devices(clique.size());
  for (size_t rank = 0; rank < clique.size(); ++rank) {
    if (Problem problem = DeviceOf(driver_, clique[rank], &devices[rank])) return problem;
  }
  for (size_t rank = 0; rank < clique.size(); ++rank) {
    CurrentContext current(driver_, clique[rank].context);
    if (current.problem()) return current.problem();
    for (size_t peer = 0; peer < clique.size(); ++peer) {
      if (devices[peer] == devices[rank]) continue;
      int can = 0;
      Problem problem =
          driver_.Check(driver_.cuDeviceCanAccessPeer(&can, devices[rank], devices[peer]),
                        "cuDeviceCanAccessPeer");
      if (problem) return problem;
      if (can == 0) {
        return "device " + std::to_string(clique[rank].ordinal) +
               " cannot address the memory of device " + std::to_string(clique[peer].ordinal) +
               ": no NVLink, and no peer access over PCIe, connects them";
      }
      ResultCode code = driver_.cuCtxEnablePeerAccess(clique[peer].context, 0);
      if (code == kPeerAccessAlreadyEnabled) continue;
      if ((problem = driver_.Check(code, "cuCtxEnablePeerAccess"))) return problem;
    }
  }
  return std::nullopt;
}

Problem DriverAllocator::Allocate(const Place& place, size_t device_bytes, size_t host_bytes,
                                  RankMemory* memory) {
  CurrentContext current(driver_, place.context);
  if (current.problem()) return current.problem();
  RankMemory made;
  DevicePointer device = 0;
  Problem problem = driver_.Check(driver_.cuMemAlloc_v2(&device, device_bytes), "cuMemAlloc");
  if (problem) return problem;
  made.device = reinterpret_cast<void*>(device);
  problem = driver_.Check(driver_.cuMemsetD8_v2(device, 0, device_bytes), "cuMemsetD8");
  if (!problem) {
    problem = driver_.Check(driver_.cuMemHostAlloc(&made.host, host_bytes, kPortableAndMapped),
                            "cuMemHostAlloc");
  }
  if (!problem) {
    std::memset(made.host, 0, host_bytes);
    DevicePointer mapped = 0;
    problem = driver_.Check(driver_.cuMemHostGetDevicePointer_v2(&mapped, made.host, 0),
                            "cuMemHostGetDevicePointer");
    made.host_on_device = reinterpret_cast<void*>(mapped);
  }
  // A memset may return before it is done, and a peer's first signal must not be wiped out.
  if (!problem) problem = SynchronizeDefaultStream(driver_);
  if (problem) {
    Free(place, made);
    return problem;
  }
  *memory = made;
  return std::nullopt;
}

Problem DriverAllocator::Write(const Place& place, void* device, const void* from, size_t bytes) {
  CurrentContext current(driver_, place.context);
  if (current.problem()) return current.problem();
  Problem problem =
      driver_.Check(driver_.cuMemcpyHtoD_v2(Address(device), from, bytes), "cuMemcpyHtoD");
  if (problem) return problem;
  // The copy from pageable memory may return when the bytes are staged.
  return SynchronizeDefaultStream(driver_);
}

void DriverAllocator::Free(const Place& place, const RankMemory& memory) {
  CurrentContext current(driver_, place.context);
  if (current.problem()) return;  // The context is gone, and its memory with it.
  if (memory.device != nullptr) driver_.cuMemFree_v2(Address(memory.device));
  if (memory.host != nullptr) driver_.cuMemFreeHost(memory.host);
}

}  // namespace hloom::cuda
