#include "cuda/driver/allocator.h"

#include <cstring>
#include <string>

namespace hloom::cuda {
namespace {

constexpr ResultCode kPeerAccessAlreadyEnabled = 704;
constexpr unsigned kPortableAndMapped = 1 | 2;  // CU_MEMHOSTALLOC_PORTABLE, _DEVICEMAP

DevicePointer Address(void* pointer) { return reinterpret_cast<DevicePointer>(pointer); }

MaybeError DeviceOf(const Driver& driver, const DeviceContext& rank, int* device) {
  CurrentContext current(driver, rank.context);
  if (current.error()) return current.error();
  return driver.Check(driver.cuCtxGetDevice(device), "cuCtxGetDevice");
}

// Not the whole device: a barrier that runs there may wait for this thread's next step.
MaybeError SynchronizeDefaultStream(const Driver& driver) {
  return driver.Check(driver.cuStreamSynchronize(nullptr), "cuStreamSynchronize");
}

}  // namespace

MaybeError DriverAllocator::Connect(const std::vector<DeviceContext>& clique) {
  std::vector<int> devices(clique.size());
  for (size_t rank = 0; rank < clique.size(); ++rank) {
    if (MaybeError error = DeviceOf(driver_, clique[rank], &devices[rank])) return error;
  }
  for (size_t rank = 0; rank < clique.size(); ++rank) {
    CurrentContext current(driver_, clique[rank].context);
    if (current.error()) return current.error();
    for (size_t peer = 0; peer < clique.size(); ++peer) {
      if (devices[peer] == devices[rank]) continue;
      int can = 0;
      MaybeError error =
          driver_.Check(driver_.cuDeviceCanAccessPeer(&can, devices[rank], devices[peer]),
                        "cuDeviceCanAccessPeer");
      if (error) return error;
      if (can == 0) {
        return "device " + std::to_string(clique[rank].ordinal) +
               " cannot address the memory of device " + std::to_string(clique[peer].ordinal) +
               ": no NVLink, and no peer access over PCIe, connects them";
      }
      ResultCode code = driver_.cuCtxEnablePeerAccess(clique[peer].context, 0);
      if (code == kPeerAccessAlreadyEnabled) continue;
      if ((error = driver_.Check(code, "cuCtxEnablePeerAccess"))) return error;
    }
  }
  return std::nullopt;
}

MaybeError DriverAllocator::Allocate(const DeviceContext& rank, size_t device_bytes,
                                     size_t host_bytes, RankMemory* memory) {
  CurrentContext current(driver_, rank.context);
  if (current.error()) return current.error();
  RankMemory made;
  DevicePointer device = 0;
  MaybeError error = driver_.Check(driver_.cuMemAlloc_v2(&device, device_bytes), "cuMemAlloc");
  if (error) return error;
  made.device = reinterpret_cast<void*>(device);
  error = driver_.Check(driver_.cuMemsetD8_v2(device, 0, device_bytes), "cuMemsetD8");
  if (!error) {
    error = driver_.Check(driver_.cuMemHostAlloc(&made.host, host_bytes, kPortableAndMapped),
                          "cuMemHostAlloc");
  }
  if (!error) {
    std::memset(made.host, 0, host_bytes);
    DevicePointer mapped = 0;
    error = driver_.Check(driver_.cuMemHostGetDevicePointer_v2(&mapped, made.host, 0),
                          "cuMemHostGetDevicePointer");
    made.host_on_device = reinterpret_cast<void*>(mapped);
  }
  // A memset may return before it is done, and a peer's first signal must not be wiped out.
  if (!error) error = SynchronizeDefaultStream(driver_);
  if (error) {
    Free(rank, made);
    return error;
  }
  *memory = made;
  return std::nullopt;
}

MaybeError DriverAllocator::Write(const DeviceContext& rank, void* device, const void* from,
                                  size_t bytes) {
  CurrentContext current(driver_, rank.context);
  if (current.error()) return current.error();
  MaybeError error =
      driver_.Check(driver_.cuMemcpyHtoD_v2(Address(device), from, bytes), "cuMemcpyHtoD");
  if (error) return error;
  // The copy from pageable memory may return when the bytes are staged.
  return SynchronizeDefaultStream(driver_);
}

void DriverAllocator::Free(const DeviceContext& rank, const RankMemory& memory) {
  CurrentContext current(driver_, rank.context);
  if (current.error()) return;  // The context is gone, and its memory with it.
  if (memory.device != nullptr) driver_.cuMemFree_v2(Address(memory.device));
  if (memory.host != nullptr) driver_.cuMemFreeHost(memory.host);
}

}  // namespace hloom::cuda
