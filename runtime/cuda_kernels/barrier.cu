// The cross-device barrier: no rank leaves before all have arrived.
//
// After it every rank sees all writes that any rank made before it, to its own memory or to a
// peer's. One block of kBarrierThreads.

#include "sync.cuh"

extern "C" __global__ void __launch_bounds__(hloom::kBarrierThreads)
    hloom_barrier(hloom::Site site) {
  unsigned run = hloom::RunOf(site);
  unsigned epoch = site.pad->epoch + 1;
  if (threadIdx.x < site.ranks) hloom::SignalPeer(site, threadIdx.x, run, epoch);
  if (!hloom::AwaitPeers(site, run, epoch)) return;
  if (threadIdx.x == 0) site.pad->epoch = epoch;
}
