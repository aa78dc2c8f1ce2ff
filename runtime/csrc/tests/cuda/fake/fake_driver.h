// What tests can ask of the fake driver beside CUDA's own functions.

#ifndef HLOOM_RUNTIME_CSRC_TESTS_CUDA_FAKE_FAKE_DRIVER_H_
#define HLOOM_RUNTIME_CSRC_TESTS_CUDA_FAKE_FAKE_DRIVER_H_

#include <cstddef>

// The functions as a table, since tests find them as hloom does: in the library, at run time.
struct FakeDriver {
  // A stream of a device; work on it runs in its own thread, in order.
  void* (*new_stream)(int device);
  // Waits until all that was queued on it has run.
  void (*wait)(void* stream);
  // Queues work that takes so long.
  void (*sleep)(void* stream, int milliseconds);
  // Between the two, what is queued is recorded and does not run, and every call of the driver but
  // a launch or a memset fails. Gives the recorded graph.
  void (*begin_capture)(void* stream);
  void* (*end_capture)(void* stream);
  void (*replay)(void* graph, void* stream);
  // The names of the functions called since the last time, each with a space after it.
  const char* (*take_calls)();
  // Allocations of device and host memory that were not freed.
  size_t (*allocations)();
  // How many images were loaded.
  size_t (*images)();
  // From now on: device `from` cannot address the memory of `to`; allocations on a device fail;
  // images are refused. -1 for none.
  void (*deny_peer)(int from, int to);
  void (*fill)(int device);
  void (*refuse_images)(bool refuse);
};

extern "C" const FakeDriver* fake_driver();

#endif  // HLOOM_RUNTIME_CSRC_TESTS_CUDA_FAKE_FAKE_DRIVER_H_
