// The CPU handlers of the token's calls and of the barrier.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "cpu/buffers.h"
#include "cpu/group_call.h"
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
  if (ffi::Error error = CheckToken(kToken, "result", buffers->results, 0); error.failure()) {
    return error;
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
  if (ffi::Error error = CheckToken(kTie, "operand", buffers->operands, 0); error.failure()) {
    return error;
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (ffi::Error error = CopyOperand(kTie, *buffers, i + 1, i); error.failure()) return error;
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
  return CopyToken(kAfter, *buffers, 0);
}

ffi::ErrorOr<std::unique_ptr<CpuCall>> InstantiateBarrier(ffi::Dictionary attributes) {
  return InstantiateCall(kBarrier, attributes);
}

// (token, x..., k...) -> (token, x...): the k are only kept alive until all ranks have arrived.
ffi::Future Barrier(ffi::RunId run, int32_t device, ffi::ThreadPool pool, CpuCall* call,
                    ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Dictionary) {
  return ExecuteCall(*call, run, device, [&](const Arrival& arrival) {
    const auto buffers = BuffersOf(kBarrier, operands, results);
    if (buffers.has_error()) return FailedCall(run, device, buffers.error());
    if (operands.size() < results.size()) {
      return FailedCall(
          run, device,
          ffi::Error::InvalidArgument(
              std::string(kBarrier) + ": " + std::to_string(operands.size()) + " operands for " +
              std::to_string(results.size()) + " results; wanted one for each"));
    }
    // Before the rank arrives: afterwards peers may already read the results.
    ffi::Error error = CopyToken(kBarrier, *buffers, 0);
    for (size_t i = 1; i < results.size() && error.success(); ++i) {
      error = CopyOperand(kBarrier, *buffers, i, i);
    }
    if (error.failure()) return FailedCall(run, device, error);
    return Join<std::nullptr_t>(arrival, pool, nullptr, nullptr);
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

XLA_FFI_DEFINE_HANDLER_SYMBOL(hloom_cpu_barrier_v1_instantiate, hloom::InstantiateBarrier,
                              hloom::ffi::Ffi::BindInstantiate().Attrs());

XLA_FFI_DEFINE_HANDLER_SYMBOL(hloom_cpu_barrier_v1_execute, hloom::Barrier,
                              hloom::ffi::Ffi::Bind()
                                  .Ctx<hloom::ffi::RunId>()
                                  .Ctx<hloom::ffi::DeviceOrdinal>()
                                  .Ctx<hloom::ffi::ThreadPool>()
                                  .Ctx<hloom::ffi::State<hloom::CpuCall>>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attrs());
