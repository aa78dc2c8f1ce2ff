// The source of collective memory: the devices, or the host in tests.

#ifndef HLOOM_RUNTIME_CSRC_CUDA_DRIVER_ALLOCATOR_H_
#define HLOOM_RUNTIME_CSRC_CUDA_DRIVER_ALLOCATOR_H_

#include <cstddef>
#include <vector>

#include "cuda/driver/driver.h"

namespace hloom::cuda {

// One rank's device.
struct DeviceContext {
  int64_t ordinal = -1;       // The device's number in this process.
  Context context = nullptr;  // The context that the rank's stream belongs to.
};

// The memory of one rank, initially zero.
struct RankMemory {
  void* device = nullptr;          // On the rank's device; every rank of the clique can address it.
  void* host = nullptr;            // On the host; the device writes to it,
  void* host_on_device = nullptr;  // at this address.
};

class Allocator {
 public:
  virtual ~Allocator() = default;

  // Enables peer access between all of these devices.
  virtual MaybeError Connect(const std::vector<DeviceContext>& clique) = 0;

  // Fills in `memory` completely or not at all.
  virtual MaybeError Allocate(const DeviceContext& rank, size_t device_bytes, size_t host_bytes,
                              RankMemory* memory) = 0;

  // Writes to a device's memory; the write is complete when the call returns.
  virtual MaybeError Write(const DeviceContext& rank, void* device, const void* from,
                           size_t bytes) = 0;

  // Frees memory from Allocate.
  virtual void Free(const DeviceContext& rank, const RankMemory& memory) = 0;
};

class DriverAllocator : public Allocator {
 public:
  explicit DriverAllocator(const Driver& driver) : driver_(driver) {}

  MaybeError Connect(const std::vector<DeviceContext>& clique) override;
  MaybeError Allocate(const DeviceContext& rank, size_t device_bytes, size_t host_bytes,
                      RankMemory* memory) override;
  MaybeError Write(const DeviceContext& rank, void* device, const void* from,
                   size_t bytes) override;
  void Free(const DeviceContext& rank, const RankMemory& memory) override;

 private:
  const Driver& driver_;
};

}  // namespace hloom::cuda

#endif  // HLOOM_RUNTIME_CSRC_CUDA_DRIVER_ALLOCATOR_H_
