// The part of the CUDA side that all handlers of a process share.

#ifndef HLOOM_RUNTIME_CSRC_CUDA_CUDA_RUNTIME_H_
#define HLOOM_RUNTIME_CSRC_CUDA_CUDA_RUNTIME_H_

#include "cuda/driver/allocator.h"
#include "cuda/driver/driver.h"
#include "cuda/driver/kernel_loader.h"
#include "cuda/pads/fault_watch.h"
#include "cuda/runs.h"

namespace hloom::cuda {

struct CudaRuntime {
  explicit CudaRuntime(const Driver& driver);

  const Driver& driver;
  DriverAllocator allocator;
  Runs runs;
  KernelLoader kernels;
  FaultWatch watch;

  // The one of this process, made at the first call; never destroyed, for executables may outlive
  // every destructor. Null with an `error` where there is no usable driver.
  static CudaRuntime* OfProcess(std::string* error);
};

}  // namespace hloom::cuda

#endif  // HLOOM_RUNTIME_CSRC_CUDA_CUDA_RUNTIME_H_
