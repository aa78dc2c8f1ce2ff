// The checks and copies of a ragged all-to-all between ranks that can read each other's memory,
// without threads and without XLA.

#ifndef HLOOM_RUNTIME_CSRC_CPU_RAGGED_COPY_H_
#define HLOOM_RUNTIME_CSRC_CPU_RAGGED_COPY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hloom {

// One rank's part of a ragged all-to-all; the caller owns the buffers.
//
// With G ranks and K slices in each vector, every rank has K / G slices for each other rank:
// slices [q * K/G, (q+1) * K/G) of `input_offsets`, `send_sizes` and `output_offsets` go to the
// rank at position q, and those of `recv_sizes` come from it. Sizes and offsets count rows.
struct RaggedRank {
  int64_t rank = 0;  // the partition, for people
  const std::byte* operand = nullptr;
  int64_t operand_rows = 0;
  std::byte* output = nullptr;
  int64_t output_rows = 0;
  int64_t row_bits = 0;
  int element_bits = 8;
  int element_type = 0;  // XLA's number of the element type, for comparison
  std::vector<int64_t> input_offsets;
  std::vector<int64_t> send_sizes;
  std::vector<int64_t> output_offsets;
  std::vector<int64_t> recv_sizes;
};

// The ranks of a group, by position.
using RaggedRanks = std::vector<const RaggedRank*>;

// The error in a group's parts, for people: a rank whose rows differ from the others', or the first
// slice, by sender, that lies outside the operand or the receiver's output, or whose size differs
// from the one that the receiver expects. Empty where every copy is safe.
//
// A slice without rows may have any offset: nothing is read or written for it.
std::optional<std::string> CheckRagged(const RaggedRanks& ranks);

// Copies the slices for the rank at position `receiver` into its output, in the order of the
// senders. The ranks must have passed `CheckRagged`.
//
// Writes nothing else, so that the copies of several receivers may run at the same time.
void ReceiveRagged(const RaggedRanks& ranks, size_t receiver);

// Copies `bits` bits between packed buffers. All three counts are multiples of `element_bits`,
// which is 1, 2, 4 or a multiple of 8.
void CopyBits(std::byte* to, int64_t to_bit, const std::byte* from, int64_t from_bit, int64_t bits,
              int element_bits);

}  // namespace hloom

#endif  // HLOOM_RUNTIME_CSRC_CPU_RAGGED_COPY_H_
