#include "cuda/cuda_runtime.h"

#include <cstdio>

namespace hloom::cuda {
namespace {

constexpr std::chrono::milliseconds kWatchPeriod{100};

void LogToStderr(const std::string& text) { std::fprintf(stderr, "hloom: %s.\n", text.c_str()); }

CudaRuntime* Make(std::string* error) {
  const Driver* driver = LoadedDriver(error);
  return driver == nullptr ? nullptr : new CudaRuntime(*driver);
}

}  // namespace

CudaRuntime::CudaRuntime(const Driver& driver)
    : driver(driver),
      allocator(driver),
      runs(allocator),
      kernels(driver),
      watch(kWatchPeriod, LogToStderr) {}

CudaRuntime* CudaRuntime::OfProcess(std::string* error) {
  static std::string& load_error = *new std::string();
  static CudaRuntime* runtime = Make(&load_error);
  if (runtime == nullptr) *error = load_error;
  return runtime;
}

}  // namespace hloom::cuda
