#include "cpu/group_call.h"

namespace hloom {

namespace ffi = xla::ffi;

ffi::TypeId CpuCall::id = {};

ffi::ErrorOr<std::unique_ptr<CpuCall>> InstantiateCall(std::string_view kind,
                                                       const ffi::Dictionary& attributes) {
  try {
    auto parsed = CallAttributes::Parse(kind, attributes);
    if (parsed.has_error()) return ffi::Unexpected(parsed.error());
    return std::make_unique<CpuCall>(CpuCall{std::move(*parsed)});
  } catch (const std::exception& error) {
    return ffi::Unexpected(ffi::Error::Internal(std::string(kind) + ": " + error.what()));
  }
}

ffi::Error ErrorOf(const Failure& failure) {
  switch (failure.kind) {
    case FailureKind::kTimeout:
      return ffi::Error(ffi::ErrorCode::kDeadlineExceeded, failure.message);
    case FailureKind::kPeer:
      return ffi::Error(ffi::ErrorCode::kAborted, failure.message);
    case FailureKind::kMisuse:
      return ffi::Error(ffi::ErrorCode::kFailedPrecondition, failure.message);
    case FailureKind::kAction:
      break;
  }
  return ffi::Error(ffi::ErrorCode::kInternal, failure.message);
}

ffi::Future FailedCall(ffi::RunId run, int32_t device, ffi::Error error) {
  // Only the device identifies a member, so its rank need not be known.
  Rendezvous::OfProcess().Abandon(run.run_id, {device, device}, error.message());
  ffi::Promise promise;
  ffi::Future future(promise);
  promise.SetError(std::move(error));
  return future;
}

}  // namespace hloom

extern "C" const XLA_FFI_TypeInfo hloom_cpu_call_type_info;
const XLA_FFI_TypeInfo hloom_cpu_call_type_info = xla::ffi::MakeTypeInfo<hloom::CpuCall>();
