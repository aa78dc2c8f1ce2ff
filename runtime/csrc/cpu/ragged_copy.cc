#include "cpu/ragged_copy.h"

#include <cstring>
#include <sstream>

namespace hloom {
namespace {

// One slice by its indices at the sender and at the receiver.
struct Slice {
  size_t sender;
  size_t receiver;
  size_t send_index;
  size_t recv_index;
};

// Whether a slice lies in [0, rows); no operation overflows.
bool Inside(int64_t offset, int64_t size, int64_t rows) {
  return offset >= 0 && offset <= rows && size <= rows - offset;
}

std::string Describe(const RaggedRanks& ranks, const Slice& slice) {
  std::ostringstream text;
  text << "slice " << slice.send_index << " of rank " << ranks[slice.sender]->rank << " (to rank "
       << ranks[slice.receiver]->rank << ")";
  return text.str();
}

std::string Outside(const RaggedRanks& ranks, const Slice& slice, const char* buffer,
                    int64_t offset, int64_t size, int64_t rows) {
  std::ostringstream text;
  text << Describe(ranks, slice) << " has offset " << offset << " and size " << size << " in "
       << buffer << " of " << rows << " rows; a slice must lie inside it.";
  return text.str();
}

std::optional<std::string> CheckSlice(const RaggedRanks& ranks, const Slice& slice) {
  const RaggedRank& sender = *ranks[slice.sender];
  const RaggedRank& receiver = *ranks[slice.receiver];
  const int64_t size = sender.send_sizes[slice.send_index];
  const int64_t expected = receiver.recv_sizes[slice.recv_index];
  if (size != expected) {
    std::ostringstream text;
    text << Describe(ranks, slice) << " has send size " << size << ", but recv size " << expected
         << " at index " << slice.recv_index << " of rank " << receiver.rank
         << "; recv_sizes must be the all_to_all of send_sizes.";
    return text.str();
  }
  if (size < 0) {
    std::ostringstream text;
    text << Describe(ranks, slice) << " has size " << size << "; sizes must not be negative.";
    return text.str();
  }
  if (size == 0) return std::nullopt;
  const int64_t input_offset = sender.input_offsets[slice.send_index];
  if (!Inside(input_offset, size, sender.operand_rows)) {
    return Outside(ranks, slice, "the operand", input_offset, size, sender.operand_rows);
  }
  const int64_t output_offset = sender.output_offsets[slice.send_index];
  if (!Inside(output_offset, size, receiver.output_rows)) {
    return Outside(ranks, slice, "the receiver's output", output_offset, size,
                   receiver.output_rows);
  }
  return std::nullopt;
}

// The slice with this number of those from `sender` to `receiver`.
Slice SliceOf(const RaggedRanks& ranks, size_t sender, size_t receiver, size_t number) {
  const size_t slices_each = ranks[sender]->send_sizes.size() / ranks.size();
  return {sender, receiver, receiver * slices_each + number, sender * slices_each + number};
}

// The vectors of all ranks have one length, a multiple of the number of ranks.
std::optional<std::string> CheckCounts(const RaggedRanks& ranks) {
  const size_t count = ranks.front()->send_sizes.size();
  for (const RaggedRank* rank : ranks) {
    for (const auto* values :
         {&rank->input_offsets, &rank->send_sizes, &rank->output_offsets, &rank->recv_sizes}) {
      if (values->size() != count || count % ranks.size() != 0) {
        std::ostringstream text;
        text << "rank " << rank->rank << " has " << values->size()
             << " offsets or sizes; all ranks must have the same number, a multiple of the "
             << ranks.size() << " ranks of the group.";
        return text.str();
      }
    }
  }
  return std::nullopt;
}

// Rows must be equal in all ranks: the receiver's decide how much is read from the operands.
std::optional<std::string> CheckRows(const RaggedRanks& ranks) {
  const RaggedRank& first = *ranks.front();
  for (const RaggedRank* rank : ranks) {
    if (rank->row_bits == first.row_bits && rank->element_type == first.element_type &&
        rank->element_bits == first.element_bits) {
      continue;
    }
    std::ostringstream text;
    text << "rank " << rank->rank << " has rows of " << rank->row_bits << " bits, elements of type "
         << rank->element_type << ", and rank " << first.rank << " of " << first.row_bits
         << " bits, elements of type " << first.element_type
         << "; all ranks must have rows of one type.";
    return text.str();
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> CheckRagged(const RaggedRanks& ranks) {
  if (auto error = CheckRows(ranks)) return error;
  if (auto error = CheckCounts(ranks)) return error;
  const size_t slices_each = ranks.front()->send_sizes.size() / ranks.size();
  for (size_t sender = 0; sender < ranks.size(); ++sender) {
    for (size_t receiver = 0; receiver < ranks.size(); ++receiver) {
      for (size_t number = 0; number < slices_each; ++number) {
        if (auto error = CheckSlice(ranks, SliceOf(ranks, sender, receiver, number))) {
          return error;
        }
      }
    }
  }
  return std::nullopt;
}

void ReceiveRagged(const RaggedRanks& ranks, size_t receiver) {
  const RaggedRank& to = *ranks[receiver];
  const size_t slices_each = to.recv_sizes.size() / ranks.size();
  for (size_t sender = 0; sender < ranks.size(); ++sender) {
    const RaggedRank& from = *ranks[sender];
    for (size_t number = 0; number < slices_each; ++number) {
      const size_t index = SliceOf(ranks, sender, receiver, number).send_index;
      if (from.send_sizes[index] == 0) continue;
      CopyBits(to.output, from.output_offsets[index] * to.row_bits, from.operand,
               from.input_offsets[index] * to.row_bits, from.send_sizes[index] * to.row_bits,
               to.element_bits);
    }
  }
}

void CopyBits(std::byte* to, int64_t to_bit, const std::byte* from, int64_t from_bit, int64_t bits,
              int element_bits) {
  const int64_t bytes = bits / 8;
  if (bytes > 0 && to_bit % 8 == 0 && from_bit % 8 == 0) {
    std::memcpy(to + to_bit / 8, from + from_bit / 8, static_cast<size_t>(bytes));
    to_bit += bytes * 8;
    from_bit += bytes * 8;
    bits -= bytes * 8;
  }
  // Packed elements: the rest of the last byte, or all where a slice starts inside a byte. The
  // byte's other elements stay.
  const unsigned mask = (1U << (element_bits % 8)) - 1;  // a whole number of bytes leaves no rest
  for (; bits > 0; bits -= element_bits, to_bit += element_bits, from_bit += element_bits) {
    const unsigned value = (std::to_integer<unsigned>(from[from_bit / 8]) >> (from_bit % 8)) & mask;
    std::byte& target = to[to_bit / 8];
    const unsigned kept = std::to_integer<unsigned>(target) & ~(mask << (to_bit % 8));
    target = static_cast<std::byte>(kept | (value << (to_bit % 8)));
  }
}

}  // namespace hloom
