// What the kernels need of the device beyond plain CUDA C++: PTX ISA 8.0, memory consistency model.

#ifndef HLOOM_RUNTIME_CUDA_KERNELS_DEVICE_CUH_
#define HLOOM_RUNTIME_CUDA_KERNELS_DEVICE_CUH_

namespace hloom {

// Stores for every device and the host to see, after all that this thread has seen or written.
__device__ inline void StoreRelease(unsigned long long* address, unsigned long long value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

// Loads what another device stored, and with it all that came before that store.
__device__ inline unsigned long long LoadAcquire(const unsigned long long* address) {
  unsigned long long value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}

// Ends the kernel, and every later call on the device's context, with an error.
__device__ inline void Stop() { asm volatile("trap;"); }

}  // namespace hloom

#endif  // HLOOM_RUNTIME_CUDA_KERNELS_DEVICE_CUH_
