// Kernel images, loaded into the driver.

#ifndef HLOOM_RUNTIME_CSRC_CUDA_DRIVER_KERNEL_LOADER_H_
#define HLOOM_RUNTIME_CSRC_CUDA_DRIVER_KERNEL_LOADER_H_

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "cuda/driver/driver.h"

namespace hloom::cuda {

// Loads each image of this process once, until the process ends: there are few, and none can be
// unloaded while a launch is in flight. Thread-safe.
class KernelLoader {
 public:
  explicit KernelLoader(const Driver& driver) : driver_(driver) {}

  // Makes a kernel ready for launches in a context, also during a capture. Must not itself be
  // called during a capture.
  MaybeError Load(const std::string& image, const std::string& name, Context context,
                  Function* function);

 private:
  MaybeError LoadImage(const std::string& image, Library* library);

  const Driver& driver_;
  std::mutex mutex_;
  std::map<std::string, Library> libraries_;                   // By image.
  std::map<std::pair<Library, std::string>, Kernel> kernels_;  // By name.
  std::map<std::pair<Kernel, Context>, Function> functions_;
};

}  // namespace hloom::cuda

#endif  // HLOOM_RUNTIME_CSRC_CUDA_DRIVER_KERNEL_LOADER_H_
