// The fake driver's functions for tests, beside CUDA's own.

#ifndef HLOOM_RUNTIME_CSRC_TESTS_CUDA_FAKE_FAKE_DRIVER_H_
#define HLOOM_RUNTIME_CSRC_TESTS_CUDA_FAKE_FAKE_DRIVER_H_

#include <cstddef>

// A table of functions, since tests load the library at run time as hloom does.
struct FakeDriver {
  // Makes a stream of a device; work on it runs in its own thread, in order.
  void* (*new_stream)(int device);
  // Waits for all queued work.
  void (*wait)(void* stream);
  // Queues work of this duration.
  void (*sleep)(void* stream, int milliseconds);
  // Between the two, queued work is recorded and does not run, and every call of the driver except
  // launches and memsets fails. end_capture returns the recorded graph.
  void (*begin_capture)(void* stream);
  void* (*end_capture)(void* stream);
  void (*replay)(void* graph, void* stream);
  // Returns the names of the functions called since the last take, each followed by a space.
  const char* (*take_calls)();
  // The number of live allocations of device and host memory.
  size_t (*allocations)();
  // The number of loaded images.
  size_t (*images)();
  // From now on: device `from` cannot address the memory of `to`; allocations on a device fail;
  // images are refused. -1 for none.
  void (*deny_peer)(int from, int to);
  void (*fill)(int device);
  void (*refuse_images)(bool refuse);
};

extern "C" const FakeDriver* fake_driver();

#endif  // HLOOM_RUNTIME_CSRC_TESTS_CUDA_FAKE_FAKE_DRIVER_H_
