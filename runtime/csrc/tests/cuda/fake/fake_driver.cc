// A libcuda.so.1 whose devices are threads: it runs hloom's kernels, compiled for the CPU.

#include "tests/cuda/fake/fake_driver.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cuda/fake/kernels.h"

namespace {

constexpr int kDevices = 8;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidValue = 1;
constexpr int kInvalidContext = 201;
constexpr int kNoBinaryForGpu = 209;
constexpr int kNotFound = 500;
constexpr int kPeerAccessAlreadyEnabled = 704;
constexpr int kNotReady = 600;
constexpr int kLaunchFailed = 719;
constexpr int kCaptureUnsupported = 900;

using Work = std::function<bool()>;  // False where it trapped.

struct Context {
  int device;
  std::atomic<bool> dead{false};
  std::set<void*> peers;
};

struct Stream {
  Context* context;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Work> queue;
  bool busy = false;
  std::vector<Work>* capture = nullptr;

  void Push(Work work) {
    std::lock_guard<std::mutex> lock(mutex);
    if (capture != nullptr) {
      capture->push_back(std::move(work));
    } else {
      queue.push_back(std::move(work));
      changed.notify_all();
    }
  }

  void Run() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return !queue.empty(); });
      Work work = std::move(queue.front());
      queue.pop_front();
      busy = true;
      lock.unlock();
      if (!context->dead && !work()) context->dead = true;
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }

  bool Idle() {
    std::lock_guard<std::mutex> lock(mutex);
    return queue.empty() && !busy;
  }

  void Wait() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return queue.empty() && !busy; });
  }
};

// Everything lives until the process ends, as its threads do.
struct FakeMachine {
  std::mutex mutex;
  Context contexts[kDevices];
  std::vector<Stream*> streams;
  std::string calls;
  std::string taken;
  std::set<void*> allocations;
  size_t images = 0;
  int denied_from = -1;
  int denied_to = -1;
  int full = -1;
  bool refuses_images = false;
  std::atomic<int> captures{0};
};

FakeMachine& TheMachine() {
  static FakeMachine& machine = *[] {
    auto* made = new FakeMachine();
    for (int device = 0; device < kDevices; ++device) made->contexts[device].device = device;
    return made;
  }();
  return machine;
}

thread_local std::vector<Context*> t_current;

// Notes the call; gives the error that it has to return, 0 where it may go on.
int Note(const char* name, bool queues) {
  FakeMachine& machine = TheMachine();
  {
    std::lock_guard<std::mutex> lock(machine.mutex);
    machine.calls += std::string(name) + " ";
  }
  return machine.captures > 0 && !queues ? kCaptureUnsupported : 0;
}

int OfContext() {
  if (t_current.empty()) return kInvalidContext;
  return t_current.back()->dead ? kLaunchFailed : 0;
}

int Keep(void* memory, void** out) {
  std::lock_guard<std::mutex> lock(TheMachine().mutex);
  TheMachine().allocations.insert(memory);
  *out = memory;
  return 0;
}

int Release(void* memory) {
  std::lock_guard<std::mutex> lock(TheMachine().mutex);
  if (TheMachine().allocations.erase(memory) == 0) return kInvalidValue;
  // Garbage for a use after free.
  std::memset(memory, 0xee, sizeof(hloom::FaultReport));
  std::free(memory);
  return 0;
}

void* NewStream(int device) {
  auto* stream = new Stream{};
  stream->context = &TheMachine().contexts[device];
  std::thread([stream] { stream->Run(); }).detach();
  std::lock_guard<std::mutex> lock(TheMachine().mutex);
  TheMachine().streams.push_back(stream);
  return stream;
}

void BeginCapture(void* stream) {
  static_cast<Stream*>(stream)->capture = new std::vector<Work>();
  ++TheMachine().captures;
}

void* EndCapture(void* stream) {
  --TheMachine().captures;
  return std::exchange(static_cast<Stream*>(stream)->capture, nullptr);
}

const char* TakeCalls() {
  std::lock_guard<std::mutex> lock(TheMachine().mutex);
  TheMachine().taken = std::exchange(TheMachine().calls, "");
  return TheMachine().taken.c_str();
}

size_t Allocations() {
  std::lock_guard<std::mutex> lock(TheMachine().mutex);
  return TheMachine().allocations.size();
}

const FakeDriver kFakeDriver = {
    NewStream,
    [](void* stream) { static_cast<Stream*>(stream)->Wait(); },
    [](void* stream, int milliseconds) {
      static_cast<Stream*>(stream)->Push([milliseconds] {
        std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
        return true;
      });
    },
    BeginCapture,
    EndCapture,
    [](void* graph, void* stream) {
      for (const Work& work : *static_cast<std::vector<Work>*>(graph)) {
        static_cast<Stream*>(stream)->Push(work);
      }
    },
    TakeCalls,
    Allocations,
    [] { return TheMachine().images; },
    [](int from, int to) {
      TheMachine().denied_from = from;
      TheMachine().denied_to = to;
    },
    [](int device) { TheMachine().full = device; },
    [](bool refuse) { TheMachine().refuses_images = refuse; },
};

template <typename Arguments>
Arguments Copied(void** parameters, int index) {
  return *static_cast<const Arguments*>(parameters[index]);
}

}  // namespace

extern "C" {

const FakeDriver* fake_driver() { return &kFakeDriver; }

int cuInit(unsigned) { return 0; }
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal < kDevices ? 0 : kInvalidValue;
}

int cuGetErrorName(int code, const char** name) {
  *name = code == kOutOfMemory      ? "CUDA_ERROR_OUT_OF_MEMORY"
          : code == kNoBinaryForGpu ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
          : code == kLaunchFailed   ? "CUDA_ERROR_LAUNCH_FAILED"
                                    : "CUDA_ERROR_UNKNOWN";
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "the fake driver says so";
  return 0;
}

int cuStreamGetCtx(Stream* stream, Context** context) {
  *context = stream->context;
  return Note("cuStreamGetCtx", false);
}
int cuStreamSynchronize(Stream* stream) {
  if (int error = Note("cuStreamSynchronize", false)) return error;
  // Nothing is ever queued on the default stream.
  if (stream == nullptr) return 0;
  stream->Wait();
  return stream->context->dead ? kLaunchFailed : 0;
}
int cuStreamIsCapturing(Stream* stream, int* status) {
  if (int error = Note("cuStreamIsCapturing", true)) return error;
  *status = stream->capture != nullptr;
  return 0;
}
int cuStreamQuery(Stream* stream) { return stream->Idle() ? 0 : kNotReady; }
int cuStreamCreate(void** stream, unsigned) {
  *stream = NewStream(t_current.back()->device);
  return 0;
}
int cuStreamBeginCapture_v2(void* stream, int) {
  BeginCapture(stream);
  return 0;
}
int cuStreamEndCapture(void* stream, void** graph) {
  *graph = EndCapture(stream);
  return 0;
}
int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
  *executable = graph;
  return 0;
}
int cuGraphLaunch(void* executable, void* stream) {
  kFakeDriver.replay(executable, stream);
  return 0;
}
int cuDevicePrimaryCtxRetain(Context** context, int device) {
  *context = &TheMachine().contexts[device];
  return 0;
}
// NVRTC of CUDA 13.5 asks every driver that it finds for tables of its own.
int cuGetExportTable(const void** table, const void*) {
  *table = nullptr;
  return kNotFound;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  constexpr int kMajor = 75;
  *value = attribute == kMajor ? 9 : 0;
  return 0;
}
int cuCtxPushCurrent_v2(Context* context) {
  t_current.push_back(context);
  return Note("cuCtxPushCurrent", false);
}
int cuCtxPopCurrent_v2(Context** context) {
  *context = t_current.back();
  t_current.pop_back();
  return 0;
}
int cuCtxGetDevice(int* device) {
  if (int error = OfContext()) return error;
  *device = t_current.back()->device;
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int*) { return 0; }

int cuDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != TheMachine().denied_from || peer != TheMachine().denied_to;
  return 0;
}
int cuCtxEnablePeerAccess(Context* peer, unsigned) {
  if (int error = OfContext()) return error;
  std::lock_guard<std::mutex> lock(TheMachine().mutex);
  return t_current.back()->peers.insert(peer).second ? 0 : kPeerAccessAlreadyEnabled;
}

int cuMemAlloc_v2(void** memory, size_t bytes) {
  if (int error = Note("cuMemAlloc", false)) return error;
  if (int error = OfContext()) return error;
  if (t_current.back()->device == TheMachine().full) return kOutOfMemory;
  constexpr size_t kAlignment = 256;
  size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  // Memory of a device is not zero at first.
  return Keep(std::memset(std::aligned_alloc(kAlignment, rounded), 0xdd, rounded), memory);
}
int cuMemFree_v2(void* memory) {
  if (int error = Note("cuMemFree", false)) return error;
  return Release(memory);
}
int cuMemsetD8_v2(void* memory, unsigned char value, size_t bytes) {
  std::memset(memory, value, bytes);
  return OfContext();
}
int cuMemcpyHtoD_v2(void* memory, const void* from, size_t bytes) {
  std::memcpy(memory, from, bytes);
  return OfContext();
}
int cuMemcpyDtoH_v2(void* to, const void* memory, size_t bytes) {
  std::memcpy(to, memory, bytes);
  return OfContext();
}
int cuMemsetD32Async(unsigned* memory, unsigned value, size_t count, Stream* stream) {
  if (int error = Note("cuMemsetD32Async", true)) return error;
  stream->Push([=] {
    std::fill(memory, memory + count, value);
    return true;
  });
  return 0;
}
int cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  if (int error = Note("cuMemHostAlloc", false)) return error;
  return Keep(std::malloc(bytes), memory);
}
int cuMemFreeHost(void* memory) { return Release(memory); }
int cuMemHostGetDevicePointer_v2(void** device, void* host, unsigned) {
  *device = host;
  return 0;
}

#ifndef HLOOM_FAKE_OLD_DRIVER
int cuLibraryLoadData(void** library, const void* image, int*, void**, unsigned, int*, void**,
                      unsigned) {
  if (int error = Note("cuLibraryLoadData", false)) return error;
  if (TheMachine().refuses_images) return kNoBinaryForGpu;
  ++TheMachine().images;
  *library = const_cast<void*>(image);
  return 0;
}
#endif
int cuLibraryUnload(void*) { return 0; }
// A kernel, and its function, is the number of it.
int cuLibraryGetKernel(void** kernel, void*, const char* name) {
  uintptr_t number = std::strcmp(name, "hloom_barrier") == 0             ? 1
                     : std::strcmp(name, "hloom_ragged_all_to_all") == 0 ? 2
                                                                         : 0;
  *kernel = reinterpret_cast<void*>(number);
  return number == 0 ? 500 : 0;
}
int cuKernelGetFunction(void** function, void* kernel) {
  *function = kernel;
  return OfContext();
}
int cuFuncGetAttribute(int* value, int, void*) {
  *value = 1024;
  return Note("cuFuncGetAttribute", false);
}
int cuLaunchKernel(void* function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned,
                   unsigned, unsigned, Stream* stream, void** parameters, void**) {
  if (int error = Note("cuLaunchKernel", true)) return error;
  if (stream->context->dead) return kLaunchFailed;
  auto site = Copied<hloom::Site>(parameters, 0);
  if (reinterpret_cast<uintptr_t>(function) == 1) {
    stream->Push([=] { return shim::Launch(blocks, threads, true, [&] { hloom_barrier(site); }); });
  } else {
    auto buffers = Copied<hloom::RaggedBuffers>(parameters, 1);
    stream->Push([=] {
      return shim::Launch(blocks, threads, true, [&] { hloom_ragged_all_to_all(site, buffers); });
    });
  }
  return 0;
}

}  // extern "C"
