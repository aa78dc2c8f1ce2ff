// The handlers of the token's calls and of the barrier on the CPU.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "cpu/buffers.h"
#include "group_call.h"
#include "xla/ffi/api/ffi.h"

namespace hloom {
namespace {

namespace ffi = xla::ffi;

constexpr std::string_view kToken = "hloom.token";
constexpr std::string_view kTie = "hloom.tie";
constexpr std::string_view kAfter = "hloom.after";
constexpr std::string_view kBarrier = "hloom.barrier";

// () -> token
ffi::Error Token(ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Dictionary) {
  const auto buffers = BuffersOf(kToken, operands, results);
  if (buffers.has_error()) return buffers.error();
  if (operands.size() != 0 || results.size() > 1) {
    return ffi::Error::InvalidArgument(
        std::string(kToken) + ": " + std::to_string(operands.size()) + " operands and " +
        std::to_string(results.size()) + " results; wanted none and the token");
  }
  if (ffi::Error wrong = CheckToken(kToken, "result", buffers->results, 0); wrong.failure()) {
    return wrong;
  }
  *buffers->results[0].typed_data<uint32_t>() = 0;
  return ffi::Error::Success();
}

// (token, x...) -> (x...)
ffi::Error Tie(ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Dictionary) {
  const auto buffers = BuffersOf(kTie, operands, results);
  if (buffers.has_error()) return buffers.error();
  if (operands.size() != results.size() + 1) {
    return ffi::Error::InvalidArgument(std::string(kTie) + ": " + std::to_string(operands.size()) +
                                       " operands for " + std::to_string(results.size()) +
                                       " results; wanted the token and one for each");
  }
  if (ffi::Error wrong = CheckToken(kTie, "operand", buffers->operands, 0); wrong.failure()) {
    return wrong;
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (ffi::Error wrong = GiveBack(kTie, *buffers, i + 1, i); wrong.failure()) return wrong;
  }
  return ffi::Error::Success();
}

// (token, y...) -> token
ffi::Error After(ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Dictionary) {
  const auto buffers = BuffersOf(kAfter, operands, results);
  if (buffers.has_error()) return buffers.error();
  if (results.size() > 1) {
    return ffi::Error::InvalidArgument(std::string(kAfter) + ": " + std::to_string(results.size()) +
                                       " results; wanted the token");
  }
  return GiveTokenBack(kAfter, *buffers, 0);
}

// (token, x..., k...) -> (token, x...): the k are only kept alive until all have arrived.
ffi::Future Barrier(ffi::RunId run, int32_t device, ffi::ThreadPool pool,
                    ffi::RemainingArgs operands, ffi::RemainingRets results,
                    ffi::Dictionary attributes) {
  return Guarded(kBarrier, run, device, [&] {
    const auto meeting = MeetingOf(kBarrier, attributes, run, device);
    if (meeting.has_error()) return FailedCall(run, device, meeting.error());
    const auto buffers = BuffersOf(kBarrier, operands, results);
    if (buffers.has_error()) return FailedCall(run, device, buffers.error());
    if (operands.size() < results.size()) {
      return FailedCall(
          run, device,
          ffi::Error::InvalidArgument(
              std::string(kBarrier) + ": " + std::to_string(operands.size()) + " operands for " +
              std::to_string(results.size()) + " results; wanted one for each"));
    }
    // Before arriving: after it, peers may read the results already.
    ffi::Error wrong = GiveTokenBack(kBarrier, *buffers, 0);
    for (size_t i = 1; i < results.size() && wrong.success(); ++i) {
      wrong = GiveBack(kBarrier, *buffers, i, i);
    }
    if (wrong.failure()) return FailedCall(run, device, wrong);
    return Meet<std::nullptr_t>(*meeting, pool, nullptr, nullptr);
  });
}

}  // namespace
}  // namespace hloom

XLA_FFI_DEFINE_HANDLER_SYMBOL(hloom_cpu_token_v1_execute, hloom::Token,
                              hloom::ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());

XLA_FFI_DEFINE_HANDLER_SYMBOL(hloom_cpu_tie_v1_execute, hloom::Tie,
                              hloom::ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());

XLA_FFI_DEFINE_HANDLER_SYMBOL(hloom_cpu_after_v1_execute, hloom::After,
                              hloom::ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());

XLA_FFI_DEFINE_HANDLER_SYMBOL(hloom_cpu_barrier_v1_execute, hloom::Barrier,
                              hloom::ffi::Ffi::Bind()
                                  .Ctx<hloom::ffi::RunId>()
                                  .Ctx<hloom::ffi::DeviceOrdinal>()
                                  .Ctx<hloom::ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attrs());
