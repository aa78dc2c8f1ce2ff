// A barrier whose handler waits in its thread, as XLA:CPU's own collectives do.
//
// hloom's handler waits in none. This one serves as what it is measured against, and shows what
// happens to barriers that block when ranks meet them in different orders.

#include <cstdint>

#include "group_call.h"
#include "rendezvous.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

ffi::Error BlockingBarrier(ffi::RunId run, int32_t device, ffi::AnyBuffer, ffi::RemainingArgs,
                           ffi::Result<ffi::AnyBuffer>, ffi::RemainingRets,
                           ffi::Dictionary attributes) {
  const auto meeting = hloom::MeetingOf("blocking_barrier", attributes, run, device);
  if (meeting.has_error()) return meeting.error();
  const hloom::Outcome outcome =
      hloom::Rendezvous::OfProcess().ArriveAndWait(*meeting, nullptr, nullptr);
  return outcome.has_value() ? hloom::ErrorOf(*outcome) : ffi::Error::Success();
}

}  // namespace

// Its results must be its first operands (input_output_aliases of all of them).
XLA_FFI_DEFINE_HANDLER_SYMBOL(blocking_barrier, BlockingBarrier,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::RunId>()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>()
                                  .RemainingRets()
                                  .Attrs());
