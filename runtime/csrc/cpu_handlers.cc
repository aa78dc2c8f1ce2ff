// The handlers of the token's calls and of the barrier on the CPU.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "element_bits.h"
#include "group_call.h"
#include "xla/ffi/api/ffi.h"

namespace hloom {
namespace {

namespace ffi = xla::ffi;

// XLA gives both the same buffer where the aliasing that lowering declares took effect. False
// where they are not alike.
bool CopyUnlessShared(const ffi::AnyBuffer& from, const ffi::AnyBuffer& to) {
  if (from.untyped_data() == to.untyped_data()) return true;
  const size_t bytes = BufferBytes(from);
  if (bytes != BufferBytes(to) || (bytes == 0 && from.element_count() != 0)) return false;
  std::memcpy(to.untyped_data(), from.untyped_data(), bytes);
  return true;
}

ffi::Error Token(ffi::Result<ffi::BufferR0<ffi::U32>> token) {
  *token->typed_data() = 0;
  return ffi::Error::Success();
}

// Results take the operands from `first` on, one for one.
ffi::Error PassThrough(const char* what, const ffi::RemainingArgs& operands, size_t first,
                       const ffi::RemainingRets& results) {
  if (operands.size() < first + results.size()) {
    return ffi::Error::InvalidArgument(std::string(what) + ": " + std::to_string(operands.size()) +
                                       " operands for " + std::to_string(results.size()) +
                                       " results");
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const auto from = operands.get<ffi::AnyBuffer>(first + i);
    auto to = results.get<ffi::AnyBuffer>(i);
    if (from.has_error()) return from.error();
    if (to.has_error()) return to.error();
    if (!CopyUnlessShared(*from, **to)) {
      return ffi::Error::InvalidArgument(std::string(what) + ": operand " +
                                         std::to_string(first + i) +
                                         " cannot be copied to result " + std::to_string(i) +
                                         ": of another size, or of a type this hloom does not "
                                         "know");
    }
  }
  return ffi::Error::Success();
}

// (token, x...) -> (x...)
ffi::Error Tie(ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Dictionary) {
  return PassThrough("hloom.tie", operands, 1, results);
}

// (token, y...) -> token
ffi::Error After(ffi::BufferR0<ffi::U32> token, ffi::RemainingArgs,
                 ffi::Result<ffi::BufferR0<ffi::U32>> result, ffi::Dictionary) {
  *result->typed_data() = *token.typed_data();
  return ffi::Error::Success();
}

// (token, x..., k...) -> (token, x...): the k are only kept alive until all have arrived.
ffi::Future Barrier(ffi::RunId run, int32_t device, ffi::ThreadPool pool,
                    ffi::RemainingArgs operands, ffi::RemainingRets results,
                    ffi::Dictionary attributes) {
  return Guarded("hloom.barrier", run, device, [&] {
    const auto meeting = MeetingOf("hloom.barrier", attributes, run, device);
    if (meeting.has_error()) return FailedCall(run, device, meeting.error());
    // Before arriving: after it, peers may read the results already.
    const ffi::Error failed = PassThrough("hloom.barrier", operands, 0, results);
    if (failed.failure()) return FailedCall(run, device, failed);
    return Meet<std::nullptr_t>(*meeting, pool, nullptr, nullptr);
  });
}

}  // namespace
}  // namespace hloom

XLA_FFI_DEFINE_HANDLER_SYMBOL(hloom_cpu_token_v1_execute, hloom::Token,
                              hloom::ffi::Ffi::Bind().Ret<hloom::ffi::BufferR0<hloom::ffi::U32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(hloom_cpu_tie_v1_execute, hloom::Tie,
                              hloom::ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());

XLA_FFI_DEFINE_HANDLER_SYMBOL(hloom_cpu_after_v1_execute, hloom::After,
                              hloom::ffi::Ffi::Bind()
                                  .Arg<hloom::ffi::BufferR0<hloom::ffi::U32>>()
                                  .RemainingArgs()
                                  .Ret<hloom::ffi::BufferR0<hloom::ffi::U32>>()
                                  .Attrs());

XLA_FFI_DEFINE_HANDLER_SYMBOL(hloom_cpu_barrier_v1_execute, hloom::Barrier,
                              hloom::ffi::Ffi::Bind()
                                  .Ctx<hloom::ffi::RunId>()
                                  .Ctx<hloom::ffi::DeviceOrdinal>()
                                  .Ctx<hloom::ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attrs());
