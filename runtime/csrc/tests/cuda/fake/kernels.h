// hloom's kernels, compiled for the CPU.

#ifndef HLOOM_RUNTIME_CSRC_TESTS_CUDA_FAKE_KERNELS_H_
#define HLOOM_RUNTIME_CSRC_TESTS_CUDA_FAKE_KERNELS_H_

#include "tests/cuda/fake/shim.h"
// After it: the build puts this folder's device.cuh in the place of the real one.
#include "barrier.cu"
#include "ragged_all_to_all.cu"

#endif  // HLOOM_RUNTIME_CSRC_TESTS_CUDA_FAKE_KERNELS_H_
