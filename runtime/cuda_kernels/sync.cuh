// Signals between the ranks of a group.
//
// A rank signals by writing its epoch into its own slot of every peer's pad. It then waits until
// every slot of its own pad has reached that epoch. Epochs only grow, so nothing is ever reset,
// and no rank can be more than one epoch ahead: the next one needs every rank's signal.

#ifndef HLOOM_SYNC_CUH_
#define HLOOM_SYNC_CUH_

#include "device.cuh"
#include "pad.cuh"

namespace hloom {

constexpr unsigned kNobody = ~0u;

// Tells `peer` that this rank has reached `epoch`, with all that it has written before.
__device__ inline void SignalPeer(const Site& site, unsigned peer, unsigned epoch) {
  Signal signal = static_cast<Signal>(epoch) << 32 | site.tag;
  StoreRelease(&site.pad->peers[peer]->signals[site.rank], signal);
}

// Lets one thread of the kernel write the report; the others get false and just return.
__device__ inline bool ClaimReport(const Site& site, unsigned epoch) {
  if (atomicExch(&site.pad->failed, 1u) != 0) return false;
  site.pad->report->epoch = epoch;
  site.pad->report->tag = site.tag;
  return true;
}

// Ends the kernel after the report has become visible to the host.
__device__ inline void Fail(const Site& site, Fault fault) {
  __threadfence_system();
  site.pad->report->fault = fault;
  __threadfence_system();
  Stop();
}

// What the threads of a block found while they waited.
struct Wait {
  unsigned missing[kMaxRanks / 32];
  unsigned other_rank;
  unsigned other_tag;
};

__device__ inline void FailWait(const Site& site, unsigned epoch, const Wait& wait,
                                unsigned long long waited_ns) {
  if (!ClaimReport(site, epoch)) return;
  FaultReport* report = site.pad->report;
  report->waited_ns = waited_ns;
  for (unsigned word = 0; word < kMaxRanks / 32; ++word) {
    report->missing[word] = wait.missing[word];
  }
  report->rank = wait.other_rank;
  report->other_tag = wait.other_tag;
  Fail(site, wait.other_rank == kNobody ? Fault::kTimeout : Fault::kOtherSite);
}

// Waits until every rank has reached `epoch`; for the whole block, at least site.ranks threads.
// Returns false, with the report written by one thread of the kernel, where a rank is missing for
// longer than the timeout or stands at another site.
__device__ inline bool AwaitPeers(const Site& site, unsigned epoch) {
  __shared__ Wait wait;
  unsigned peer = threadIdx.x;
  if (peer < kMaxRanks / 32) wait.missing[peer] = 0;
  if (peer == 0) wait.other_rank = kNobody;
  __syncthreads();

  bool arrived = true;
  unsigned long long start_ns = ClockNs();
  if (peer < site.ranks) {
    for (;;) {
      Signal signal = LoadAcquire(&site.pad->signals[peer]);
      int ahead = static_cast<int>(static_cast<unsigned>(signal >> 32) - epoch);
      unsigned tag = static_cast<unsigned>(signal);
      // A peer that is ahead has compared the tags itself.
      arrived = ahead > 0 || (ahead == 0 && tag == site.tag);
      if (arrived) break;
      if (ahead == 0) {
        if (atomicCAS(&wait.other_rank, kNobody, peer) == kNobody) wait.other_tag = tag;
        break;
      }
      if (ClockNs() - start_ns > site.timeout_ns) {
        atomicOr(&wait.missing[peer / 32], 1u << peer % 32);
        break;
      }
    }
  }
  if (!__syncthreads_or(!arrived)) return true;
  if (peer == 0) FailWait(site, epoch, wait, ClockNs() - start_ns);
  return false;
}

}  // namespace hloom

#endif  // HLOOM_SYNC_CUH_
