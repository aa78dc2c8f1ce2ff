// What the ranks of a group share: sizes and offsets for the host code, the kernels and the tests.
//
// Compiled by the host's compiler and by NVRTC, so it uses fundamental types only and includes
// nothing.

#ifndef HLOOM_PAD_CUH_
#define HLOOM_PAD_CUH_

namespace hloom {

constexpr unsigned kMaxRanks = 128;

// The names under which the kernels stand in their images.
constexpr char kBarrierKernel[] = "hloom_barrier";
constexpr char kRaggedKernel[] = "hloom_ragged_all_to_all";

// Threads of a block, at least kMaxRanks: each waits for one rank.
constexpr unsigned kBarrierThreads = kMaxRanks;
constexpr unsigned kRaggedThreads = 512;

enum class Fault : unsigned {
  kNone = 0,
  kTimeout = 1,      // ranks are missing
  kOtherSite = 2,    // a rank stands at another collective
  kOutOfBounds = 3,  // a slice leaves the operand or the output
};

// What went wrong, in host memory: it can be read when the device's context is dead.
struct FaultReport {
  Fault fault;  // written last
  unsigned epoch;
  unsigned tag;                      // of the site where this rank stood
  unsigned other_tag;                // kOtherSite: of the site where `rank` stood
  unsigned rank;                     // kOtherSite, kOutOfBounds: the peer
  unsigned output;                   // kOutOfBounds: 1 where the slice is of the peer's output
  unsigned missing[kMaxRanks / 32];  // kTimeout: a bit for each rank
  unsigned long long waited_ns;
  long long offset;  // kOutOfBounds: of the slice, in rows
  long long rows;    // kOutOfBounds: of the slice
  long long limit;   // kOutOfBounds: rows of the operand or the output
};

// A signal is the sender's epoch in the high and its site's tag in the low half.
using Signal = unsigned long long;

// One rank's part of the shared memory. It stands on that rank's device; the peers write to
// `signals` and `outputs`, each to the element of its own rank.
struct alignas(128) Pad {
  // Counts the synchronizations of this rank, all sites together. It lives here and not in the
  // arguments, so that a launch replayed from a graph counts on. It may wrap.
  unsigned epoch;
  // Blocks of the running kernel that have started and that have finished.
  unsigned started_blocks;
  unsigned finished_blocks;
  unsigned failed;  // 1 once a thread has taken it on itself to write the report
  FaultReport* report;

  alignas(128) Pad* peers[kMaxRanks];  // by rank; the host writes it before the first launch
  alignas(128) Signal signals[kMaxRanks];
  alignas(128) char* outputs[kMaxRanks];  // where that rank's output lies, valid after its signal
};

constexpr unsigned kPadBytes = sizeof(Pad);
static_assert(kPadBytes == 128 + 3 * 128 * 8, "the layout is the same for every compiler");

// Where a kernel runs and for how long it waits.
struct Site {
  Pad* pad;  // of this rank
  unsigned rank;
  unsigned ranks;
  unsigned tag;  // tells sites apart; the same on every rank
  unsigned long long timeout_ns;
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

#endif  // HLOOM_PAD_CUH_
