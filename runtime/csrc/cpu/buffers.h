// What the handlers on the CPU ask of a call's buffers before they read or write one.
//
// A module can be written by hand, so nothing that a handler relies on is taken on trust.

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

// An error where one of them is no buffer.
xla::ffi::ErrorOr<CallBuffers> BuffersOf(std::string_view what,
                                         const xla::ffi::RemainingArgs& operands,
                                         const xla::ffi::RemainingRets& results);

// For people: "F32[8,4]".
std::string TypeText(const xla::ffi::AnyBuffer& buffer);

// The same elements and sizes.
bool HaveSameType(const xla::ffi::AnyBuffer& a, const xla::ffi::AnyBuffer& b);

// An error unless there is such an operand, or result, and it is a token: a scalar U32.
xla::ffi::Error CheckToken(std::string_view what, const char* kind,
                           const std::vector<xla::ffi::AnyBuffer>& buffers, size_t index);

// Gives a result the token, which is operand 0; an error where either is none.
xla::ffi::Error GiveTokenBack(std::string_view what, const CallBuffers& buffers, size_t result);

// Gives a result the value of an operand. XLA gives both the same buffer where the aliasing that
// lowering declares took effect. An error, before anything is written, where they are of different
// types, or where the result has the buffer of another operand, which would be lost.
xla::ffi::Error GiveBack(std::string_view what, const CallBuffers& buffers, size_t operand,
                         size_t result);

}  // namespace hloom

#endif  // HLOOM_RUNTIME_CSRC_CPU_BUFFERS_H_
