#include "cuda/pads/collective_memory.h"

#include <utility>

namespace hloom::cuda {

Problem CollectiveMemory::Make(Allocator& allocator, std::vector<Place> places, size_t device_bytes,
                               size_t host_bytes, std::unique_ptr<CollectiveMemory>* memory) {
  auto made = std::make_unique<CollectiveMemory>();
  made->places_ = std::move(places);
  made->memory_.reserve(made->places_.size());
  Problem problem = allocator.Connect(made->places_);
  for (size_t rank = 0; rank < made->places_.size() && !problem; ++rank) {
    RankMemory of_rank;
    problem = allocator.Allocate(made->places_[rank], device_bytes, host_bytes, &of_rank);
    if (!problem) made->memory_.push_back(of_rank);
  }
  if (problem) {
    made->Free(allocator);
    return problem;
  }
  *memory = std::move(made);
  return std::nullopt;
}

void CollectiveMemory::Free(Allocator& allocator) const {
  for (size_t rank = 0; rank < memory_.size(); ++rank) {
    allocator.Free(places_[rank], memory_[rank]);
  }
}

}  // namespace hloom::cuda
