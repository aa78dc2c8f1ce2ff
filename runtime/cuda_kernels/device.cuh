// Device operations beyond plain CUDA C++. Source: PTX ISA 8.0, memory consistency model.

#ifndef HLOOM_RUNTIME_CUDA_KERNELS_DEVICE_CUH_
#define HLOOM_RUNTIME_CUDA_KERNELS_DEVICE_CUH_

namespace hloom {

// A release store for all devices and the host.
__device__ inline void StoreRelease(unsigned long long* address, unsigned long long value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

// An acquire load of a value that another device, or the host, stores.
__device__ inline unsigned long long LoadAcquire(const unsigned long long* address) {
  unsigned long long value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}

// Ends the kernel, and every later call on the device's context, with an error.
__device__ inline void Stop() { asm volatile("trap;"); }

}  // namespace hloom

#endif  // HLOOM_RUNTIME_CUDA_KERNELS_DEVICE_CUH_
