// The CPU handler of the ragged all-to-all.
//
// The ranks of a group join once, each with its buffers. The last arrival checks every slice of
// every rank and makes the copies before any rank is released: until then XLA keeps all operands,
// and no rank reads an output.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cpu/buffers.h"
#include "cpu/group_call.h"
#include "cpu/ragged_copy.h"
#include "element_bits.h"
#include "xla/ffi/api/ffi.h"

namespace hloom {
namespace {

namespace ffi = xla::ffi;

constexpr std::string_view kKind = "hloom.ragged_all_to_all";

// Below this total, waking other threads takes longer than the copies.
constexpr int64_t kParallelBytes = int64_t{1} << 18;

// The receivers' copies, distributed over helper threads.
//
// The owner waits for helpers that have begun, never for one that has not: the pool's threads may
// all be busy, some waiting for this very rank. A helper that starts late finds no copies left.
class Copies {
 public:
  explicit Copies(RaggedRanks ranks) : ranks_(std::move(ranks)) {}

  void Help() {
    for (size_t receiver; (receiver = next_.fetch_add(1)) < ranks_.size();) {
      ReceiveRagged(ranks_, receiver);
      const std::lock_guard<std::mutex> lock(mutex_);
      if (++done_ == ranks_.size()) all_done_.notify_all();
    }
  }

  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    all_done_.wait(lock, [this] { return done_ == ranks_.size(); });
  }

 private:
  const RaggedRanks ranks_;
  std::atomic<size_t> next_{0};
  std::mutex mutex_;
  std::condition_variable all_done_;
  size_t done_ = 0;
};

bool IsLarge(const RaggedRanks& ranks) {
  int64_t bytes = 0;
  for (const RaggedRank* rank : ranks) {
    for (const int64_t size : rank->recv_sizes) {
      bytes += size * rank->row_bits / 8;  // of one buffer, which is there
      if (bytes >= kParallelBytes) return true;
    }
  }
  return false;
}

void Exchange(const RaggedRanks& ranks, ffi::ThreadPool& pool) {
  const auto copies = std::make_shared<Copies>(ranks);
  if (IsLarge(ranks)) {
    const auto helpers = std::min<int64_t>(pool.num_threads(), ranks.size()) - 1;
    for (int64_t i = 0; i < helpers; ++i) {
      pool.Schedule([copies] { copies->Help(); });
    }
  }
  copies->Help();
  copies->Wait();
}

template <typename T>
std::vector<int64_t> Widened(const ffi::AnyBuffer& buffer) {
  const T* values = static_cast<const T*>(buffer.untyped_data());
  return std::vector<int64_t>(values, values + buffer.dimensions().front());
}

ffi::Unexpected<ffi::Error> Invalid(const std::string& error) {
  return ffi::Unexpected(ffi::Error::InvalidArgument(std::string(kKind) + ": " + error));
}

// Offsets or sizes of any integer type of at least a byte. A uint64 above the range of int64
// becomes negative, which every check refuses.
ffi::ErrorOr<std::vector<int64_t>> Integers(const CallBuffers& buffers, size_t index) {
  const ffi::AnyBuffer& buffer = buffers.operands[index];
  if (buffer.dimensions().size() == 1) {
    switch (buffer.element_type()) {
      case ffi::DataType::S8:
        return Widened<int8_t>(buffer);
      case ffi::DataType::U8:
        return Widened<uint8_t>(buffer);
      case ffi::DataType::S16:
        return Widened<int16_t>(buffer);
      case ffi::DataType::U16:
        return Widened<uint16_t>(buffer);
      case ffi::DataType::S32:
        return Widened<int32_t>(buffer);
      case ffi::DataType::U32:
        return Widened<uint32_t>(buffer);
      case ffi::DataType::S64:
        return Widened<int64_t>(buffer);
      case ffi::DataType::U64:
        return Widened<uint64_t>(buffer);
      default:
        break;
    }
  }
  return Invalid("operand " + std::to_string(index) + " has type " + TypeText(buffer) +
                 "; offsets and sizes must be vectors of integers of 8 bits or more");
}

// The operands: (token, operand, output, input offsets, send sizes, output offsets, recv
// sizes) -> (output, token).
enum Operand : size_t {
  kOperand = 1,
  kOutput = 2,
  kInputOffsets = 3,
  kSendSizes = 4,
  kOutputOffsets = 5,
  kRecvSizes = 6,
  kOperands = 7,
};
constexpr size_t kResults = 2;

ffi::ErrorOr<RaggedRank> RankOf(const Arrival& arrival, const CallBuffers& buffers) {
  const ffi::AnyBuffer& operand = buffers.operands[kOperand];
  const ffi::AnyBuffer& output = buffers.operands[kOutput];
  const ffi::AnyBuffer::Dimensions from = operand.dimensions();
  const ffi::AnyBuffer::Dimensions to = output.dimensions();
  if (from.size() == 0 || from.size() != to.size() ||
      !std::equal(from.begin() + 1, from.end(), to.begin() + 1) ||
      operand.element_type() != output.element_type()) {
    return Invalid("operand 1 has type " + TypeText(operand) + " and operand 2, the output, " +
                   TypeText(output) + "; they must be the same but for the number of rows");
  }
  RaggedRank rank;
  rank.rank = arrival.self().rank;
  rank.element_type = static_cast<int>(operand.element_type());
  rank.element_bits = ElementBits(operand.element_type());
  if (rank.element_bits == 0) {
    return Invalid("operand 1 has elements of type number " + std::to_string(rank.element_type) +
                   " of XLA, which this hloom does not know");
  }
  rank.row_bits = rank.element_bits;
  for (const int64_t size : from.last(from.size() - 1)) {
    if (__builtin_mul_overflow(rank.row_bits, size, &rank.row_bits)) {
      return Invalid("operand 1 has type " + TypeText(operand) +
                     ", of rows larger than any memory");
    }
  }
  rank.operand = static_cast<const std::byte*>(operand.untyped_data());
  rank.operand_rows = from[0];
  rank.output = static_cast<std::byte*>(buffers.results[0].untyped_data());
  rank.output_rows = to[0];
  const std::pair<Operand, std::vector<int64_t>*> vectors[] = {
      {kInputOffsets, &rank.input_offsets},
      {kSendSizes, &rank.send_sizes},
      {kOutputOffsets, &rank.output_offsets},
      {kRecvSizes, &rank.recv_sizes},
  };
  for (const auto& [index, values] : vectors) {
    auto read = Integers(buffers, index);
    if (read.has_error()) return ffi::Unexpected(read.error());
    *values = std::move(*read);
  }
  return rank;
}

ffi::ErrorOr<std::unique_ptr<CpuCall>> Instantiate(ffi::Dictionary attributes) {
  return InstantiateCall(kKind, attributes);
}

ffi::Future RaggedAllToAll(ffi::RunId run, int32_t device, ffi::ThreadPool pool, CpuCall* call,
                           ffi::RemainingArgs operands, ffi::RemainingRets results,
                           ffi::Dictionary) {
  return ExecuteCall(*call, run, device, [&](const Arrival& arrival) {
    if (operands.size() != kOperands || results.size() != kResults) {
      return FailedCall(
          run, device,
          ffi::Error::InvalidArgument(std::string(kKind) + ": " + std::to_string(operands.size()) +
                                      " operands and " + std::to_string(results.size()) +
                                      " results; wanted " + std::to_string(kOperands) + " and " +
                                      std::to_string(kResults)));
    }
    const auto buffers = BuffersOf(kKind, operands, results);
    if (buffers.has_error()) return FailedCall(run, device, buffers.error());
    auto rank = RankOf(arrival, *buffers);
    if (rank.has_error()) return FailedCall(run, device, rank.error());
    ffi::Error error = CopyOperand(kKind, *buffers, kOutput, 0);
    if (error.success()) error = CopyToken(kKind, *buffers, 1);
    if (error.failure()) return FailedCall(run, device, error);
    const auto exchange = [&](const RaggedRanks& ranks) -> Outcome {
      if (const auto error = CheckRagged(ranks)) {
        return Failure{FailureKind::kAction,
                       std::string(kKind) + " at " + arrival.call->site + ": " + *error};
      }
      Exchange(ranks, pool);
      return std::nullopt;
    };
    return Join<RaggedRank>(arrival, pool, std::move(*rank), exchange);
  });
}

}  // namespace
}  // namespace hloom

XLA_FFI_DEFINE_HANDLER_SYMBOL(hloom_cpu_ragged_all_to_all_v1_instantiate, hloom::Instantiate,
                              hloom::ffi::Ffi::BindInstantiate().Attrs());

XLA_FFI_DEFINE_HANDLER_SYMBOL(hloom_cpu_ragged_all_to_all_v1_execute, hloom::RaggedAllToAll,
                              hloom::ffi::Ffi::Bind()
                                  .Ctx<hloom::ffi::RunId>()
                                  .Ctx<hloom::ffi::DeviceOrdinal>()
                                  .Ctx<hloom::ffi::ThreadPool>()
                                  .Ctx<hloom::ffi::State<hloom::CpuCall>>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attrs());
