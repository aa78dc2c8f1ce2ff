// Handlers that delay a rank, fail it, or observe the progress of other ranks.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using Token = ffi::BufferR0<ffi::U32>;

std::atomic<uint32_t> count{0};

void Pass(Token token, ffi::Result<Token>& result) { *result->typed_data() = *token.typed_data(); }

// Sleeps; the second operand is the time in microseconds.
ffi::Error Sleep(Token token, Token microseconds, ffi::Result<Token> result) {
  std::this_thread::sleep_for(std::chrono::microseconds(*microseconds.typed_data()));
  Pass(token, result);
  return ffi::Error::Success();
}

// Counts the calls of all devices.
ffi::Error Count(Token token, ffi::Result<Token> result) {
  count.fetch_add(1);
  Pass(token, result);
  return ffi::Error::Success();
}

// Returns the number of calls so far.
ffi::Error Counted(Token token, ffi::Result<Token> result, ffi::Result<Token> counted) {
  Pass(token, result);
  *counted->typed_data() = count.load();
  return ffi::Error::Success();
}

ffi::Error Fail(Token, ffi::Result<Token>) {
  return ffi::Error(ffi::ErrorCode::kDataLoss, "this rank fails on purpose");
}

}  // namespace

extern "C" void reset_count() { count.store(0); }

XLA_FFI_DEFINE_HANDLER_SYMBOL(observer_sleep, Sleep,
                              ffi::Ffi::Bind().Arg<Token>().Arg<Token>().Ret<Token>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(observer_count, Count, ffi::Ffi::Bind().Arg<Token>().Ret<Token>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(observer_counted, Counted,
                              ffi::Ffi::Bind().Arg<Token>().Ret<Token>().Ret<Token>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(observer_fail, Fail, ffi::Ffi::Bind().Arg<Token>().Ret<Token>());
