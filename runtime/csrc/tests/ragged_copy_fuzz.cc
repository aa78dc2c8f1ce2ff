// Random ragged all-to-alls, good and bad, against an element-by-element exchange.
//
//     ragged_copy_fuzz SEED ROUNDS
//
// Every buffer is a heap block of exactly its size: built with AddressSanitizer, a read or a write
// outside of one ends the program. Prints "ACCEPTED REFUSED"; ends with 1 where a result differs.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "cpu/ragged_copy.h"

namespace {

using hloom::RaggedRank;

std::mt19937_64 generator;

int64_t Random(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(generator);
}

std::vector<std::byte> RandomBytes(int64_t bits) {
  std::vector<std::byte> bytes(static_cast<size_t>((bits + 7) / 8));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(Random(0, 255));
  bytes.shrink_to_fit();
  return bytes;
}

int Bit(const std::byte* bytes, int64_t bit) {
  return std::to_integer<int>(bytes[bit / 8]) >> (bit % 8) & 1;
}

void SetBit(std::byte* bytes, int64_t bit, int value) {
  const auto mask = static_cast<std::byte>(1 << (bit % 8));
  bytes[bit / 8] = value ? bytes[bit / 8] | mask : bytes[bit / 8] & ~mask;
}

// Numbers near the edges of [0, rows], far outside, and where a sum would overflow.
int64_t AnyNumber(int64_t rows) {
  switch (Random(0, 19)) {
    case 0:
      return Random(-2, -1);
    case 1:
      return rows + Random(1, 2);
    case 2:
      return Random(0, 1) ? INT64_MAX - Random(0, 2) : INT64_MIN + Random(0, 2);
    default:
      return Random(0, rows);
  }
}

struct Group {
  std::vector<RaggedRank> ranks;
  std::vector<std::vector<std::byte>> operands;
  std::vector<std::vector<std::byte>> outputs;
};

Group RandomGroup(bool wild) {
  const size_t size = static_cast<size_t>(Random(1, 5));
  const size_t each = static_cast<size_t>(Random(1, 3));
  const int element_bits = std::vector<int>{1, 2, 4, 8, 32}[static_cast<size_t>(Random(0, 4))];
  const int64_t row_bits = element_bits * Random(0, 5);
  const int64_t operand_rows = Random(0, 12);
  const int64_t output_rows = Random(0, 12);
  Group group;
  for (size_t i = 0; i < size; ++i) {
    group.operands.push_back(RandomBytes(operand_rows * row_bits));
    group.outputs.push_back(RandomBytes(output_rows * row_bits));
  }
  for (size_t i = 0; i < size; ++i) {
    RaggedRank rank;
    rank.rank = static_cast<int64_t>(i);
    rank.operand = group.operands[i].data();
    rank.operand_rows = operand_rows;
    rank.output = group.outputs[i].data();
    rank.output_rows = output_rows;
    rank.row_bits = row_bits;
    rank.element_bits = element_bits;
    rank.recv_sizes.resize(size * each);
    for (size_t slice = 0; slice < size * each; ++slice) {
      const int64_t input = Random(0, operand_rows);
      const int64_t output = Random(0, output_rows);
      const int64_t room = std::min(operand_rows - input, output_rows - output);
      rank.input_offsets.push_back(wild ? AnyNumber(operand_rows) : input);
      rank.output_offsets.push_back(wild ? AnyNumber(output_rows) : output);
      rank.send_sizes.push_back(wild ? AnyNumber(operand_rows) : Random(0, room));
    }
    group.ranks.push_back(std::move(rank));
  }
  for (size_t sender = 0; sender < size; ++sender) {
    for (size_t receiver = 0; receiver < size; ++receiver) {
      for (size_t number = 0; number < each; ++number) {
        group.ranks[receiver].recv_sizes[sender * each + number] =
            group.ranks[sender].send_sizes[receiver * each + number];
      }
    }
  }
  if (wild && Random(0, 9) == 0) group.ranks.back().recv_sizes.back() ^= 1;
  return group;
}

// What the outputs must be: each element that is sent, in the order of the senders.
std::vector<std::vector<std::byte>> Expected(const Group& group) {
  auto outputs = group.outputs;
  const size_t size = group.ranks.size();
  for (size_t sender = 0; sender < size; ++sender) {
    const RaggedRank& from = group.ranks[sender];
    for (size_t slice = 0; slice < from.send_sizes.size(); ++slice) {
      const size_t receiver = slice / (from.send_sizes.size() / size);
      for (int64_t bit = 0; bit < from.send_sizes[slice] * from.row_bits; ++bit) {
        SetBit(outputs[receiver].data(), from.output_offsets[slice] * from.row_bits + bit,
               Bit(from.operand, from.input_offsets[slice] * from.row_bits + bit));
      }
    }
  }
  return outputs;
}

}  // namespace

int main(int, char** arguments) {
  generator.seed(std::strtoull(arguments[1], nullptr, 10));
  const int64_t rounds = std::atoll(arguments[2]);
  int64_t accepted = 0;
  for (int64_t round = 0; round < rounds; ++round) {
    const bool wild = round % 2 == 1;
    Group group = RandomGroup(wild);
    hloom::RaggedRanks ranks;
    for (const RaggedRank& rank : group.ranks) ranks.push_back(&rank);
    const auto error = hloom::CheckRagged(ranks);
    if (error && !wild) {
      std::fprintf(stderr, "round %ld: refused: %s\n", static_cast<long>(round), error->c_str());
      return 1;
    }
    if (error) continue;
    ++accepted;
    const auto expected = Expected(group);
    for (size_t receiver = 0; receiver < ranks.size(); ++receiver) {
      hloom::ReceiveRagged(ranks, receiver);
    }
    if (group.outputs != expected) {
      std::fprintf(stderr, "round %ld: the outputs differ\n", static_cast<long>(round));
      return 1;
    }
  }
  std::printf("%ld %ld\n", static_cast<long>(accepted), static_cast<long>(rounds - accepted));
  return 0;
}
