#include "cuda/collective_memory.h"

#include "rendezvous.h"

namespace hloom::cuda {
namespace {

std::string Listing(const std::vector<int64_t>& numbers) {
  std::string text;
  for (int64_t number : numbers) {
    if (!text.empty()) text += ", ";
    text += std::to_string(number);
  }
  return text;
}

}  // namespace

std::string MemoryKey::Text() const {
  return std::to_string(device_bytes) + " + " + std::to_string(host_bytes) + " bytes for " + use +
         " on devices " + Listing(clique);
}

CollectiveMemoryCache::~CollectiveMemoryCache() {
  {
    Lock lock(mutex_);
    stopping_ = true;
    retired_changed_.notify_all();
  }
  if (freeing_.joinable()) freeing_.join();
}

Problem CollectiveMemoryCache::Acquire(const MemoryRequest& request, const Prepare& prepare,
                                       std::shared_ptr<const CollectiveMemory>* memory) {
  Lock lock(mutex_);
  // Whoever finds memory there may go on: all ranks have agreed on it.
  if ((*memory = Live(request.key))) return std::nullopt;
  std::shared_ptr<Pending> pending;
  if (Problem problem = Join(request, &pending)) return problem;
  if (pending->complete) Complete(pending.get(), prepare, lock);
  return Await(request, pending, lock, memory);
}

size_t CollectiveMemoryCache::alive() const {
  Lock lock(mutex_);
  return alive_;
}

std::shared_ptr<const CollectiveMemory> CollectiveMemoryCache::Live(const MemoryKey& key) {
  auto found = live_.find(key);
  return found == live_.end() ? nullptr : found->second.lock();
}

Problem CollectiveMemoryCache::Join(const MemoryRequest& request,
                                    std::shared_ptr<Pending>* pending) {
  Meeting meeting(request.run, request.key.clique);
  std::shared_ptr<Pending>& slot = pending_[meeting];
  if (slot == nullptr) {
    slot = std::make_shared<Pending>();
    slot->by_rank.resize(request.key.clique.size());
  }
  std::unique_ptr<MemoryRequest>& mine = slot->by_rank[request.rank];
  if (mine != nullptr) {
    return "rank " + std::to_string(request.rank) + " asks twice at once, for " + mine->key.Text() +
           " and for " + request.key.Text();
  }
  mine = std::make_unique<MemoryRequest>(request);
  *pending = slot;
  if (++slot->arrived == slot->by_rank.size()) {
    slot->complete = true;
    pending_.erase(meeting);
  }
  return std::nullopt;
}

Problem CollectiveMemoryCache::Await(const MemoryRequest& request,
                                     const std::shared_ptr<Pending>& pending, Lock& lock,
                                     std::shared_ptr<const CollectiveMemory>* memory) {
  auto deadline = std::chrono::steady_clock::now() + request.timeout;
  for (;;) {
    if (pending->done) {
      *memory = pending->memory;
      return pending->problem;
    }
    // The memory may have been made by ranks that met in another run, and where those go on with
    // it, nobody else comes here.
    if (!pending->complete && (*memory = Live(request.key))) {
      pending->by_rank[request.rank] = nullptr;
      --pending->arrived;
      return std::nullopt;
    }
    if (pending->complete) {
      changed_.wait(lock);
    } else if (changed_.wait_until(lock, deadline) == std::cv_status::timeout &&
               !pending->complete && !pending->done) {
      std::vector<int64_t> missing;
      for (size_t rank = 0; rank < pending->by_rank.size(); ++rank) {
        if (pending->by_rank[rank] == nullptr) missing.push_back(static_cast<int64_t>(rank));
      }
      pending->problem = "ranks " + RanksText(missing) + " did not come within " +
                         std::to_string(request.timeout.count()) + " ms to share " +
                         request.key.Text();
      pending->done = true;
      pending_.erase(Meeting(request.run, request.key.clique));
      changed_.notify_all();
    }
  }
}

void CollectiveMemoryCache::Complete(Pending* pending, const Prepare& prepare, Lock& lock) {
  const MemoryKey& key = pending->by_rank[0]->key;
  for (size_t rank = 1; rank < pending->by_rank.size() && !pending->problem; ++rank) {
    const MemoryKey& other = pending->by_rank[rank]->key;
    if (key < other || other < key) {
      pending->problem = "the ranks do not agree on what they share: rank 0 wants " + key.Text() +
                         ", rank " + std::to_string(rank) + " wants " + other.Text();
    }
  }
  if (!pending->problem) {
    auto made = std::make_unique<CollectiveMemory>();
    lock.unlock();
    Problem problem = Allocate(*pending, prepare, made.get());
    lock.lock();
    if (problem) {
      pending->problem = problem;
    } else {
      ++alive_;
      pending->memory = std::shared_ptr<const CollectiveMemory>(
          made.release(), [this](const CollectiveMemory* last) { Retire(last); });
      live_[key] = pending->memory;
    }
  }
  pending->done = true;
  changed_.notify_all();
}

Problem CollectiveMemoryCache::Allocate(const Pending& pending, const Prepare& prepare,
                                        CollectiveMemory* memory) {
  memory->key_ = pending.by_rank[0]->key;
  for (const auto& request : pending.by_rank) memory->places_.push_back(request->place);
  Problem problem = allocator_.Connect(memory->places_);
  for (size_t rank = 0; rank < memory->places_.size() && !problem; ++rank) {
    RankMemory of_rank;
    problem = allocator_.Allocate(memory->places_[rank], memory->key_.device_bytes,
                                  memory->key_.host_bytes, &of_rank);
    if (!problem) memory->memory_.push_back(of_rank);
  }
  if (!problem && prepare) problem = prepare(allocator_, *memory);
  if (!problem) return std::nullopt;
  Free(*memory);
  return *problem + ", while sharing " + memory->key_.Text();
}

void CollectiveMemoryCache::Free(const CollectiveMemory& memory) {
  for (size_t rank = 0; rank < memory.memory_.size(); ++rank) {
    allocator_.Free(memory.places_[rank], memory.memory_[rank]);
  }
}

void CollectiveMemoryCache::Retire(const CollectiveMemory* memory) {
  Lock lock(mutex_);
  // By now other memory may stand under the same key.
  auto found = live_.find(memory->key());
  if (found != live_.end() && found->second.expired()) live_.erase(found);
  retired_.emplace_back(memory);
  if (!freeing_.joinable()) freeing_ = std::thread([this] { FreeRetired(); });
  retired_changed_.notify_all();
}

void CollectiveMemoryCache::FreeRetired() {
  Lock lock(mutex_);
  for (;;) {
    retired_changed_.wait(lock, [this] { return stopping_ || !retired_.empty(); });
    if (retired_.empty()) return;
    std::unique_ptr<const CollectiveMemory> memory = std::move(retired_.front());
    retired_.pop_front();
    lock.unlock();
    // A launch may be in flight on any of the devices, and it writes to all of them.
    bool idle = true;
    for (const Place& place : memory->places()) {
      if (allocator_.Synchronize(place)) idle = false;
    }
    // A device that cannot be waited for has lost its context, and the memory with it.
    if (idle) Free(*memory);
    lock.lock();
    if (idle) --alive_;
  }
}

}  // namespace hloom::cuda
