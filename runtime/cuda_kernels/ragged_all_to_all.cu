// Ragged all-to-all: every rank writes slices of its operand into its peers' outputs.
//
// Two epochs, one kernel. Entry: a rank publishes the address of its output, into which peers may
// then write. Exit: once all its blocks have written, a rank signals, and waits until its own
// output is complete. A launch that has been given up ends at the entry, which no rank passes. Any
// number of blocks of kRaggedThreads, which need not run at the same time.

#include "sync.cuh"

namespace hloom {

template <typename Word>
__device__ inline void CopyWords(char* to, const char* from, long long bytes) {
  Word* to_words = reinterpret_cast<Word*>(to);
  const Word* from_words = reinterpret_cast<const Word*>(from);
  long long words = bytes / static_cast<long long>(sizeof(Word));
  for (long long word = threadIdx.x; word < words; word += blockDim.x) {
    to_words[word] = from_words[word];
  }
}

__device__ inline void CopyBytes(char* to, const char* from, long long bytes) {
  // Few bytes, except for rows at odd addresses: unrolled it would be half of the kernel's code.
#pragma unroll 1
  for (long long byte = threadIdx.x; byte < bytes; byte += blockDim.x) to[byte] = from[byte];
}

// Copies with the widest words that both addresses allow. Called by the whole block.
__device__ inline void Copy(char* to, const char* from, long long bytes) {
  unsigned long long unlike =
      reinterpret_cast<unsigned long long>(to) ^ reinterpret_cast<unsigned long long>(from);
  long long width = unlike % 16 == 0 ? 16 : unlike % 8 == 0 ? 8 : unlike % 4 == 0 ? 4 : 1;
  long long before = reinterpret_cast<unsigned long long>(from) % width;
  long long head = before == 0 ? 0 : width - before;
  if (head > bytes) head = bytes;
  long long body = (bytes - head) / width * width;
  CopyBytes(to, from, head);
  to += head, from += head;
  if (width == 16) {
    CopyWords<uint4>(to, from, body);
  } else if (width == 8) {
    CopyWords<unsigned long long>(to, from, body);
  } else if (width == 4) {
    CopyWords<unsigned>(to, from, body);
  } else {
    CopyBytes(to, from, body);
  }
  CopyBytes(to + body, from + body, bytes - head - body);
}

__device__ inline bool Inside(long long offset, long long rows, long long limit) {
  return offset >= 0 && rows >= 0 && offset <= limit && rows <= limit - offset;
}

__device__ inline void FailBounds(const Site& site, unsigned epoch, const RaggedBuffers& buffers,
                                  unsigned peer, long long from_row, long long to_row,
                                  long long rows) {
  if (!ClaimReport(site, epoch)) return;
  bool output = Inside(from_row, rows, buffers.operand_rows);
  FaultReport* report = &site.pad->host->fault;
  report->rank = peer;
  report->output = output;
  report->offset = output ? to_row : from_row;
  report->rows = rows;
  report->limit = output ? buffers.output_rows : buffers.operand_rows;
  Fail(site, Fault::kOutOfBounds);
}

__device__ inline long long Load(const RaggedBuffers& buffers, const void* indices,
                                 long long position) {
  return buffers.index_bytes == 4 ? static_cast<const int*>(indices)[position]
                                  : static_cast<const long long*>(indices)[position];
}

// Copies this block's share of the slices for `peer`. False where a slice is out of bounds.
__device__ inline bool Send(const Site& site, unsigned epoch, const RaggedBuffers& buffers,
                            unsigned peer) {
  char* output = *const_cast<char* volatile*>(&site.pad->outputs[peer]);
  for (long long slice = peer * buffers.slices; slice < (peer + 1) * buffers.slices; ++slice) {
    long long from_row = Load(buffers, buffers.input_offsets, slice);
    long long to_row = Load(buffers, buffers.output_offsets, slice);
    long long rows = Load(buffers, buffers.send_sizes, slice);
    // The offsets of an empty slice may be out of bounds.
    if (rows == 0) continue;
    if (!Inside(from_row, rows, buffers.operand_rows) ||
        !Inside(to_row, rows, buffers.output_rows)) {
      if (threadIdx.x == 0) FailBounds(site, epoch, buffers, peer, from_row, to_row, rows);
      return false;
    }
    long long bytes = rows * buffers.row_bytes;
    // A multiple of 16, so that every share is aligned as the slice is.
    long long share = (bytes / gridDim.x / 16 + 1) * 16;
    long long begin = blockIdx.x * share;
    if (begin >= bytes) continue;
    Copy(output + to_row * buffers.row_bytes + begin,
         buffers.operand + from_row * buffers.row_bytes + begin,
         begin + share < bytes ? share : bytes - begin);
  }
  return true;
}

// True for the kernel's last block to call it, which then sees all writes of the others. Called by
// the whole block.
__device__ inline bool IsLastBlock(const Site& site) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();
    last = atomicAdd(&site.pad->finished_blocks, 1u) + 1 == gridDim.x;
    __threadfence_system();
  }
  __syncthreads();
  return last;
}

// Resets the counts of blocks for the next kernel.
__device__ inline void ResetBlocks(const Site& site) {
  site.pad->started_blocks = 0;
  site.pad->finished_blocks = 0;
}

__device__ inline void RaggedAllToAll(const Site& site, const RaggedBuffers& buffers) {
  __shared__ bool first;
  unsigned thread = threadIdx.x;
  unsigned run = RunOf(site);
  unsigned entry = site.pad->epoch + 1;

  // The block that starts first: a fixed one might not start until this one ends.
  if (thread == 0) first = atomicAdd(&site.pad->started_blocks, 1u) == 0;
  __syncthreads();
  if (first && thread < site.ranks) {
    site.pad->peers[thread]->outputs[site.rank] = buffers.output;
    SignalPeer(site, thread, run, entry);
  }
  if (!AwaitPeers(site, run, entry)) {
    if (IsLastBlock(site) && thread == 0) ResetBlocks(site);
    return;
  }

  // Each block starts at another peer, so that all links are busy.
  for (unsigned step = 0; step < site.ranks; ++step) {
    unsigned peer = (site.rank + 1 + blockIdx.x + step) % site.ranks;
    if (!Send(site, entry, buffers, peer)) return;
  }
  if (!IsLastBlock(site)) return;

  unsigned exit = entry + 1;
  if (thread < site.ranks) SignalPeer(site, thread, run, exit);
  if (!AwaitPeers(site, run, exit)) return;
  if (thread == 0) {
    ResetBlocks(site);
    site.pad->epoch = exit;
  }
}

}  // namespace hloom

extern "C" __global__ void __launch_bounds__(hloom::kRaggedThreads)
    hloom_ragged_all_to_all(hloom::Site site, hloom::RaggedBuffers buffers) {
  hloom::RaggedAllToAll(site, buffers);
}
