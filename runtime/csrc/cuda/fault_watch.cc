#include "cuda/fault_watch.h"

#include <utility>

#include "cuda/signal_pads.h"

namespace hloom::cuda {

FaultWatch::~FaultWatch() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void FaultWatch::Add(const std::shared_ptr<const CollectiveMemory>& memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Watched& watched : watched_) {
    if (watched.memory.lock() == memory) return;
  }
  watched_.push_back({memory, std::vector<bool>(memory->places().size(), false)});
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  changed_.notify_all();
}

void FaultWatch::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    if (watched_.empty()) {
      changed_.wait(lock);
    } else {
      changed_.wait_for(lock, period_);
    }
    std::vector<Watched> kept;
    for (Watched& watched : watched_) {
      std::shared_ptr<const CollectiveMemory> memory = watched.memory.lock();
      if (memory == nullptr) continue;
      Look(*memory, &watched.said);
      kept.push_back(std::move(watched));
    }
    watched_ = std::move(kept);
  }
}

void FaultWatch::Look(const CollectiveMemory& memory, std::vector<bool>* said) const {
  for (size_t rank = 0; rank < said->size(); ++rank) {
    if ((*said)[rank]) continue;
    std::string text = FaultText(memory, rank);
    if (text.empty()) continue;
    say_(text);
    (*said)[rank] = true;
  }
}

}  // namespace hloom::cuda
