// Functions that Python calls directly.

#include <cstddef>
#include <cstdio>
#include <string>

#include "trace.h"
#include "xla/ffi/api/c_api.h"

// The version of XLA's FFI that this library was built against.
extern "C" int hloom_ffi_version_major() { return XLA_FFI_API_MAJOR; }
extern "C" int hloom_ffi_version_minor() { return XLA_FFI_API_MINOR; }

// Starts to record calls into a file. Returns 0, or 1 with the error in `message`.
extern "C" int hloom_start_trace(const char* file, char* message, size_t message_bytes) {
  std::string error;
  try {
    error = hloom::StartTrace(file);
  } catch (...) {
    error = "out of memory";
  }
  std::snprintf(message, message_bytes, "%s", error.c_str());
  return error.empty() ? 0 : 1;
}
