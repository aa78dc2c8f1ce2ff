// Calls FFI handlers as XLA:GPU does, with the test's devices, runs and buffers.

#ifndef HLOOM_RUNTIME_CSRC_TESTS_CUDA_FAKE_FAKE_XLA_H_
#define HLOOM_RUNTIME_CSRC_TESTS_CUDA_FAKE_FAKE_XLA_H_

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "xla/ffi/api/c_api.h"

// The context of a handler's call; XLA's own type is opaque.
struct XLA_FFI_ExecutionContext {
  void* stream = nullptr;
  void** state = nullptr;
  int64_t run = 0;
  int32_t device = 0;
};

struct XLA_FFI_Error {
  std::string message;
};

namespace fake_xla {

struct Buffer {
  XLA_FFI_DataType type;
  void* data;
  std::vector<int64_t> shape;
};

using Attribute = std::variant<int64_t, std::vector<int64_t>, std::string>;

// Sorted by name, as handlers expect.
using Attributes = std::map<std::string, Attribute>;

// Calls one stage. Returns the error's message, or an empty text.
std::string Call(XLA_FFI_Handler* handler, XLA_FFI_ExecutionStage stage,
                 XLA_FFI_ExecutionContext context, const std::vector<Buffer>& operands,
                 const std::vector<Buffer>& results, const Attributes& attributes);

// Whether XLA may record a handler in a command buffer.
bool IsCommandBufferCompatible(XLA_FFI_Handler* handler);

}  // namespace fake_xla

#endif  // HLOOM_RUNTIME_CSRC_TESTS_CUDA_FAKE_FAKE_XLA_H_
