// The memory that the ranks of a clique share.

#ifndef HLOOM_RUNTIME_CSRC_CUDA_PADS_COLLECTIVE_MEMORY_H_
#define HLOOM_RUNTIME_CSRC_CUDA_PADS_COLLECTIVE_MEMORY_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "cuda/driver/allocator.h"

namespace hloom::cuda {

// Freed only where it could not be allocated completely: launches and graphs hold its addresses,
// and only waiting for a device could show that none is left. A clique has one.
class CollectiveMemory {
 public:
  // Enables peer access between the ranks and allocates zeroed memory of these sizes for each.
  static MaybeError Make(Allocator& allocator, std::vector<DeviceContext> devices,
                         size_t device_bytes, size_t host_bytes,
                         std::unique_ptr<CollectiveMemory>* memory);

  // By rank.
  const std::vector<DeviceContext>& devices() const { return devices_; }
  const RankMemory& of_rank(size_t rank) const { return memory_[rank]; }

  // Frees all of it; nothing may use it any more.
  void Free(Allocator& allocator) const;

 private:
  std::vector<DeviceContext> devices_;
  std::vector<RankMemory> memory_;
};

}  // namespace hloom::cuda

#endif  // HLOOM_RUNTIME_CSRC_CUDA_PADS_COLLECTIVE_MEMORY_H_
