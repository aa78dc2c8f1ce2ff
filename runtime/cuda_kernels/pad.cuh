// The layout of the memory that the ranks of a group share, for host code, kernels and tests.
//
// Compiled by the host's compiler and by NVRTC, so it uses fundamental types only and includes
// nothing.

#ifndef HLOOM_RUNTIME_CUDA_KERNELS_PAD_CUH_
#define HLOOM_RUNTIME_CUDA_KERNELS_PAD_CUH_

namespace hloom {

constexpr unsigned kMaxRanks = 128;

// Threads of a block, at least kMaxRanks: each waits for one rank.
constexpr unsigned kBarrierThreads = kMaxRanks;
constexpr unsigned kRaggedThreads = 512;

enum class Fault : unsigned {
  kNone = 0,
  kTimeout = 1,      // ranks are missing
  kOtherSite = 2,    // a rank is at another collective
  kOutOfBounds = 3,  // a slice exceeds the operand or the output
};

// A kernel's report of its fault.
struct FaultReport {
  Fault fault;  // written last
  unsigned epoch;
  unsigned tag;                      // of this rank's site
  unsigned other_tag;                // kOtherSite: of the site of `rank`
  unsigned rank;                     // kOtherSite, kOutOfBounds: the peer
  unsigned output;                   // kOutOfBounds: 1 where the slice is of the peer's output
  unsigned missing[kMaxRanks / 32];  // kTimeout: a bit for each rank
  unsigned long long waited_ms;      // kTimeout: while the host process ran
  long long offset;                  // kOutOfBounds: of the slice, in rows
  long long rows;                    // kOutOfBounds: of the slice
  long long limit;                   // kOutOfBounds: rows of the operand or the output
};

// The most runs at a time that were given up and may still have kernels on a device.
constexpr unsigned kAbandonedRuns = 64;

// One rank's page in host memory. It can be read when the device's context is dead.
struct HostPage {
  // Written by the host, polled by kernels that wait.
  //
  // Milliseconds in which the host process has run. Waiting is counted in these: while the process
  // is stopped, no rank can come.
  unsigned long long alive_ms;
  // At `run % kAbandonedRuns`: the run in the high, a launch in the low half. That launch of the
  // run and all later ones end without a result, since not every rank will launch them.
  unsigned long long abandoned[kAbandonedRuns];

  // Written by the device.
  //
  // By rank, how long a peer is awaited that is later than Site::report_ms; 0 for the others.
  alignas(128) unsigned late_tag;  // of the site; written before the times
  unsigned late_ms[kMaxRanks];
  FaultReport fault;
};

// A signal is the sender's epoch (16 bits), its run (16 bits) and its site's tag (32 bits).
using Signal = unsigned long long;

// One rank's part of the shared memory, on that rank's device. The peers write to `signals` and
// `outputs`, each to the element of its own rank.
struct alignas(128) Pad {
  // The number of synchronizations of this rank at all sites. It is here and not in the arguments,
  // so that a launch replayed from a graph increments it. It may wrap.
  unsigned epoch;
  // Blocks of the running kernel that have started and that have finished.
  unsigned started_blocks;
  unsigned finished_blocks;
  unsigned failed;  // 1 once a thread has claimed the report
  HostPage* host;
  unsigned run;  // the run of this rank's stream, which sets it where a run begins

  alignas(128) Pad* peers[kMaxRanks];  // by rank; the host writes it before the first launch
  alignas(128) Signal signals[kMaxRanks];
  alignas(128) char* outputs[kMaxRanks];  // that rank's output, valid after its signal
};

constexpr unsigned kPadBytes = sizeof(Pad);
static_assert(kPadBytes == 128 + 3 * 128 * 8, "the layout is the same for every compiler");

// The parameters of a kernel's synchronization.
struct Site {
  Pad* pad;  // of this rank
  unsigned rank;
  unsigned ranks;
  unsigned tag;  // identifies the site; the same on every rank
  // The run, the same on every rank and never 0. In a graph, whose arguments are those of the run
  // that recorded it, 0: then Pad::run holds it.
  unsigned run;
  unsigned launch;     // the index of the run's launches on this rank; unused in a graph
  unsigned report_ms;  // after this wait the kernel reports the missing ranks to the host
  unsigned stop_ms;    // after this wait the kernel stops its device
};

// The buffers of one ragged all-to-all. A row is an element of the leading dimension.
struct RaggedBuffers {
  const char* operand;
  char* output;
  // Signed integers, `slices` for each rank, in rows.
  const void* input_offsets;
  const void* send_sizes;
  const void* output_offsets;
  long long operand_rows;
  long long output_rows;
  long long row_bytes;
  long long slices;
  unsigned index_bytes;  // of each of those integers: 4 or 8
};

}  // namespace hloom

#endif  // HLOOM_RUNTIME_CUDA_KERNELS_PAD_CUH_
