// The pads through which the ranks of a clique signal: cuda_kernels/pad.cuh, as collective memory.

#ifndef HLOOM_RUNTIME_CUDA_SIGNAL_PADS_H_
#define HLOOM_RUNTIME_CUDA_SIGNAL_PADS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/collective_memory.h"
#include "pad.cuh"

namespace hloom::cuda {

// The key of the one set of pads that a clique has: all sites of all executables count on together,
// so that a rank which comes to another site than its peers is found out.
MemoryKey SignalPadsKey(std::vector<int64_t> clique);

// Tells every rank where its peers' pads are.
Problem PrepareSignalPads(Allocator& allocator, const CollectiveMemory& memory);

Pad* PadOf(const CollectiveMemory& memory, size_t rank);

// What the kernels found wrong on a rank; none where its pad is sound.
const FaultReport* ReportOf(const CollectiveMemory& memory, size_t rank);

// The number by which kernels tell sites apart, the same in every process. It can be turned back
// into the site's text from here on.
uint32_t SiteTag(std::string_view what, std::string_view site, int64_t channel);

// What happened, for people; empty where the rank's report is empty.
std::string FaultText(const CollectiveMemory& memory, size_t rank);

}  // namespace hloom::cuda

#endif  // HLOOM_RUNTIME_CUDA_SIGNAL_PADS_H_
