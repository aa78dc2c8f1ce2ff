// hloom's kernels, compiled for the CPU.

#ifndef HLOOM_TESTS_NATIVE_CUDA_KERNELS_H_
#define HLOOM_TESTS_NATIVE_CUDA_KERNELS_H_

#include "shim.h"
// After it: tests/support/devices/native_code.py puts this folder's device.cuh in the place of the real one.
#include "barrier.cu"
#include "ragged_all_to_all.cu"

#endif  // HLOOM_TESTS_NATIVE_CUDA_KERNELS_H_
