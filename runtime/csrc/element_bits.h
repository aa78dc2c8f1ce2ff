// Sizes of elements in memory.

#ifndef HLOOM_RUNTIME_CSRC_ELEMENT_BITS_H_
#define HLOOM_RUNTIME_CSRC_ELEMENT_BITS_H_

#include <cstddef>
#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace hloom {

// The bits of one element in XLA:CPU's memory; 0 for a type that this library does not know.
//
// The FFI's own ByteWidth says one byte for types of four bits and less, but XLA hands them over
// packed, the first element in the low bits (measured 2026-11 with jaxlib 0.10.2 and 0.12.0): a
// copy of `size_bytes()` would run past the end of such a buffer.
constexpr int ElementBits(xla::ffi::DataType type) {
  switch (type) {
    case xla::ffi::DataType::INVALID:
    case xla::ffi::DataType::TOKEN:
      return 0;
    case xla::ffi::DataType::S1:
    case xla::ffi::DataType::U1:
      return 1;
    case xla::ffi::DataType::S2:
    case xla::ffi::DataType::U2:
      return 2;
    case xla::ffi::DataType::S4:
    case xla::ffi::DataType::U4:
    case xla::ffi::DataType::F4E2M1FN:
      return 4;
    case xla::ffi::DataType::PRED:
    case xla::ffi::DataType::S8:
    case xla::ffi::DataType::U8:
    case xla::ffi::DataType::F8E5M2:
    case xla::ffi::DataType::F8E4M3:
    case xla::ffi::DataType::F8E4M3FN:
    case xla::ffi::DataType::F8E4M3B11FNUZ:
    case xla::ffi::DataType::F8E5M2FNUZ:
    case xla::ffi::DataType::F8E4M3FNUZ:
    case xla::ffi::DataType::F8E3M4:
    case xla::ffi::DataType::F8E8M0FNU:
      return 8;
    case xla::ffi::DataType::S16:
    case xla::ffi::DataType::U16:
    case xla::ffi::DataType::F16:
    case xla::ffi::DataType::BF16:
      return 16;
    case xla::ffi::DataType::S32:
    case xla::ffi::DataType::U32:
    case xla::ffi::DataType::F32:
      return 32;
    case xla::ffi::DataType::S64:
    case xla::ffi::DataType::U64:
    case xla::ffi::DataType::F64:
    case xla::ffi::DataType::C64:
      return 64;
    case xla::ffi::DataType::C128:
      return 128;
  }
  return 0;  // a type of a newer XLA
}

// The bytes of a buffer in memory, packed types included; 0 for an unknown type.
inline size_t BufferBytes(const xla::ffi::AnyBuffer& buffer) {
  auto bits = static_cast<size_t>(ElementBits(buffer.element_type()));
  // A product of sizes need not fit where one of them is 0; memory that is there does.
  for (const int64_t size : buffer.dimensions()) {
    if (size == 0) return 0;
  }
  for (const int64_t size : buffer.dimensions()) bits *= static_cast<size_t>(size);
  return (bits + 7) / 8;
}

}  // namespace hloom

#endif  // HLOOM_RUNTIME_CSRC_ELEMENT_BITS_H_
