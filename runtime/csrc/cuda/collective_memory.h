// Memory that the ranks of a clique share, allocated once and kept while somebody uses it.
//
// The ranks agree before anybody gets memory: the first ones wait until all have come, and all get
// the same memory or the same error. A rank that wants something else is an error with both keys.

#ifndef HLOOM_RUNTIME_CUDA_COLLECTIVE_MEMORY_H_
#define HLOOM_RUNTIME_CUDA_COLLECTIVE_MEMORY_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/allocator.h"

namespace hloom::cuda {

// What is shared under one name. Who asks for an equal key gets the same memory.
struct MemoryKey {
  std::vector<int64_t> clique;  // Device ordinals in the order of the ranks.
  size_t device_bytes = 0;      // Of each rank.
  size_t host_bytes = 0;        // Of each rank.
  std::string use;              // What for, e.g. "signals".

  // For people: "4096 + 128 bytes for signals on devices 0, 1".
  std::string Text() const;

  friend bool operator<(const MemoryKey& a, const MemoryKey& b) {
    return std::tie(a.clique, a.device_bytes, a.host_bytes, a.use) <
           std::tie(b.clique, b.device_bytes, b.host_bytes, b.use);
  }
};

class CollectiveMemory {
 public:
  const MemoryKey& key() const { return key_; }
  const std::vector<Place>& places() const { return places_; }
  const RankMemory& of_rank(size_t rank) const { return memory_[rank]; }

 private:
  friend class CollectiveMemoryCache;
  MemoryKey key_;
  std::vector<Place> places_;
  std::vector<RankMemory> memory_;
};

// What one rank asks for.
struct MemoryRequest {
  MemoryKey key;
  size_t rank = 0;
  Place place;
  int64_t run = 0;                       // The execution; ranks meet within one.
  std::chrono::milliseconds timeout{0};  // How long to wait for the other ranks.
};

// Thread-safe. Lives longer than all memory that it gave.
//
// No lock is held, and no launching thread waits, while a device is waited for: what runs there may
// be a barrier that waits for a launch of this very thread.
class CollectiveMemoryCache {
 public:
  // Makes fresh memory, all zero, ready for its use; called once, before any rank gets it.
  using Prepare = std::function<Problem(Allocator&, const CollectiveMemory&)>;

  explicit CollectiveMemoryCache(Allocator& allocator) : allocator_(allocator) {}
  ~CollectiveMemoryCache();
  CollectiveMemoryCache(const CollectiveMemoryCache&) = delete;
  CollectiveMemoryCache& operator=(const CollectiveMemoryCache&) = delete;

  // Gives the memory of the key: at once where it exists, else when all ranks of the clique have
  // asked for it in the same run. It is freed, once its devices are idle, with the last pointer.
  Problem Acquire(const MemoryRequest& request, const Prepare& prepare,
                  std::shared_ptr<const CollectiveMemory>* memory);

  // How many allocations have not been freed.
  size_t alive() const;

 private:
  using Meeting = std::pair<int64_t, std::vector<int64_t>>;  // The run and the clique.
  using Lock = std::unique_lock<std::mutex>;

  // Ranks that wait for the others of their clique.
  struct Pending {
    std::vector<std::unique_ptr<MemoryRequest>> by_rank;
    size_t arrived = 0;
    bool complete = false;  // All have come: the last one makes the memory.
    bool done = false;      // The two below hold.
    Problem problem;
    std::shared_ptr<const CollectiveMemory> memory;
  };

  std::shared_ptr<const CollectiveMemory> Live(const MemoryKey& key);
  Problem Join(const MemoryRequest& request, std::shared_ptr<Pending>* pending);
  Problem Await(const MemoryRequest& request, const std::shared_ptr<Pending>& pending, Lock& lock,
                std::shared_ptr<const CollectiveMemory>* memory);
  void Complete(Pending* pending, const Prepare& prepare, Lock& lock);
  Problem Allocate(const Pending& pending, const Prepare& prepare, CollectiveMemory* memory);
  void Free(const CollectiveMemory& memory);
  void Retire(const CollectiveMemory* memory);
  void FreeRetired();

  Allocator& allocator_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<MemoryKey, std::weak_ptr<const CollectiveMemory>> live_;
  std::map<Meeting, std::shared_ptr<Pending>> pending_;
  size_t alive_ = 0;

  // Nobody uses these any more; a thread waits for their devices, then frees them.
  std::deque<std::unique_ptr<const CollectiveMemory>> retired_;
  std::condition_variable retired_changed_;
  bool stopping_ = false;
  std::thread freeing_;
};

}  // namespace hloom::cuda

#endif  // HLOOM_RUNTIME_CUDA_COLLECTIVE_MEMORY_H_
