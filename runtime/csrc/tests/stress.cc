// Kernels that detect barriers that do not hold: each is delayed at random and counts violations,
// work that the other devices must have done before it and have not.
//
// A site is `before`, then a synchronizing kernel, then `behind`. No device may be in the
// kernel until all have left `before`, and none in `behind` until all have left the kernel. Where
// devices are of several processes, these share the counters in a file.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

enum class Stage : int64_t { kBefore, kKernel, kBehind };

constexpr size_t kStages = 3;
constexpr size_t kSites = 32;
constexpr size_t kRuns = 512;
constexpr size_t kDevices = 64;

struct Progress {
  std::atomic<int64_t> left_before;
  std::atomic<int64_t> left_kernel;
};

struct Counters {
  std::array<std::array<Progress, kSites>, kRuns> progress;
  std::atomic<int64_t> calls;
  std::atomic<int64_t> violations;
};

Counters* counters = nullptr;
// The visits of each device of this process, by its number modulo, to each stage of each site.
std::array<std::array<std::array<std::atomic<size_t>, kDevices>, kSites>, kStages> visits;
std::atomic<int64_t> late_device{-1};
std::atomic<int64_t> late_ms{0};

uint64_t Mixed(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

// Another delay for each run, site, stage and device; none for most.
void ComeLate(int64_t run, int64_t site, Stage stage, int64_t device, int64_t most_us) {
  const uint64_t random =
      Mixed(Mixed(Mixed(run + getpid()) ^ site) ^ (device * 4 + int64_t(stage)));
  if (most_us > 0 && random % 4 == 0) {
    std::this_thread::sleep_for(std::chrono::microseconds((random >> 2) % most_us));
  }
  if (stage == Stage::kBefore && device % int64_t{kDevices} == late_device.load()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(late_ms.exchange(0)));
  }
}

ffi::Error Step(int32_t device, ffi::Buffer<ffi::F32> operand,
                ffi::Result<ffi::Buffer<ffi::F32>> result, int64_t stage_number, int64_t site,
                int64_t devices, int64_t most_us) {
  const auto stage = static_cast<Stage>(stage_number);
  const size_t run = visits.at(stage_number).at(site).at(device % kDevices).fetch_add(1) % kRuns;
  Progress& here = counters->progress[run][site];
  counters->calls.fetch_add(1);
  const bool is_early = (stage == Stage::kKernel && here.left_before.load() < devices) ||
                        (stage == Stage::kBehind && here.left_kernel.load() < devices);
  if (is_early) counters->violations.fetch_add(1);
  ComeLate(run, site, stage, device, most_us);
  for (size_t i = 0; i < operand.element_count(); ++i) {
    result->typed_data()[i] = operand.typed_data()[i] + 1.0f;
  }
  if (stage == Stage::kBefore) here.left_before.fetch_add(1);
  if (stage == Stage::kKernel) here.left_kernel.fetch_add(1);
  return ffi::Error::Success();
}

}  // namespace

// Takes the counters from a file, which it makes where there is none; false where it cannot.
extern "C" bool stress_open(const char* path) {
  const int file = open(path, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, sizeof(Counters)) != 0) return false;
  void* memory = mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  counters = static_cast<Counters*>(memory);
  return memory != MAP_FAILED;
}

extern "C" int64_t stress_calls() { return counters->calls.load(); }

extern "C" int64_t stress_violations() { return counters->violations.load(); }

// Once, a device, by its number modulo, comes that late to the next site.
extern "C" void stress_delay(int64_t device, int64_t ms) {
  late_ms.store(ms);
  late_device.store(device);
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(stress_step, Step,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<int64_t>("stage")
                                  .Attr<int64_t>("site")
                                  .Attr<int64_t>("devices")
                                  .Attr<int64_t>("most_us"));
