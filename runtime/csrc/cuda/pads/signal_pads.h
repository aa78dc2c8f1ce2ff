// The pads through which the ranks of a clique signal: cuda_kernels/pad.cuh, as collective memory.

#ifndef HLOOM_RUNTIME_CSRC_CUDA_PADS_SIGNAL_PADS_H_
#define HLOOM_RUNTIME_CSRC_CUDA_PADS_SIGNAL_PADS_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/pads/collective_memory.h"
#include "pad.cuh"

namespace hloom::cuda {

// Makes the one set of pads that a clique has and tells every rank where its peers' are. All sites
// of all executables count on together, so that a rank which comes to another site than its peers
// is found out.
Problem MakeSignalPads(Allocator& allocator, std::vector<Place> places,
                       std::unique_ptr<CollectiveMemory>* pads);

Pad* PadOf(const CollectiveMemory& pads, size_t rank);

// What kernels and host tell each other on a rank.
HostPage* PageOf(const CollectiveMemory& pads, size_t rank);

// Tells kernels for how long the process has run; they count their waiting in it. To be called by
// one thread at a time.
void AddAlive(const CollectiveMemory& pads, std::chrono::milliseconds more);

// Lets launch number `launch` of the run, and all later ones, end without a result. Some rank
// must be known not to come to it. May be called again for the same run with an earlier launch.
void Abandon(const CollectiveMemory& pads, uint32_t run, uint32_t launch);

// The number by which kernels tell sites apart, the same in every process. It can be turned back
// into the site's text from here on.
uint32_t SiteTag(std::string_view what, std::string_view site, int64_t channel);

// Why the rank's kernel stopped its device, for people; empty where none did.
std::string FaultText(const CollectiveMemory& pads, size_t rank);

// Whom the rank's kernel awaits for longer than it should, for people; empty where nobody.
std::string LateText(const CollectiveMemory& pads, size_t rank);

}  // namespace hloom::cuda

#endif  // HLOOM_RUNTIME_CSRC_CUDA_PADS_SIGNAL_PADS_H_
