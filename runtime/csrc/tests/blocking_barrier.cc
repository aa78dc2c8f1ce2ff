// A barrier whose handler blocks its thread, as XLA:CPU's own collectives do; hloom's blocks none.
//
// Tests and measurements compare hloom's barrier with it, and show what happens to blocking
// barriers that ranks reach in different orders.

#include <cstdint>

#include "call_attributes.h"
#include "cpu/group_call.h"
#include "rendezvous.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

ffi::Error BlockingBarrier(ffi::RunId run, int32_t device, ffi::AnyBuffer, ffi::RemainingArgs,
                           ffi::Result<ffi::AnyBuffer>, ffi::RemainingRets,
                           ffi::Dictionary attributes) {
  const auto call = hloom::CallAttributes::Parse("blocking_barrier", attributes);
  if (call.has_error()) return call.error();
  const auto arrival = call->ArrivalOf(run, device);
  if (arrival.has_error()) return arrival.error();
  const hloom::Outcome outcome =
      hloom::Rendezvous::OfProcess().ArriveAndWait(*arrival, nullptr, nullptr);
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
