// The CUDA handlers of the native library, called as XLA calls them, on a fake driver.
//
// usage: handlers_test LIBRARY TEST...

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/cuda/custom_call.h"
#include "tests/cuda/fake/fake_driver.h"
#include "tests/cuda/fake/fake_xla.h"

namespace handlers_test {
namespace {

constexpr size_t kEach = 2;  // Allocations of each rank: a pad and a report.

TEST(ExecutablesSharePads) {
  auto one = std::make_unique<CustomCall>("barrier", AttributesOf("hloom_barrier"));
  auto two = std::make_unique<CustomCall>("barrier", AttributesOf("hloom_barrier"));
  CHECK(one->error().empty());
  RunBarrier(*one, 1);
  CHECK(Fake().allocations() == kDevices * kEach);
  for (int64_t run = 2; run < 12; ++run) {
    RunBarrier(*two, run);
    RunBarrier(*one, run);
  }
  CHECK(Fake().allocations() == kDevices * kEach);
  CHECK(Fake().images() == 1);
  one.reset();
  RunBarrier(*two, 20);
  two.reset();
  // They stay for the next one.
  CustomCall three("barrier", AttributesOf("hloom_barrier"));
  RunBarrier(three, 21);
  CHECK(Fake().allocations() == kDevices * kEach);
}

TEST(BarriersHold) {
  CustomCall barrier("barrier", AttributesOf("hloom_barrier"));
  CheckFine(OnDevices(kAll, [&](int device) { return barrier.Initialize(device, 1); }));
  for (int device : {0, 1, 2}) CHECK(ExecuteBarrier(barrier, device).empty());
  std::atomic<bool> left{false};
  std::thread waits([&] {
    for (int device : {0, 1, 2}) Fake().wait(StreamOf(device));
    left = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(!left);
  CHECK(ExecuteBarrier(barrier, 3).empty());
  waits.join();
  CHECK(left);
}

TEST(ExecuteQueuesAndDoesNothingElse) {
  CustomCall barrier("barrier", AttributesOf("hloom_barrier"));
  CheckFine(OnDevices(kAll, [&](int device) { return barrier.Initialize(device, 1); }));
  Fake().take_calls();
  CHECK(ExecuteBarrier(barrier, 0).empty());
  CHECK(std::string(Fake().take_calls()) == "cuStreamIsCapturing cuLaunchKernel ");
  for (int device : {1, 2, 3}) CHECK(ExecuteBarrier(barrier, device).empty());
}

std::string ExecuteToken(int device) {
  XLA_FFI_ExecutionContext context;
  context.stream = StreamOf(device);
  context.device = device;
  return fake_xla::Call(Handler("hloom_cuda_token_v1_execute"), XLA_FFI_ExecutionStage_EXECUTE,
                        context, {}, {Token(&g_tokens[device])}, {});
}

TEST(TheTokenIsZero) {
  g_tokens[1] = 7;
  Fake().take_calls();
  CHECK(ExecuteToken(1).empty());
  CHECK(std::string(Fake().take_calls()) == "cuMemsetD32Async ");
  Fake().wait(StreamOf(1));
  CHECK(g_tokens[1] == 0);
}

TEST(OnlyExecuteIsForCommandBuffers) {
  for (const char* target : {"token", "barrier", "ragged_all_to_all"}) {
    CHECK(fake_xla::IsCommandBufferCompatible(
        Handler(std::string("hloom_cuda_") + target + "_v1_execute")));
  }
  CHECK(!fake_xla::IsCommandBufferCompatible(Handler("hloom_cuda_barrier_v1_initialize")));
}

std::vector<Exchange> Exchanges() {
  std::vector<Exchange> exchanges;
  for (int device : kAll) exchanges.emplace_back(device);
  return exchanges;
}

TEST(GraphsReplay) {
  CustomCall entry("barrier", AttributesOf("hloom_barrier"));
  CustomCall ragged("ragged_all_to_all", AttributesOf("hloom_ragged_all_to_all"));
  CustomCall exit("barrier", AttributesOf("hloom_barrier"));
  std::vector<Exchange> exchanges = Exchanges();
  CheckFine(OnDevices(kAll, [&](int device) {
    return entry.Initialize(device, 1) + ragged.Initialize(device, 1) + exit.Initialize(device, 1);
  }));
  std::vector<void*> graphs;
  for (int device : kAll) {
    Fake().begin_capture(StreamOf(device));
    CHECK(ExecuteToken(device).empty());
    CHECK(ExecuteBarrier(entry, device).empty());
    CHECK(exchanges[device].Execute(ragged, device).empty());
    CHECK(ExecuteBarrier(exit, device).empty());
    graphs.push_back(Fake().end_capture(StreamOf(device)));
  }
  constexpr int kLaunches = 1000;
  for (int launch = 0; launch < kLaunches; ++launch) {
    for (int device : kAll) {
      for (int peer : kAll) exchanges[device].operand[peer] = launch * 100 + device * 10 + peer;
    }
    for (int device : kAll) Fake().replay(graphs[device], StreamOf(device));
    for (int device : kAll) Fake().wait(StreamOf(device));
    for (int device : kAll) {
      for (int peer : kAll) {
        CHECK(exchanges[device].output[peer] == launch * 100 + peer * 10 + device);
      }
    }
  }
}

TEST(AMissingRankIsNamedAtInitialize) {
  CustomCall barrier("barrier", AttributesOf("hloom_barrier", 300));
  for (const std::string& error :
       OnDevices({0, 1, 3}, [&](int device) { return barrier.Initialize(device, 1); })) {
    CHECK_TEXT(error, "hloom.barrier, entry of @kernel, on device ");
    CHECK_TEXT(error, "device 2 did not come to this run within 300 ms");
  }
  RunBarrier(barrier, 2);
}

// Says so on stderr, which the caller reads.
TEST(ALateRankIsNamedAndComes) {
  CustomCall barrier("barrier", AttributesOf("hloom_barrier", 300));
  CheckFine(OnDevices(kAll, [&](int device) { return barrier.Initialize(device, 1); }));
  for (int device : {0, 1, 3}) CHECK(ExecuteBarrier(barrier, device).empty());
  std::this_thread::sleep_for(std::chrono::milliseconds(4000));
  CHECK(ExecuteBarrier(barrier, 2).empty());
  for (int device : kAll) Fake().wait(StreamOf(device));
  RunBarrier(barrier, 2);
}

TEST(DevicesThatCannotReachEachOtherAreAnError) {
  Fake().deny_peer(1, 2);
  CustomCall barrier("barrier", AttributesOf("hloom_barrier"));
  for (const std::string& error :
       OnDevices(kAll, [&](int device) { return barrier.Initialize(device, 1); })) {
    CHECK_TEXT(error, "device 1 cannot address the memory of device 2");
  }
  CHECK(Fake().allocations() == 0);
}

TEST(AFullDeviceIsEveryonesError) {
  Fake().fill(2);
  CustomCall barrier("barrier", AttributesOf("hloom_barrier"));
  for (const std::string& error :
       OnDevices(kAll, [&](int device) { return barrier.Initialize(device, 1); })) {
    CHECK_TEXT(error,
               "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (the fake driver says so), while making "
               "signals for devices 0-3");
  }
  CHECK(Fake().allocations() == 0);
  Fake().fill(-1);
  RunBarrier(barrier, 2);
}

TEST(AnImageForAnotherDeviceIsRefused) {
  Fake().refuse_images(true);
  CustomCall barrier("barrier", AttributesOf("hloom_barrier"));
  CHECK_TEXT(barrier.Initialize(0, 1),
             "cuLibraryLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU (the fake driver says so): the "
             "program was compiled for another kind of device than this one");
  Fake().refuse_images(false);
  RunBarrier(barrier, 2);
}

TEST(TooManyRanksAreRefusedAtTheCompile) {
  std::vector<int64_t> many(129);
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<int64_t>(i);
  Attributes attributes = AttributesOf("hloom_barrier");
  attributes["replica_groups"] = attributes["devices"] = many;
  attributes["group_size"] = int64_t{129};
  CustomCall barrier("barrier", attributes);
  CHECK_TEXT(barrier.error(), "groups of 129 devices, and the kernel serves at most 128");
}

TEST(MalformedAttributesFailTheCompile) {
  Attributes attributes = AttributesOf("hloom_barrier", 0);
  CHECK(CustomCall("barrier", attributes).error() ==
        "hloom.barrier: timeout_ms is 0, not positive");
  attributes.erase("timeout_ms");
  CHECK_TEXT(CustomCall("barrier", attributes).error(), "hloom.barrier: attribute timeout_ms: ");
}

TEST(OneAloneWaitsForNobody) {
  Attributes barrier_attributes = AttributesOf("hloom_barrier");
  Attributes ragged_attributes = AttributesOf("hloom_ragged_all_to_all");
  barrier_attributes["group_size"] = ragged_attributes["group_size"] = int64_t{1};
  CustomCall barrier("barrier", barrier_attributes);
  CustomCall ragged("ragged_all_to_all", ragged_attributes);
  Exchange exchange(2);
  exchange.operand = {5, 6, 7, 8};
  exchange.input_offsets = {1};
  exchange.send_sizes = {2};
  exchange.output_offsets = {0};
  CHECK(barrier.Initialize(2, 1).empty());
  CHECK(ragged.Initialize(2, 1).empty());
  CHECK(ExecuteBarrier(barrier, 2).empty());
  CHECK(exchange.Execute(ragged, 2).empty());
  CHECK(ExecuteBarrier(barrier, 2).empty());
  Fake().wait(StreamOf(2));
  CHECK((exchange.output == std::vector<int64_t>{6, 7, 0, 0}));
}

TEST(GroupsAreApart) {
  Attributes attributes = AttributesOf("hloom_barrier");
  attributes["group_size"] = int64_t{2};
  attributes["replica_groups"] = std::vector<int64_t>{3, 1, 0, 2};
  CustomCall barrier("barrier", attributes);
  CheckFine(OnDevices({1, 3}, [&](int device) { return barrier.Initialize(device, 1); }));
  CheckFine(OnDevices({1, 3}, [&](int device) { return ExecuteBarrier(barrier, device); }));
  for (int device : {1, 3}) Fake().wait(StreamOf(device));
  CHECK(Fake().allocations() == 2 * kEach);
}

TEST(BuffersMustBeShared) {
  CustomCall barrier("barrier", AttributesOf("hloom_barrier"));
  CheckFine(OnDevices(kAll, [&](int device) { return barrier.Initialize(device, 1); }));
  uint32_t other = 0;
  CHECK_TEXT(barrier.Execute(0, {Token(&g_tokens[0])}, {Token(&other)}),
             "XLA gives a result another buffer than the operand");
}

TEST(LaunchWithoutInitializeIsAnError) {
  CustomCall barrier("barrier", AttributesOf("hloom_barrier"));
  CHECK_TEXT(ExecuteBarrier(barrier, 0), "XLA launches it without having initialized it");
}

TEST(RaggedBuffersMustFit) {
  CustomCall ragged("ragged_all_to_all", AttributesOf("hloom_ragged_all_to_all"));
  Exchange exchange(0);
  exchange.send_sizes.pop_back();
  CHECK_TEXT(exchange.Execute(ragged, 0), "the same number of elements for each of 4 devices");
  Exchange packed(0);
  Buffer token = Token(&g_tokens[0]);
  Buffer nibbles{XLA_FFI_DataType_S4, packed.operand.data(), {8}};
  Buffer indices = Exchange::Indices(packed.input_offsets);
  CHECK_TEXT(ragged.Execute(0, {token, nibbles, nibbles, indices, indices, indices, indices},
                            {nibbles, token}),
             "operand and output must have one type of whole bytes");
}

TEST(MemoryOutlivesWhatIsInFlight) {
  auto barrier = std::make_unique<CustomCall>("barrier", AttributesOf("hloom_barrier"));
  CheckFine(OnDevices(kAll, [&](int device) { return barrier->Initialize(device, 1); }));
  for (int device : kAll) {
    Fake().sleep(StreamOf(device), 100 * (device + 1));
    CHECK(ExecuteBarrier(*barrier, device).empty());
  }
  Fake().take_calls();
  barrier.reset();
  for (int device : kAll) Fake().wait(StreamOf(device));
  CHECK(std::string(Fake().take_calls()).empty());
  CHECK(Fake().allocations() == kDevices * kEach);
}

// Runs without the fake driver, or with an old one: prints the handlers' error.
TEST(TheCompileNeedsNoDriver) {
  CustomCall barrier("barrier", AttributesOf("hloom_barrier"));
  CHECK(barrier.error().empty());
  XLA_FFI_ExecutionContext context;
  std::string error =
      fake_xla::Call(Handler("hloom_cuda_token_v1_execute"), XLA_FFI_ExecutionStage_EXECUTE,
                     context, {}, {Token(&g_tokens[0])}, {});
  CHECK_TEXT(error, "libcuda.so.1");
  std::puts(error.c_str());
  std::fflush(stdout);
}

}  // namespace
}  // namespace handlers_test

int main(int argc, char** argv) { return handlers_test::Run(argc, argv); }
