// A clique of ranks on the host, for Python: the real pads and kernels, with CPU threads as
// devices.

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cuda/pads/collective_memory.h"
#include "cuda/pads/fault_watch.h"
#include "cuda/pads/signal_pads.h"
#include "tests/cuda/fake/kernels.h"
#include "tests/cuda/host_memory.h"

namespace {

using hloom::cuda::CollectiveMemory;

struct Clique {
  hloom::cuda::HostAllocator allocator;
  std::unique_ptr<CollectiveMemory> memory;
  std::unique_ptr<hloom::cuda::FaultWatch> watch;
};

// The parameters of a rank's launch.
struct Call {
  unsigned rank;
  unsigned tag;
  unsigned run;     // 0 as in a graph.
  unsigned launch;  // Of the run.
  unsigned report_ms;
  unsigned stop_ms;
};

hloom::Site SiteOf(const Clique& clique, const Call& call) {
  hloom::Site site{};
  site.pad = hloom::cuda::PadOf(*clique.memory, call.rank);
  site.rank = call.rank;
  site.ranks = static_cast<unsigned>(clique.memory->devices().size());
  site.tag = call.tag;
  site.run = call.run;
  site.launch = call.launch;
  site.report_ms = call.report_ms;
  site.stop_ms = call.stop_ms;
  return site;
}

}  // namespace

extern "C" {

// With a watch, the kernels' time goes on by itself; without, by clique_alive.
Clique* clique_new(unsigned ranks, int with_watch) {
  auto clique = std::make_unique<Clique>();
  std::vector<hloom::cuda::DeviceContext> devices(ranks);
  for (unsigned rank = 0; rank < ranks; ++rank) devices[rank].ordinal = 10 + rank;
  hloom::cuda::MakeSignalPads(clique->allocator, devices, &clique->memory);
  if (with_watch != 0) {
    clique->watch = std::make_unique<hloom::cuda::FaultWatch>(std::chrono::milliseconds(20),
                                                              [](const std::string&) {});
    clique->watch->Add(clique->memory.get());
  }
  return clique.release();
}

void clique_delete(Clique* clique) {
  clique->watch = nullptr;
  clique->memory->Free(clique->allocator);
  delete clique;
}

void clique_alive(Clique* clique, unsigned more_ms) {
  hloom::cuda::AddAlive(*clique->memory, std::chrono::milliseconds(more_ms));
}

void clique_abandon(Clique* clique, unsigned run, unsigned launch) {
  hloom::cuda::Abandon(*clique->memory, run, launch);
}

// What the host writes in a rank's stream where a run begins.
void clique_begin(Clique* clique, unsigned rank, unsigned run) {
  hloom::cuda::PadOf(*clique->memory, rank)->run = run;
}

// Where the ranks begin to count.
void clique_start_at(Clique* clique, unsigned epoch) {
  unsigned ranks = static_cast<unsigned>(clique->memory->devices().size());
  for (unsigned rank = 0; rank < ranks; ++rank) {
    hloom::Pad* pad = hloom::cuda::PadOf(*clique->memory, rank);
    pad->epoch = epoch;
    for (unsigned peer = 0; peer < ranks; ++peer) {
      pad->signals[peer] = static_cast<hloom::Signal>(epoch) << 48;
    }
  }
}

unsigned clique_epoch(const Clique* clique, unsigned rank) {
  return hloom::cuda::PadOf(*clique->memory, rank)->epoch;
}

unsigned clique_site_tag(const char* site) { return hloom::cuda::SiteTag("kernel", site, 1); }

// What a rank's kernel has reported, cut to `bytes`.
void clique_fault(const Clique* clique, unsigned rank, char* text, size_t bytes) {
  std::snprintf(text, bytes, "%s", hloom::cuda::FaultText(*clique->memory, rank).c_str());
}

// Whom a rank's kernel awaits for too long, cut to `bytes`.
void clique_late(const Clique* clique, unsigned rank, char* text, size_t bytes) {
  std::snprintf(text, bytes, "%s", hloom::cuda::LateText(*clique->memory, rank).c_str());
}

// 1 where the kernel came to its end, 0 where it trapped.
int clique_barrier(Clique* clique, const Call* call) {
  hloom::Site site = SiteOf(*clique, *call);
  return shim::Launch(1, hloom::kBarrierThreads, true, [&] { hloom_barrier(site); });
}

int clique_ragged(Clique* clique, const Call* call, unsigned blocks, int parallel,
                  const hloom::RaggedBuffers* buffers) {
  hloom::Site site = SiteOf(*clique, *call);
  return shim::Launch(blocks, hloom::kRaggedThreads, parallel != 0,
                      [&] { hloom_ragged_all_to_all(site, *buffers); });
}

}  // extern "C"
