#include "cuda/cuda_runtime.h"

#include <cstdio>

namespace hloom::cuda {
namespace {

constexpr std::chrono::milliseconds kWatchPeriod{100};

void SayOnStderr(const std::string& text) { std::fprintf(stderr, "hloom: %s.\n", text.c_str()); }

Machine* Make(std::string* why) {
  const Driver* driver = LoadedDriver(why);
  return driver == nullptr ? nullptr : new Machine(*driver);
}

}  // namespace

Machine::Machine(const Driver& driver)
    : driver(driver),
      allocator(driver),
      runs(allocator),
      kernels(driver),
      watch(kWatchPeriod, SayOnStderr) {}

Machine* Machine::OfProcess(std::string* why) {
  static std::string& reason = *new std::string();
  static Machine* machine = Make(&reason);
  if (machine == nullptr) *why = reason;
  return machine;
}

}  // namespace hloom::cuda
