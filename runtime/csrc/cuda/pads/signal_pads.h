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

// Makes the one set of pads of a clique and writes the peers' addresses into every rank's. All
// sites of all executables share one epoch count, so that a rank at another site than its peers is
// detected.
MaybeError MakeSignalPads(Allocator& allocator, std::vector<DeviceContext> devices,
                          std::unique_ptr<CollectiveMemory>* pads);

Pad* PadOf(const CollectiveMemory& pads, size_t rank);

// The host memory through which kernels and host of a rank exchange reports.
HostPage* PageOf(const CollectiveMemory& pads, size_t rank);

// Adds to the time that the process has run, in which kernels count their waiting. Not thread-safe.
void AddAlive(const CollectiveMemory& pads, std::chrono::milliseconds more);

// Lets launch number `launch` of the run, and all later ones, end without a result. Some rank must
// be known not to launch it. May be called again for the same run with an earlier launch.
void Abandon(const CollectiveMemory& pads, uint32_t run, uint32_t launch);

// The kernels' number of a site, the same in every process. From here on error messages can turn it
// back into the site's text.
uint32_t SiteTag(std::string_view kind, std::string_view site, int64_t channel);

// The reason why the rank's kernel stopped its device, for people; empty where none did.
std::string FaultText(const CollectiveMemory& pads, size_t rank);

// The peers that the rank's kernel has awaited for longer than the timeout, for people; empty where
// there are none.
std::string LateText(const CollectiveMemory& pads, size_t rank);

}  // namespace hloom::cuda

#endif  // HLOOM_RUNTIME_CSRC_CUDA_PADS_SIGNAL_PADS_H_
