#include "cuda/signal_pads.h"

#include <cstdio>
#include <mutex>
#include <unordered_map>

#include "rendezvous.h"

namespace hloom::cuda {
namespace {

// The texts of all sites by their tags; they stay, there are as many as places in programs.
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

std::string DeviceText(const CollectiveMemory& memory, size_t rank) {
  const std::vector<int64_t>& clique = memory.key().clique;
  return rank < clique.size() ? "device " + std::to_string(clique[rank]) : "an unknown device";
}

std::string TimeoutText(const CollectiveMemory& memory, const FaultReport& report) {
  std::vector<int64_t> missing;
  const std::vector<int64_t>& clique = memory.key().clique;
  for (size_t rank = 0; rank < clique.size(); ++rank) {
    if (report.missing[rank / 32] >> rank % 32 & 1) missing.push_back(clique[rank]);
  }
  char waited[32];
  std::snprintf(waited, sizeof(waited), "%.1f", static_cast<double>(report.waited_ns) * 1e-9);
  return "waited " + std::string(waited) +
         (missing.size() == 1 ? " s for device " : " s for devices ") + RanksText(missing) +
         ", which did not come";
}

std::string BoundsText(const CollectiveMemory& memory, const FaultReport& report) {
  return "was to send rows " + std::to_string(report.offset) + " to " +
         std::to_string(report.offset) + " + " + std::to_string(report.rows) + " of " +
         (report.output != 0 ? "the output on " : "its operand to ") +
         DeviceText(memory, report.rank) + ", which has " + std::to_string(report.limit) + " rows";
}

}  // namespace

MemoryKey SignalPadsKey(std::vector<int64_t> clique) {
  return MemoryKey{std::move(clique), kPadBytes, sizeof(FaultReport), "signals"};
}

Problem PrepareSignalPads(Allocator& allocator, const CollectiveMemory& memory) {
  size_t ranks = memory.places().size();
  for (size_t rank = 0; rank < ranks; ++rank) {
    Pad pad{};
    pad.report = static_cast<FaultReport*>(memory.of_rank(rank).host_on_device);
    for (size_t peer = 0; peer < ranks; ++peer) pad.peers[peer] = PadOf(memory, peer);
    // Nobody signals yet: no rank gets its memory before this is done for all.
    Problem problem =
        allocator.Write(memory.places()[rank], PadOf(memory, rank), &pad, sizeof(pad));
    if (problem) return problem;
  }
  return std::nullopt;
}

Pad* PadOf(const CollectiveMemory& memory, size_t rank) {
  return static_cast<Pad*>(memory.of_rank(rank).device);
}

const FaultReport* ReportOf(const CollectiveMemory& memory, size_t rank) {
  return static_cast<const FaultReport*>(memory.of_rank(rank).host);
}

uint32_t SiteTag(std::string_view what, std::string_view site, int64_t channel) {
  std::string text =
      std::string(what) + ", " + std::string(site) + " (channel " + std::to_string(channel) + ")";
  uint32_t tag = Hash(text);
  SiteTexts::OfProcess().Remember(tag, std::move(text));
  return tag;
}

std::string FaultText(const CollectiveMemory& memory, size_t rank) {
  // The device writes this word last, after a fence.
  const FaultReport* report = ReportOf(memory, rank);
  Fault fault = __atomic_load_n(&report->fault, __ATOMIC_ACQUIRE);
  if (fault == Fault::kNone) return "";
  std::string what;
  if (fault == Fault::kTimeout) {
    what = TimeoutText(memory, *report);
  } else if (fault == Fault::kOtherSite) {
    what = "met " + DeviceText(memory, report->rank) + ", which is at " +
           SiteTexts::OfProcess().Text(report->other_tag) +
           ": the devices run their collectives in different orders";
  } else {
    what = BoundsText(memory, *report);
  }
  return SiteTexts::OfProcess().Text(report->tag) + ": " + DeviceText(memory, rank) + " " + what;
}

}  // namespace hloom::cuda
