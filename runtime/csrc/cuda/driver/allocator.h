// Where collective memory comes from: the devices, or the host in tests.

#ifndef HLOOM_RUNTIME_CSRC_CUDA_DRIVER_ALLOCATOR_H_
#define HLOOM_RUNTIME_CSRC_CUDA_DRIVER_ALLOCATOR_H_

#include <cstddef>
#include <vector>

#include "cuda/driver/driver.h"

namespace hloom::cuda {

// One device as a rank uses it.
struct Place {
  int64_t ordinal = -1;       // The device's number in this process.
  Context context = nullptr;  // The context that the rank's stream belongs to.
};

// What one rank holds, all of it zero at first.
struct RankMemory {
  void* device = nullptr;          // On its device; every rank of the clique can address it.
  void* host = nullptr;            // On the host; the device writes to it,
  void* host_on_device = nullptr;  // at this address.
};

class Allocator {
 public:
  virtual ~Allocator() = default;

  // Lets every one of these devices address the memory of all others.
  virtual Problem Connect(const std::vector<Place>& clique) = 0;

  // Fills in `memory`, whole or not at all.
  virtual Problem Allocate(const Place& place, size_t device_bytes, size_t host_bytes,
                           RankMemory* memory) = 0;

  // Writes to a device's memory; it is there when the call returns.
  virtual Problem Write(const Place& place, void* device, const void* from, size_t bytes) = 0;

  // Frees what Allocate gave.
  virtual void Free(const Place& place, const RankMemory& memory) = 0;
};

class DriverAllocator : public Allocator {
 public:
  explicit DriverAllocator(const Driver& driver) : driver_(driver) {}

  Problem Connect(const std::vector<Place>& clique) override;
  Problem Allocate(const Place& place, size_t device_bytes, size_t host_bytes,
                   RankMemory* memory) override;
  Problem Write(const Place& place, void* device, const void* from, size_t bytes) override;
  void Free(const Place& place, const RankMemory& memory) override;

 private:
  const Driver& driver_;
};

}  // namespace hloom::cuda

#endif  // HLOOM_RUNTIME_CSRC_CUDA_DRIVER_ALLOCATOR_H_
