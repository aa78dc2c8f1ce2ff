#include "cpu/buffers.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <sstream>

#include "element_bits.h"

namespace hloom {
namespace {

namespace ffi = xla::ffi;

using Buffers = std::vector<ffi::AnyBuffer>;

bool ShareMemory(const ffi::AnyBuffer& a, const ffi::AnyBuffer& b) {
  const size_t a_bytes = BufferBytes(a);
  const size_t b_bytes = BufferBytes(b);
  if (a_bytes == 0 || b_bytes == 0) return false;
  const auto a_begin = reinterpret_cast<uintptr_t>(a.untyped_data());
  const auto b_begin = reinterpret_cast<uintptr_t>(b.untyped_data());
  return a_begin < b_begin + b_bytes && b_begin < a_begin + a_bytes;
}

}  // namespace

ffi::ErrorOr<CallBuffers> BuffersOf(std::string_view kind, const ffi::RemainingArgs& operands,
                                    const ffi::RemainingRets& results) {
  CallBuffers buffers;
  for (size_t i = 0; i < operands.size(); ++i) {
    const auto operand = operands.get<ffi::AnyBuffer>(i);
    if (operand.has_error()) {
      return ffi::Unexpected(ffi::Error::InvalidArgument(
          std::string(kind) + ": operand " + std::to_string(i) + ": " + operand.error().message()));
    }
    buffers.operands.push_back(*operand);
  }
  for (size_t i = 0; i < results.size(); ++i) {
    auto result = results.get<ffi::AnyBuffer>(i);
    if (result.has_error()) {
      return ffi::Unexpected(ffi::Error::InvalidArgument(
          std::string(kind) + ": result " + std::to_string(i) + ": " + result.error().message()));
    }
    buffers.results.push_back(**result);
  }
  return buffers;
}

std::string TypeText(const ffi::AnyBuffer& buffer) {
  std::ostringstream text;
  text << buffer.element_type() << "[";
  const char* separator = "";
  for (const int64_t size : buffer.dimensions()) {
    text << separator << size;
    separator = ",";
  }
  text << "]";
  return text.str();
}

bool HaveSameType(const ffi::AnyBuffer& a, const ffi::AnyBuffer& b) {
  const auto a_sizes = a.dimensions();
  const auto b_sizes = b.dimensions();
  return a.element_type() == b.element_type() &&
         std::equal(a_sizes.begin(), a_sizes.end(), b_sizes.begin(), b_sizes.end());
}

ffi::Error CheckToken(std::string_view kind, const char* role, const Buffers& buffers,
                      size_t index) {
  const std::string name = std::string(kind) + ": " + role + " " + std::to_string(index);
  if (index >= buffers.size()) {
    return ffi::Error::InvalidArgument(name + " is missing; wanted the token, U32[]");
  }
  const ffi::AnyBuffer& token = buffers[index];
  if (token.element_type() != ffi::DataType::U32 || token.dimensions().size() != 0) {
    return ffi::Error::InvalidArgument(name + " has type " + TypeText(token) +
                                       "; wanted the token, U32[]");
  }
  return ffi::Error::Success();
}

ffi::Error CopyOperand(std::string_view kind, const CallBuffers& buffers, size_t operand,
                       size_t result) {
  const ffi::AnyBuffer& from = buffers.operands[operand];
  const ffi::AnyBuffer& to = buffers.results[result];
  const std::string name = std::string(kind) + ": result " + std::to_string(result);
  if (!HaveSameType(from, to)) {
    return ffi::Error::InvalidArgument(name + " has type " + TypeText(to) + ", and operand " +
                                       std::to_string(operand) + ", whose value it takes, " +
                                       TypeText(from) + "; they must be the same");
  }
  if (from.untyped_data() == to.untyped_data()) return ffi::Error::Success();
  const size_t bytes = BufferBytes(from);
  if (bytes == 0) {
    if (ElementBits(from.element_type()) != 0) return ffi::Error::Success();
    return ffi::Error::InvalidArgument(name + " has type " + TypeText(to) +
                                       ", of elements that this hloom does not know");
  }
  for (size_t i = 0; i < buffers.operands.size(); ++i) {
    if (!ShareMemory(buffers.operands[i], to)) continue;
    return ffi::Error::InvalidArgument(name + " has the buffer of operand " + std::to_string(i) +
                                       ", and takes the value of operand " +
                                       std::to_string(operand) + "; these must be the same");
  }
  std::memcpy(to.untyped_data(), from.untyped_data(), bytes);
  return ffi::Error::Success();
}

ffi::Error CopyToken(std::string_view kind, const CallBuffers& buffers, size_t result) {
  ffi::Error error = CheckToken(kind, "operand", buffers.operands, 0);
  if (error.success()) error = CheckToken(kind, "result", buffers.results, result);
  return error.success() ? CopyOperand(kind, buffers, 0, result) : error;
}

}  // namespace hloom
