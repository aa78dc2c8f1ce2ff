#include "cuda/pads/signal_pads.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <unordered_map>

#include "rendezvous.h"

namespace hloom::cuda {
namespace {

// The texts of all sites by tag. They are kept: their number is that of sites in programs.
class SiteTexts {
 public:
  static SiteTexts& OfProcess() {
    static SiteTexts& texts = *new SiteTexts();
    return texts;
  }

  void Remember(uint32_t tag, std::string text) {
    std::lock_guard<std::mutex> lock(mutex_);
    texts_.emplace(tag, std::move(text));
  }

  std::string Text(uint32_t tag) const {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = texts_.find(tag);
    return found == texts_.end() ? "another program's site" : found->second;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<uint32_t, std::string> texts_;
};

// FNV-1a, 32 bits: http://www.isthe.com/chongo/tech/comp/fnv/.
uint32_t Hash(std::string_view text) {
  uint32_t hash = 2166136261u;
  for (unsigned char byte : text) hash = (hash ^ byte) * 16777619u;
  return hash;
}

std::string DeviceText(const CollectiveMemory& pads, size_t rank) {
  const std::vector<DeviceContext>& devices = pads.devices();
  return rank < devices.size() ? "device " + std::to_string(devices[rank].ordinal)
                               : "an unknown device";
}

// "waited 61.0 s for devices 2, 3, which did not come"
std::string WaitText(const char* verb, uint64_t waited_ms, const std::vector<int64_t>& missing,
                     const char* end) {
  char waited[32];
  std::snprintf(waited, sizeof(waited), "%.1f", static_cast<double>(waited_ms) * 1e-3);
  return std::string(verb) + " " + waited +
         (missing.size() == 1 ? " s for device " : " s for devices ") + RanksText(missing) + end;
}

std::string TimeoutText(const CollectiveMemory& pads, const FaultReport& report) {
  std::vector<int64_t> missing;
  const std::vector<DeviceContext>& devices = pads.devices();
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    if (report.missing[rank / 32] >> rank % 32 & 1) missing.push_back(devices[rank].ordinal);
  }
  return WaitText("waited", report.waited_ms, missing, ", which did not come");
}

std::string BoundsText(const CollectiveMemory& pads, const FaultReport& report) {
  return "was to send rows " + std::to_string(report.offset) + " to " +
         std::to_string(report.offset) + " + " + std::to_string(report.rows) + " of " +
         (report.output != 0 ? "the output on " : "its operand to ") +
         DeviceText(pads, report.rank) + ", which has " + std::to_string(report.limit) + " rows";
}

// Loads a word that the device stores after the data it announces.
template <typename T>
T Acquire(const T* word) {
  T value;  // __atomic_load_n takes integers and pointers only: Clang refuses it an enumeration
  __atomic_load(word, &value, __ATOMIC_ACQUIRE);
  return value;
}

}  // namespace

MaybeError MakeSignalPads(Allocator& allocator, std::vector<DeviceContext> devices,
                          std::unique_ptr<CollectiveMemory>* pads) {
  std::unique_ptr<CollectiveMemory> made;
  MaybeError error =
      CollectiveMemory::Make(allocator, std::move(devices), kPadBytes, sizeof(HostPage), &made);
  if (error) return error;
  size_t ranks = made->devices().size();
  for (size_t rank = 0; rank < ranks && !error; ++rank) {
    Pad pad{};
    pad.host = static_cast<HostPage*>(made->of_rank(rank).host_on_device);
    for (size_t peer = 0; peer < ranks; ++peer) pad.peers[peer] = PadOf(*made, peer);
    // No rank signals yet: none gets its memory before all pads are written.
    error = allocator.Write(made->devices()[rank], PadOf(*made, rank), &pad, sizeof(pad));
  }
  if (error) {
    made->Free(allocator);
    return error;
  }
  *pads = std::move(made);
  return std::nullopt;
}

Pad* PadOf(const CollectiveMemory& pads, size_t rank) {
  return static_cast<Pad*>(pads.of_rank(rank).device);
}

HostPage* PageOf(const CollectiveMemory& pads, size_t rank) {
  return static_cast<HostPage*>(pads.of_rank(rank).host);
}

void AddAlive(const CollectiveMemory& pads, std::chrono::milliseconds more) {
  for (size_t rank = 0; rank < pads.devices().size(); ++rank) {
    unsigned long long* alive_ms = &PageOf(pads, rank)->alive_ms;
    __atomic_store_n(alive_ms, *alive_ms + static_cast<unsigned long long>(more.count()),
                     __ATOMIC_RELEASE);
  }
}

void Abandon(const CollectiveMemory& pads, uint32_t run, uint32_t launch) {
  unsigned long long entry = static_cast<unsigned long long>(run) << 32 | launch;
  for (size_t rank = 0; rank < pads.devices().size(); ++rank) {
    __atomic_store_n(&PageOf(pads, rank)->abandoned[run % kAbandonedRuns], entry, __ATOMIC_RELEASE);
  }
}

uint32_t SiteTag(std::string_view kind, std::string_view site, int64_t channel) {
  std::string text =
      std::string(kind) + ", " + std::string(site) + " (channel " + std::to_string(channel) + ")";
  uint32_t tag = Hash(text);
  SiteTexts::OfProcess().Remember(tag, std::move(text));
  return tag;
}

std::string FaultText(const CollectiveMemory& pads, size_t rank) {
  const FaultReport& report = PageOf(pads, rank)->fault;
  Fault fault = Acquire(&report.fault);
  if (fault == Fault::kNone) return "";
  std::string description;
  if (fault == Fault::kTimeout) {
    description = TimeoutText(pads, report);
  } else if (fault == Fault::kOtherSite) {
    description = "met " + DeviceText(pads, report.rank) + ", which is at " +
                  SiteTexts::OfProcess().Text(report.other_tag) +
                  ": the devices run their collectives in different orders";
  } else {
    description = BoundsText(pads, report);
  }
  return SiteTexts::OfProcess().Text(report.tag) + ": " + DeviceText(pads, rank) + " " +
         description;
}

std::string LateText(const CollectiveMemory& pads, size_t rank) {
  const HostPage& page = *PageOf(pads, rank);
  std::vector<int64_t> missing;
  unsigned waited_ms = 0;
  for (size_t peer = 0; peer < pads.devices().size(); ++peer) {
    unsigned late_ms = Acquire(&page.late_ms[peer]);
    if (late_ms == 0) continue;
    missing.push_back(pads.devices()[peer].ordinal);
    waited_ms = std::max(waited_ms, late_ms);
  }
  if (missing.empty()) return "";
  return SiteTexts::OfProcess().Text(Acquire(&page.late_tag)) + ": " + DeviceText(pads, rank) +
         " " + WaitText("has waited", waited_ms, missing, "");
}

}  // namespace hloom::cuda
