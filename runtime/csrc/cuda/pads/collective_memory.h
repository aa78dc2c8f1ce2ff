// Memory that the ranks of a clique share.

#ifndef HLOOM_RUNTIME_CSRC_CUDA_PADS_COLLECTIVE_MEMORY_H_
#define HLOOM_RUNTIME_CSRC_CUDA_PADS_COLLECTIVE_MEMORY_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "cuda/driver/allocator.h"

namespace hloom::cuda {

// Never freed but where it could not be made whole: launches and graphs hold its addresses, nobody
// can say of a device that none of them is left without waiting for it, and a clique has one.
class CollectiveMemory {
 public:
  // Allocates so many bytes for each rank, all zero, after letting the ranks address each other.
  static Problem Make(Allocator& allocator, std::vector<Place> places, size_t device_bytes,
                      size_t host_bytes, std::unique_ptr<CollectiveMemory>* memory);

  // By rank.
  const std::vector<Place>& places() const { return places_; }
  const RankMemory& of_rank(size_t rank) const { return memory_[rank]; }

  // Frees all of it; nothing may use it any more.
  void Free(Allocator& allocator) const;

 private:
  std::vector<Place> places_;
  std::vector<RankMemory> memory_;
};

}  // namespace hloom::cuda

#endif  // HLOOM_RUNTIME_CSRC_CUDA_PADS_COLLECTIVE_MEMORY_H_
