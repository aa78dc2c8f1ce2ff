// Signals between the ranks of a group.
//
// A rank signals by writing its epoch into its own slot of every peer's pad. It then waits until
// every slot of its own pad has reached that epoch. Epochs only grow, so nothing is ever reset,
// and no rank can be more than one epoch ahead: the next one needs every rank's signal.
//
// Signals of other runs are ignored: a sender that left a launch which was given up signals again
// at the same epoch.

#ifndef HLOOM_RUNTIME_CUDA_KERNELS_SYNC_CUH_
#define HLOOM_RUNTIME_CUDA_KERNELS_SYNC_CUH_

#include "device.cuh"
#include "pad.cuh"

namespace hloom {

constexpr unsigned kNobody = ~0u;

// The polls of a signal for each poll of the host's page, which is slow to read.
constexpr unsigned kLooksAtHost = 256;

// The run of a kernel.
__device__ inline unsigned RunOf(const Site& site) {
  return site.run != 0 ? site.run : *const_cast<const volatile unsigned*>(&site.pad->run);
}

__device__ inline Signal SignalAt(const Site& site, unsigned run, unsigned epoch) {
  return static_cast<Signal>(epoch & 0xffffu) << 48 | static_cast<Signal>(run & 0xffffu) << 32 |
         site.tag;
}

// Signals to `peer` that this rank has reached `epoch`; releases this thread's earlier writes.
__device__ inline void SignalPeer(const Site& site, unsigned peer, unsigned run, unsigned epoch) {
  StoreRelease(&site.pad->peers[peer]->signals[site.rank], SignalAt(site, run, epoch));
}

// True for the one thread of the kernel that may write the report.
__device__ inline bool ClaimReport(const Site& site, unsigned epoch) {
  if (atomicExch(&site.pad->failed, 1u) != 0) return false;
  site.pad->host->fault.epoch = epoch;
  site.pad->host->fault.tag = site.tag;
  return true;
}

// Stops the device once the report is visible to the host.
__device__ inline void Fail(const Site& site, Fault fault) {
  __threadfence_system();
  *const_cast<volatile Fault*>(&site.pad->host->fault.fault) = fault;
  __threadfence_system();
  Stop();
}

// The result of a block's wait.
struct Wait {
  unsigned missing[kMaxRanks / 32];
  unsigned other_rank;
  unsigned other_tag;
  bool abandoned;
};

__device__ inline void FailWait(const Site& site, unsigned epoch, const Wait& wait) {
  if (!ClaimReport(site, epoch)) return;
  FaultReport* report = &site.pad->host->fault;
  report->waited_ms = site.stop_ms;
  for (unsigned word = 0; word < kMaxRanks / 32; ++word) {
    report->missing[word] = wait.missing[word];
  }
  report->rank = wait.other_rank;
  report->other_tag = wait.other_tag;
  Fail(site, wait.other_rank == kNobody ? Fault::kTimeout : Fault::kOtherSite);
}

// Whether the host has given up this launch, because some rank will not launch it, so that no rank
// passes it. Always false for launches of a graph, which the host cannot count.
__device__ inline bool IsAbandoned(const Site& site) {
  if (site.run == 0) return false;
  unsigned long long entry = LoadAcquire(&site.pad->host->abandoned[site.run % kAbandonedRuns]);
  return static_cast<unsigned>(entry >> 32) == site.run &&
         site.launch >= static_cast<unsigned>(entry);
}

// Waits for the signal of one rank. False where it does not come; `wait` then holds the reason.
__device__ inline bool AwaitPeer(const Site& site, unsigned peer, unsigned run, unsigned epoch,
                                 Wait* wait) {
  HostPage* host = site.pad->host;
  Signal wanted = SignalAt(site, run, epoch);
  unsigned long long begin_ms = 0;
  bool has_begun = false;
  bool is_late = false;
  bool arrived = false;
  for (unsigned looks = 1;; ++looks) {
    Signal signal = LoadAcquire(&site.pad->signals[peer]);
    short ahead = static_cast<short>(static_cast<unsigned>(signal >> 48) - epoch);
    // A peer that is one epoch ahead has compared the signals itself.
    arrived = ahead > 0 || signal == wanted;
    if (arrived) break;
    if (ahead == 0 && signal >> 32 == wanted >> 32) {
      if (atomicCAS(&wait->other_rank, kNobody, peer) == kNobody) {
        wait->other_tag = static_cast<unsigned>(signal);
      }
      break;
    }
    if (looks % kLooksAtHost != 0) continue;
    if (IsAbandoned(site)) {
      wait->abandoned = true;
      break;
    }
    unsigned long long now_ms = LoadAcquire(&host->alive_ms);
    if (!has_begun) begin_ms = now_ms;
    has_begun = true;
    unsigned long long waited_ms = now_ms - begin_ms;
    if (waited_ms >= site.report_ms) {
      is_late = true;
      *const_cast<volatile unsigned*>(&host->late_tag) = site.tag;
      __threadfence_system();
      *const_cast<volatile unsigned*>(&host->late_ms[peer]) = static_cast<unsigned>(waited_ms);
    }
    if (waited_ms >= site.stop_ms) {
      atomicOr(&wait->missing[peer / 32], 1u << peer % 32);
      break;
    }
  }
  if (is_late) *const_cast<volatile unsigned*>(&host->late_ms[peer]) = 0;
  return arrived;
}

// Waits until every rank has reached `epoch`. Called by the whole block, of at least site.ranks
// threads. False where the launch has been given up, or where a rank is missing for too long or is
// at another site; one thread of the kernel then reports it.
__device__ inline bool AwaitPeers(const Site& site, unsigned run, unsigned epoch) {
  __shared__ Wait wait;
  unsigned peer = threadIdx.x;
  if (peer < kMaxRanks / 32) wait.missing[peer] = 0;
  if (peer == 0) {
    wait.other_rank = kNobody;
    wait.abandoned = false;
  }
  __syncthreads();
  bool arrived = peer >= site.ranks || AwaitPeer(site, peer, run, epoch, &wait);
  if (!__syncthreads_or(!arrived)) return true;
  if (peer != 0) return false;
  if (!wait.abandoned) FailWait(site, epoch, wait);
  return false;
}

}  // namespace hloom

#endif  // HLOOM_RUNTIME_CUDA_KERNELS_SYNC_CUH_
