// Executables of hloom's custom calls on the fake driver's devices.

#ifndef HLOOM_RUNTIME_CSRC_TESTS_CUDA_CUSTOM_CALL_H_
#define HLOOM_RUNTIME_CSRC_TESTS_CUDA_CUSTOM_CALL_H_

#include <dlfcn.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/check.h"
#include "tests/cuda/fake/fake_driver.h"
#include "tests/cuda/fake/fake_xla.h"

namespace handlers_test {

using fake_xla::Attributes;
using fake_xla::Buffer;

constexpr int kDevices = 4;
constexpr char kImage[] =
    "\x7f"
    "ELF, as far as the fake driver knows";

inline void* g_library = nullptr;

inline XLA_FFI_Handler* Handler(const std::string& name) {
  void* symbol = dlsym(g_library, name.c_str());
  CHECK(symbol != nullptr);
  return reinterpret_cast<XLA_FFI_Handler*>(symbol);
}

inline const FakeDriver& Fake() {
  static const FakeDriver* fake = [] {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(library != nullptr);
    return reinterpret_cast<const FakeDriver* (*)()>(dlsym(library, "fake_driver"))();
  }();
  return *fake;
}

inline void* StreamOf(int device) {
  static std::map<int, void*> streams;
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  void*& stream = streams[device];
  if (stream == nullptr) stream = Fake().new_stream(device);
  return stream;
}

inline Attributes AttributesOf(const char* kernel, int64_t timeout_ms = 60000) {
  return {{"channel", int64_t{3}},
          {"devices", std::vector<int64_t>{0, 1, 2, 3}},
          {"group_size", int64_t{4}},
          {"image", std::string(kImage)},
          {"kernel", std::string(kernel)},
          {"replica_groups", std::vector<int64_t>{0, 1, 2, 3}},
          {"site", std::string("entry of @kernel")},
          {"timeout_ms", timeout_ms}};
}

// One custom call of an executable.
class CustomCall {
 public:
  CustomCall(const std::string& target, Attributes attributes)
      : target_("hloom_cuda_" + target + "_v1_"), attributes_(std::move(attributes)) {
    error_ = Call("instantiate", XLA_FFI_ExecutionStage_INSTANTIATE, 0, 0, {}, {});
  }

  ~CustomCall() {
    auto* info =
        static_cast<const XLA_FFI_TypeInfo*>(dlsym(g_library, "hloom_cuda_site_type_info"));
    if (state_ != nullptr) info->deleter(state_);
  }

  CustomCall(const CustomCall&) = delete;

  // The error of instantiate.
  const std::string& error() const { return error_; }

  std::string Initialize(int device, int64_t run) {
    std::string error = Call("initialize", XLA_FFI_ExecutionStage_INITIALIZE, device, run, {}, {});
    std::lock_guard<std::mutex> lock(mutex_);
    if (error.empty()) initialized_[device].push_back(run);
    return error;
  }

  std::string Execute(int device, const std::vector<Buffer>& operands,
                      const std::vector<Buffer>& results) {
    return Execute(device, operands, results, NextRun(device));
  }

  std::string Execute(int device, const std::vector<Buffer>& operands,
                      const std::vector<Buffer>& results, int64_t run) {
    return Call("execute", XLA_FFI_ExecutionStage_EXECUTE, device, run, operands, results);
  }

 private:
  // The first run that the device has initialized and not executed yet, or else its last.
  int64_t NextRun(int device) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::deque<int64_t>& runs = initialized_[device];
    if (runs.empty()) return 0;
    bool& is_executed = executed_[device];
    if (is_executed && runs.size() > 1) runs.pop_front();
    is_executed = true;
    return runs.front();
  }

  std::string Call(const char* stage_name, XLA_FFI_ExecutionStage stage, int device, int64_t run,
                   const std::vector<Buffer>& operands, const std::vector<Buffer>& results) {
    XLA_FFI_ExecutionContext context;
    // No device, and no driver, at the compile.
    if (stage != XLA_FFI_ExecutionStage_INSTANTIATE) context.stream = StreamOf(device);
    context.state = &state_;
    context.run = run;
    context.device = device;
    return fake_xla::Call(Handler(target_ + stage_name), stage, context, operands, results,
                          attributes_);
  }

  const std::string target_;
  const Attributes attributes_;
  void* state_ = nullptr;
  std::string error_;
  std::mutex mutex_;
  // By device: runs, and whether the first of them has been executed.
  std::map<int, std::deque<int64_t>> initialized_;
  std::map<int, bool> executed_;
};

// Calls a body for each device at the same time.
inline std::vector<std::string> OnDevices(const std::vector<int>& devices,
                                          const std::function<std::string(int)>& body) {
  std::vector<std::string> results(devices.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < devices.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = body(devices[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

inline const std::vector<int> kAll = {0, 1, 2, 3};

inline void CheckFine(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) {
    if (!error.empty()) std::fprintf(stderr, "%s\n", error.c_str());
    CHECK(error.empty());
  }
}

inline Buffer Token(uint32_t* token) { return {XLA_FFI_DataType_U32, token, {}}; }

inline uint32_t g_tokens[kDevices];

inline std::string ExecuteBarrier(CustomCall& barrier, int device) {
  Buffer token = Token(&g_tokens[device]);
  return barrier.Execute(device, {token}, {token});
}

inline std::string ExecuteBarrier(CustomCall& barrier, int device, int64_t run) {
  Buffer token = Token(&g_tokens[device]);
  return barrier.Execute(device, {token}, {token}, run);
}

// One execution of a program with one barrier, to its end.
inline void RunBarrier(CustomCall& barrier, int64_t run) {
  CheckFine(OnDevices(kAll, [&](int device) { return barrier.Initialize(device, run); }));
  CheckFine(OnDevices(kAll, [&](int device) { return ExecuteBarrier(barrier, device); }));
  for (int device : kAll) Fake().wait(StreamOf(device));
}

// A device's part of an all-to-all of one row for each pair.
struct Exchange {
  std::vector<int64_t> operand = std::vector<int64_t>(kDevices);
  std::vector<int64_t> output = std::vector<int64_t>(kDevices);
  std::vector<int32_t> input_offsets = {0, 1, 2, 3};
  std::vector<int32_t> send_sizes = {1, 1, 1, 1};
  std::vector<int32_t> output_offsets;

  explicit Exchange(int device) : output_offsets(kDevices, device) {}

  static Buffer Indices(std::vector<int32_t>& values) {
    return {XLA_FFI_DataType_S32, values.data(), {static_cast<int64_t>(values.size())}};
  }
  static Buffer Rows(std::vector<int64_t>& values) {
    return {XLA_FFI_DataType_S64, values.data(), {static_cast<int64_t>(values.size())}};
  }

  std::string Execute(CustomCall& ragged, int device) {
    return ragged.Execute(device, Operands(device), Results(device));
  }
  std::string Execute(CustomCall& ragged, int device, int64_t run) {
    return ragged.Execute(device, Operands(device), Results(device), run);
  }

 private:
  std::vector<Buffer> Operands(int device) {
    return {Token(&g_tokens[device]), Rows(operand),       Rows(output),
            Indices(input_offsets),   Indices(send_sizes), Indices(output_offsets),
            Indices(send_sizes)};
  }
  std::vector<Buffer> Results(int device) { return {Rows(output), Token(&g_tokens[device])}; }
};

// Loads the library that the first argument names and runs the tests that the others name.
inline int Run(int argc, char** argv) {
  if (argc < 3) return 2;
  g_library = dlopen(argv[1], RTLD_NOW);
  CHECK(g_library != nullptr);
  // As XLA does when the type is registered.
  static_cast<XLA_FFI_TypeId*>(dlsym(g_library, "hloom_cuda_site_type_id"))->type_id = 7;
  hloom::test::Run(argc, argv, 2);
  // Streams are threads that never end.
  std::_Exit(0);
}

}  // namespace handlers_test

#endif  // HLOOM_RUNTIME_CSRC_TESTS_CUDA_CUSTOM_CALL_H_
