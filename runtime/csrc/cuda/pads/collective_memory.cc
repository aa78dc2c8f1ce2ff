#include "cuda/pads/collective_memory.h"

#include <utility>

namespace hloom::cuda {

MaybeError CollectiveMemory::Make(Allocator& allocator, std::vector<DeviceContext> devices,
                                  size_t device_bytes, size_t host_bytes,
                                  std::unique_ptr<CollectiveMemory>* memory) {
  auto made = std::make_unique<CollectiveMemory>();
  made->devices_ = std::move(devices);
  made->memory_.reserve(made->devices_.size());
  MaybeError error = allocator.Connect(made->devices_);
  for (size_t rank = 0; rank < made->devices_.size() && !error; ++rank) {
    RankMemory of_rank;
    error = allocator.Allocate(made->devices_[rank], device_bytes, host_bytes, &of_rank);
    if (!error) made->memory_.push_back(of_rank);
  }
  if (error) {
    made->Free(allocator);
    return error;
  }
  *memory = std::move(made);
  return std::nullopt;
}

void CollectiveMemory::Free(Allocator& allocator) const {
  for (size_t rank = 0; rank < memory_.size(); ++rank) {
    allocator.Free(devices_[rank], memory_[rank]);
  }
}

}  // namespace hloom::cuda
