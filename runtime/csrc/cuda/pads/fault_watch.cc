#include "cuda/pads/fault_watch.h"

#include <algorithm>
#include <utility>

#include "cuda/pads/signal_pads.h"
#include "signals_blocked.h"

namespace hloom::cuda {

using Clock = std::chrono::steady_clock;

FaultWatch::~FaultWatch() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void FaultWatch::Add(const CollectiveMemory* pads) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Watched& watched : watched_) {
    if (watched.pads == pads) return;
  }
  std::vector<bool> nothing(pads->devices().size(), false);
  watched_.push_back({pads, nothing, nothing});
  if (thread_.joinable()) return;
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { Run(); });
}

void FaultWatch::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  Clock::time_point before = Clock::now();
  while (!stopping_) {
    changed_.wait_for(lock, period_);
    Clock::time_point now = Clock::now();
    auto elapsed = std::chrono::duration_cast<std::chrono::milliseconds>(now - before);
    before += elapsed;
    for (Watched& watched : watched_) {
      // More than a few periods means that the process was stopped.
      AddAlive(*watched.pads, std::min(elapsed, 10 * period_));
      Check(&watched);
    }
  }
}

void FaultWatch::Check(Watched* watched) const {
  const CollectiveMemory& pads = *watched->pads;
  for (size_t rank = 0; rank < pads.devices().size(); ++rank) {
    std::string late = LateText(pads, rank);
    if (!late.empty() && !watched->logged_late[rank]) {
      log_(late + "; it goes on waiting");
    }
    watched->logged_late[rank] = !late.empty();
    if (watched->logged_fault[rank]) continue;
    std::string fault = FaultText(pads, rank);
    if (fault.empty()) continue;
    log_(fault + ". The kernel stopped its device");
    watched->logged_fault[rank] = true;
  }
}

}  // namespace hloom::cuda
