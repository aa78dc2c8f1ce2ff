// A kernel of an image, as the driver launches it.

#ifndef HLOOM_RUNTIME_CSRC_CUDA_DRIVER_KERNEL_LOADER_H_
#define HLOOM_RUNTIME_CSRC_CUDA_DRIVER_KERNEL_LOADER_H_

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "cuda/driver/driver.h"

namespace hloom::cuda {

// The images that this process has loaded, each once and until the process ends: a handful, and
// none can be unloaded under a launch that is in flight. Thread-safe.
class LoadedKernels {
 public:
  explicit LoadedKernels(const Driver& driver) : driver_(driver) {}

  // The kernel ready for launches in a context, also during a capture. Not itself to be called
  // during a capture.
  Problem Function(const std::string& image, const std::string& name, Context context,
                   cuda::Function* function);

 private:
  Problem Load(const std::string& image, Library* library);

  const Driver& driver_;
  std::mutex mutex_;
  std::map<std::string, Library> libraries_;                   // By image.
  std::map<std::pair<Library, std::string>, Kernel> kernels_;  // By name.
  std::map<std::pair<Kernel, Context>, cuda::Function> functions_;
};

}  // namespace hloom::cuda

#endif  // HLOOM_RUNTIME_CSRC_CUDA_DRIVER_KERNEL_LOADER_H_
