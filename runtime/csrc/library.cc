// What Python asks the library itself.

#include <cstddef>
#include <cstdio>
#include <string>

#include "trace.h"
#include "xla/ffi/api/c_api.h"

// The version of XLA's FFI that this library was built against.
extern "C" int hloom_ffi_version_major() { return XLA_FFI_API_MAJOR; }
extern "C" int hloom_ffi_version_minor() { return XLA_FFI_API_MINOR; }

// Starts to record calls into a file. Gives 0, or 1 with the reason in `message`.
extern "C" int hloom_start_trace(const char* file, char* message, size_t message_bytes) {
  std::string reason;
  try {
    reason = hloom::StartTrace(file);
  } catch (...) {
    reason = "out of memory";
  }
  std::snprintf(message, message_bytes, "%s", reason.c_str());
  return reason.empty() ? 0 : 1;
}
