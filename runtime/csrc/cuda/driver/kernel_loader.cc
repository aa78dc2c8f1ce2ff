#include "cuda/driver/kernel_loader.h"

namespace hloom::cuda {
namespace {

constexpr int kMaxThreadsPerBlock = 0;  // CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK

}  // namespace

Problem LoadedKernels::Function(const std::string& image, const std::string& name, Context context,
                                cuda::Function* function) {
  std::lock_guard<std::mutex> lock(mutex_);
  CurrentContext current(driver_, context);
  if (current.problem()) return current.problem();
  Library library = nullptr;
  if (Problem problem = Load(image, &library)) return problem;
  Kernel& kernel = kernels_[{library, name}];
  if (kernel == nullptr) {
    Problem problem = driver_.Check(driver_.cuLibraryGetKernel(&kernel, library, name.c_str()),
                                    "cuLibraryGetKernel");
    if (problem) return *problem + ", for " + name;
  }
  cuda::Function& found = functions_[{kernel, context}];
  if (found == nullptr) {
    cuda::Function loaded = nullptr;
    Problem problem =
        driver_.Check(driver_.cuKernelGetFunction(&loaded, kernel), "cuKernelGetFunction");
    if (problem) return *problem + ", for " + name;
    // The driver loads code when it is first asked about: better here than in a capture.
    int threads = 0;
    problem = driver_.Check(driver_.cuFuncGetAttribute(&threads, kMaxThreadsPerBlock, loaded),
                            "cuFuncGetAttribute");
    if (problem) return *problem + ", for " + name;
    found = loaded;
  }
  *function = found;
  return std::nullopt;
}

Problem LoadedKernels::Load(const std::string& image, Library* library) {
  Library& slot = libraries_[image];
  if (slot == nullptr) {
    Problem problem = driver_.Check(
        driver_.cuLibraryLoadData(&slot, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
        "cuLibraryLoadData");
    if (problem) {
      return *problem +
             ": the program was compiled for another kind of device than this one, "
             "or the driver is older than the compiler";
    }
  }
  *library = slot;
  return std::nullopt;
}

}  // namespace hloom::cuda
