// One call of a kernel in a program: what it needs on every device, ready before it is launched.

#ifndef HLOOM_RUNTIME_CSRC_CUDA_CALL_SITE_H_
#define HLOOM_RUNTIME_CSRC_CUDA_CALL_SITE_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/cuda_runtime.h"
#include "group_call.h"
#include "pad.cuh"
#include "xla/ffi/api/ffi.h"

namespace hloom::cuda {

// The state of one custom call: XLA makes one for each call and executable, which all devices of
// the process share, and destroys it with the executable.
class CallSite {
 public:
  // XLA writes the id of the type here when Python registers it, which finds it by this symbol.
  static xla::ffi::TypeId id asm("hloom_cuda_site_type_id");

  CallSite(std::string_view what, std::string_view image, std::string_view kernel)
      : what_(what), image_(image), kernel_(kernel) {}

  // "hloom.barrier"; for people.
  const std::string& what() const { return what_; }

  // Gets all that launches of the calling device need, and lets the device begin the run. Waits for
  // the other ranks to do so.
  xla::ffi::Error Initialize(const Meeting& meeting, Stream stream);

  // Queues the kernel, with `arguments` after its hloom::Site. Queues nothing else and waits for
  // nothing: it may be inside a capture.
  xla::ffi::Error Launch(const Meeting& meeting, Stream stream, unsigned blocks, unsigned threads,
                         void* arguments);

 private:
  xla::ffi::Error Wrong(const Meeting& meeting, const std::string& why) const;

  const std::string what_;
  const std::string image_;
  const std::string kernel_;
  std::mutex mutex_;
  std::map<std::vector<int64_t>, Clique*> cliques_;  // By their devices.
  std::map<int64_t, Function> functions_;            // By device.
};

}  // namespace hloom::cuda

#endif  // HLOOM_RUNTIME_CSRC_CUDA_CALL_SITE_H_
