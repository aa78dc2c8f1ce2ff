// A clique of ranks on the host, for Python: the real pads and kernels, CPU threads as devices.

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cuda/collective_memory.h"
#include "cuda/signal_pads.h"
#include "host_memory.h"
#include "kernels.h"

namespace {

using hloom::cuda::CollectiveMemory;

struct Clique {
  hloom::cuda::HostAllocator allocator;
  hloom::cuda::CollectiveMemoryCache cache{allocator};
  std::shared_ptr<const CollectiveMemory> memory;
};

hloom::Site SiteOf(const Clique& clique, unsigned rank, unsigned tag, double timeout_s) {
  hloom::Site site{};
  site.pad = hloom::cuda::PadOf(*clique.memory, rank);
  site.rank = rank;
  site.ranks = static_cast<unsigned>(clique.memory->places().size());
  site.tag = tag;
  site.timeout_ns = static_cast<unsigned long long>(timeout_s * 1e9);
  return site;
}

}  // namespace

extern "C" {

Clique* clique_new(unsigned ranks) {
  auto clique = std::make_unique<Clique>();
  std::vector<int64_t> devices;
  for (unsigned rank = 0; rank < ranks; ++rank) devices.push_back(10 + rank);
  std::vector<std::thread> threads;
  std::vector<std::shared_ptr<const CollectiveMemory>> got(ranks);
  for (unsigned rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      hloom::cuda::MemoryRequest request;
      request.key = hloom::cuda::SignalPadsKey(devices);
      request.rank = rank;
      request.place.ordinal = devices[rank];
      request.timeout = std::chrono::seconds(30);
      clique->cache.Acquire(request, hloom::cuda::PrepareSignalPads, &got[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  clique->memory = got[0];
  return clique.release();
}

void clique_delete(Clique* clique) {
  clique->memory = nullptr;
  delete clique;
}

// Where the ranks begin to count.
void clique_start_at(Clique* clique, unsigned epoch) {
  unsigned ranks = static_cast<unsigned>(clique->memory->places().size());
  for (unsigned rank = 0; rank < ranks; ++rank) {
    hloom::Pad* pad = hloom::cuda::PadOf(*clique->memory, rank);
    pad->epoch = epoch;
    for (unsigned peer = 0; peer < ranks; ++peer) {
      pad->signals[peer] = static_cast<hloom::Signal>(epoch) << 32;
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

// 1 where the kernel came to its end, 0 where it trapped.
int clique_barrier(Clique* clique, unsigned rank, unsigned tag, double timeout_s) {
  hloom::Site site = SiteOf(*clique, rank, tag, timeout_s);
  return shim::Launch(1, hloom::kBarrierThreads, true, [&] { hloom_barrier(site); });
}

int clique_ragged(Clique* clique, unsigned rank, unsigned tag, double timeout_s, unsigned blocks,
                  int parallel, const hloom::RaggedBuffers* buffers) {
  hloom::Site site = SiteOf(*clique, rank, tag, timeout_s);
  return shim::Launch(blocks, hloom::kRaggedThreads, parallel != 0,
                      [&] { hloom_ragged_all_to_all(site, *buffers); });
}

}  // extern "C"
