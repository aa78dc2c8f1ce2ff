#include "cuda/driver/driver.h"

#include <dlfcn.h>

namespace hloom::cuda {
namespace {

constexpr char kLibrary[] = "libcuda.so.1";
constexpr int kRelaxedCapture = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED

struct Loaded {
  Driver driver{};
  std::string error;  // Empty where the driver is usable.
};

template <typename F>
void Find(void* library, const char* name, F** function, std::string* error) {
  *function = reinterpret_cast<F*>(dlsym(library, name));
  if (*function == nullptr && error->empty()) {
    *error = std::string(kLibrary) + " has no " + name +
             ": hloom needs the driver of CUDA 12.0 or later";
  }
}

Loaded Load() {
  Loaded loaded;
  // Never closed: kernels loaded through it may run until the process ends.
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* message = dlerror();
    loaded.error = message == nullptr ? std::string(kLibrary) + " cannot be loaded" : message;
    return loaded;
  }
  Driver& driver = loaded.driver;
#define HLOOM_FIND(name) Find(library, #name, &driver.name, &loaded.error)
  HLOOM_FIND(cuGetErrorName);
  HLOOM_FIND(cuGetErrorString);
  HLOOM_FIND(cuStreamGetCtx);
  HLOOM_FIND(cuStreamSynchronize);
  HLOOM_FIND(cuStreamIsCapturing);
  HLOOM_FIND(cuCtxPushCurrent_v2);
  HLOOM_FIND(cuCtxPopCurrent_v2);
  HLOOM_FIND(cuCtxGetDevice);
  HLOOM_FIND(cuDeviceCanAccessPeer);
  HLOOM_FIND(cuCtxEnablePeerAccess);
  HLOOM_FIND(cuThreadExchangeStreamCaptureMode);
  HLOOM_FIND(cuMemAlloc_v2);
  HLOOM_FIND(cuMemFree_v2);
  HLOOM_FIND(cuMemsetD8_v2);
  HLOOM_FIND(cuMemcpyHtoD_v2);
  HLOOM_FIND(cuMemsetD32Async);
  HLOOM_FIND(cuMemHostAlloc);
  HLOOM_FIND(cuMemFreeHost);
  HLOOM_FIND(cuMemHostGetDevicePointer_v2);
  HLOOM_FIND(cuLibraryLoadData);
  HLOOM_FIND(cuLibraryUnload);
  HLOOM_FIND(cuLibraryGetKernel);
  HLOOM_FIND(cuKernelGetFunction);
  HLOOM_FIND(cuFuncGetAttribute);
  HLOOM_FIND(cuLaunchKernel);
#undef HLOOM_FIND
  return loaded;
}

}  // namespace

MaybeError Driver::Check(ResultCode code, const char* call) const {
  if (code == 0) return std::nullopt;
  const char* name = nullptr;
  const char* text = nullptr;
  cuGetErrorName(code, &name);
  cuGetErrorString(code, &text);
  std::string message = std::string(call) + ": ";
  message += name == nullptr ? "error " + std::to_string(code) : name;
  if (text != nullptr) message += std::string(" (") + text + ")";
  return message;
}

const Driver* LoadedDriver(std::string* error) {
  static const Loaded& loaded = *new Loaded(Load());
  if (loaded.error.empty()) return &loaded.driver;
  *error = loaded.error;
  return nullptr;
}

CurrentContext::CurrentContext(const Driver& driver, Context context)
    : driver_(driver),
      error_(driver.Check(driver.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent")),
      capture_mode_(kRelaxedCapture) {
  // Exchanges: afterwards `capture_mode_` is the former mode.
  driver_.cuThreadExchangeStreamCaptureMode(&capture_mode_);
}

CurrentContext::~CurrentContext() {
  driver_.cuThreadExchangeStreamCaptureMode(&capture_mode_);
  Context popped;
  if (!error_) driver_.cuCtxPopCurrent_v2(&popped);
}

}  // namespace hloom::cuda
