// Checks of a call's buffers before a CPU handler reads or writes one.
//
// A module can be written by hand, so handlers check everything that they rely on.

#ifndef HLOOM_RUNTIME_CSRC_CPU_BUFFERS_H_
#define HLOOM_RUNTIME_CSRC_CPU_BUFFERS_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace hloom {

// The operands and results of one call.
struct CallBuffers {
  std::vector<xla::ffi::AnyBuffer> operands;
  std::vector<xla::ffi::AnyBuffer> results;
};

// An error where an operand or result is no buffer.
xla::ffi::ErrorOr<CallBuffers> BuffersOf(std::string_view kind,
                                         const xla::ffi::RemainingArgs& operands,
                                         const xla::ffi::RemainingRets& results);

// For people: "F32[8,4]".
std::string TypeText(const xla::ffi::AnyBuffer& buffer);

// Whether element types and dimensions are equal.
bool HaveSameType(const xla::ffi::AnyBuffer& a, const xla::ffi::AnyBuffer& b);

// An error unless the buffer exists and is a token, a scalar U32. `role` is "operand" or "result".
xla::ffi::Error CheckToken(std::string_view kind, const char* role,
                           const std::vector<xla::ffi::AnyBuffer>& buffers, size_t index);

// Copies the token, operand 0, into a result. An error where either is no token.
xla::ffi::Error CopyToken(std::string_view kind, const CallBuffers& buffers, size_t result);

// Copies an operand into a result, unless XLA gave both the same buffer, as the aliasing that
// lowering declares asks for. An error, before anything is written, where their types differ, or
// where the result has the buffer of another operand, which would be lost.
xla::ffi::Error CopyOperand(std::string_view kind, const CallBuffers& buffers, size_t operand,
                            size_t result);

}  // namespace hloom

#endif  // HLOOM_RUNTIME_CSRC_CPU_BUFFERS_H_
