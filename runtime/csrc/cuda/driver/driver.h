// CUDA's driver API, loaded when it is first needed: the library neither links nor needs CUDA.

#ifndef HLOOM_RUNTIME_CSRC_CUDA_DRIVER_DRIVER_H_
#define HLOOM_RUNTIME_CSRC_CUDA_DRIVER_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace hloom::cuda {

// The driver's opaque types under hloom's names, for cuda.h is not needed to build.
using Context = struct CUctx_st*;
using Stream = struct CUstream_st*;
using Library = struct CUlib_st*;
using Kernel = struct CUkern_st*;
using Function = struct CUfunc_st*;
using DevicePointer = uint64_t;
using ResultCode = int;

// Empty on success, otherwise the error message.
using MaybeError = std::optional<std::string>;

// The functions of the driver that hloom calls. Source: the CUDA Driver API reference, 12.0.
struct Driver {
  ResultCode (*cuGetErrorName)(ResultCode, const char**);
  ResultCode (*cuGetErrorString)(ResultCode, const char**);
  ResultCode (*cuStreamGetCtx)(Stream, Context*);
  ResultCode (*cuStreamSynchronize)(Stream);
  ResultCode (*cuStreamIsCapturing)(Stream, int*);
  ResultCode (*cuCtxPushCurrent_v2)(Context);
  ResultCode (*cuCtxPopCurrent_v2)(Context*);
  ResultCode (*cuCtxGetDevice)(int*);
  ResultCode (*cuDeviceCanAccessPeer)(int*, int, int);
  ResultCode (*cuCtxEnablePeerAccess)(Context, unsigned);
  ResultCode (*cuThreadExchangeStreamCaptureMode)(int*);
  ResultCode (*cuMemAlloc_v2)(DevicePointer*, size_t);
  ResultCode (*cuMemFree_v2)(DevicePointer);
  ResultCode (*cuMemsetD8_v2)(DevicePointer, unsigned char, size_t);
  ResultCode (*cuMemcpyHtoD_v2)(DevicePointer, const void*, size_t);
  ResultCode (*cuMemsetD32Async)(DevicePointer, unsigned, size_t, Stream);
  ResultCode (*cuMemHostAlloc)(void**, size_t, unsigned);
  ResultCode (*cuMemFreeHost)(void*);
  ResultCode (*cuMemHostGetDevicePointer_v2)(DevicePointer*, void*, unsigned);
  ResultCode (*cuLibraryLoadData)(Library*, const void*, int*, void**, unsigned, int*, void**,
                                  unsigned);
  ResultCode (*cuLibraryUnload)(Library);
  ResultCode (*cuLibraryGetKernel)(Kernel*, Library, const char*);
  ResultCode (*cuKernelGetFunction)(Function*, Kernel);
  ResultCode (*cuFuncGetAttribute)(int*, int, Function);
  ResultCode (*cuLaunchKernel)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                               unsigned, Stream, void**, void**);

  // The error of `call`, for people; empty where its code is success.
  MaybeError Check(ResultCode code, const char* call) const;
};

// The machine's driver, loaded at the first call. Null with an `error` where there is none.
const Driver* LoadedDriver(std::string* error);

// Makes a context the current one of this thread during its lifetime, and lets the thread make
// calls that would break a capture of its own: hloom allocates and loads outside of captures.
class CurrentContext {
 public:
  CurrentContext(const Driver& driver, Context context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

  const MaybeError& error() const { return error_; }

 private:
  const Driver& driver_;
  MaybeError error_;
  int capture_mode_;
};

}  // namespace hloom::cuda

#endif  // HLOOM_RUNTIME_CSRC_CUDA_DRIVER_DRIVER_H_
