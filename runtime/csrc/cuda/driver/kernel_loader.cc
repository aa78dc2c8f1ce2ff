#include "cuda/driver/kernel_loader.h"

namespace hloom::cuda {
namespace {

constexpr int kMaxThreadsPerBlock = 0;  // CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK

}  // namespace

MaybeError KernelLoader::Load(const std::string& image, const std::string& name, Context context,
                              Function* function) {
  std::lock_guard<std::mutex> lock(mutex_);
  CurrentContext current(driver_, context);
  if (current.error()) return current.error();
  Library library = nullptr;
  if (MaybeError error = LoadImage(image, &library)) return error;
  Kernel& kernel = kernels_[{library, name}];
  if (kernel == nullptr) {
    MaybeError error = driver_.Check(driver_.cuLibraryGetKernel(&kernel, library, name.c_str()),
                                     "cuLibraryGetKernel");
    if (error) return *error + ", for " + name;
  }
  Function& found = functions_[{kernel, context}];
  if (found == nullptr) {
    Function loaded = nullptr;
    MaybeError error =
        driver_.Check(driver_.cuKernelGetFunction(&loaded, kernel), "cuKernelGetFunction");
    if (error) return *error + ", for " + name;
    // The first query makes the driver load the code: better here than in a capture.
    int threads = 0;
    error = driver_.Check(driver_.cuFuncGetAttribute(&threads, kMaxThreadsPerBlock, loaded),
                          "cuFuncGetAttribute");
    if (error) return *error + ", for " + name;
    found = loaded;
  }
  *function = found;
  return std::nullopt;
}

MaybeError KernelLoader::LoadImage(const std::string& image, Library* library) {
  Library& slot = libraries_[image];
  if (slot == nullptr) {
    MaybeError error = driver_.Check(
        driver_.cuLibraryLoadData(&slot, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
        "cuLibraryLoadData");
    if (error) {
      return *error +
             ": the program was compiled for another kind of device than this one, "
             "or the driver is older than the compiler";
    }
  }
  *library = slot;
  return std::nullopt;
}

}  // namespace hloom::cuda
