// One call of a kernel in a program, with everything that its launches need on every device.

#ifndef HLOOM_RUNTIME_CSRC_CUDA_CALL_SITE_H_
#define HLOOM_RUNTIME_CSRC_CUDA_CALL_SITE_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "call_attributes.h"
#include "cuda/cuda_runtime.h"
#include "pad.cuh"
#include "rendezvous.h"
#include "xla/ffi/api/ffi.h"

namespace hloom::cuda {

// The state of one custom call: XLA makes one for each call and executable, which all devices of
// the process share, and destroys it with the executable.
class CallSite {
 public:
  // XLA writes the type's id here when Python registers it, under this symbol.
  static xla::ffi::TypeId id asm("hloom_cuda_site_type_id");

  CallSite(CallAttributes attributes, std::string_view image, std::string_view kernel);

  const CallAttributes& attributes() const { return attributes_; }

  // Prepares launches of the arriving device and enters the run. Waits for the other ranks to do
  // so.
  xla::ffi::Error Initialize(const Arrival& arrival, Stream stream);

  // Queues the kernel, with `arguments` after its hloom::Site. Queues nothing else and waits for
  // nothing: the stream may be capturing.
  xla::ffi::Error Launch(const Arrival& arrival, Stream stream, unsigned blocks, unsigned threads,
                         void* arguments);

 private:
  // What Initialize prepared for one device.
  struct Prepared {
    Function function;
    Clique* clique;
  };

  xla::ffi::Error Failed(const Arrival& arrival, const std::string& error) const;

  const CallAttributes attributes_;
  const uint32_t tag_;
  const std::string image_;
  const std::string kernel_;
  std::mutex mutex_;
  std::map<int64_t, Prepared> by_device_;
};

}  // namespace hloom::cuda

#endif  // HLOOM_RUNTIME_CSRC_CUDA_CALL_SITE_H_
