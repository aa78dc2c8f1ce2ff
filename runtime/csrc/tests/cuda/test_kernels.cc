// Stand-ins for other libraries' kernels, for tests of XLA's treatment of the calls around them.

#include <cstring>
#include <string_view>

#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

// Compiled for, never run.
ffi::Error Nothing(ffi::RemainingArgs, ffi::RemainingRets) { return ffi::Error::Success(); }

// Writes the bytes of its attribute into its result.
ffi::Error WriteAttribute(std::string_view image, ffi::Result<ffi::BufferR1<ffi::U8>> bytes) {
  if (image.size() != bytes->size_bytes()) {
    return ffi::Error::InvalidArgument("the attribute has " + std::to_string(image.size()) +
                                       " bytes, the result " + std::to_string(bytes->size_bytes()));
  }
  std::memcpy(bytes->untyped_data(), image.data(), image.size());
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(test_nothing, Nothing,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets(),
                              {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    test_write_attribute, WriteAttribute,
    ffi::Ffi::Bind().Attr<std::string_view>("image").Ret<ffi::BufferR1<ffi::U8>>());
