// The CPU's version of runtime/cuda_kernels/device.cuh, for kernels compiled with shim.h.

#ifndef HLOOM_RUNTIME_CSRC_TESTS_CUDA_FAKE_DEVICE_CUH_
#define HLOOM_RUNTIME_CSRC_TESTS_CUDA_FAKE_DEVICE_CUH_

#include "tests/cuda/fake/shim.h"

namespace hloom {

inline void StoreRelease(unsigned long long* address, unsigned long long value) {
  __atomic_store_n(address, value, __ATOMIC_RELEASE);
}

// A thread that looks again and again must let those run that it waits for.
inline unsigned long long LoadAcquire(const unsigned long long* address) {
  shim::Block::Current()->Yield();
  return __atomic_load_n(address, __ATOMIC_ACQUIRE);
}

inline void Stop() { throw shim::Stopped{}; }

}  // namespace hloom

#endif  // HLOOM_RUNTIME_CSRC_TESTS_CUDA_FAKE_DEVICE_CUH_
