#include "cuda/call_site.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "cuda/pads/signal_pads.h"

namespace hloom::cuda {
namespace {

namespace ffi = xla::ffi;

using std::chrono::milliseconds;

// A kernel that gives up stops its device, and the process has to restart. It waits for this
// multiple of the timeout, and at least this long.
constexpr int kStopAfterTimeouts = 10;
constexpr std::chrono::minutes kStopAfterAtLeast{5};

milliseconds StopAfter(milliseconds timeout) {
  if (timeout > milliseconds::max() / kStopAfterTimeouts) return milliseconds::max();
  return std::max<milliseconds>(timeout * kStopAfterTimeouts, kStopAfterAtLeast);
}

// Milliseconds in the kernels' type; at most 49 days.
unsigned Milliseconds(milliseconds time) {
  constexpr int64_t kMost = std::numeric_limits<unsigned>::max();
  return static_cast<unsigned>(std::min<int64_t>(time.count(), kMost));
}

}  // namespace

ffi::TypeId CallSite::id = {};

CallSite::CallSite(CallAttributes attributes, std::string_view image, std::string_view kernel)
    : attributes_(std::move(attributes)),
      tag_(SiteTag(attributes_.kind(), attributes_.site(), attributes_.channel())),
      image_(image),
      kernel_(kernel) {}

ffi::Error CallSite::Failed(const Arrival& arrival, const std::string& error) const {
  return ffi::Error::Internal(attributes_.kind() + ", " + attributes_.site() + ", on device " +
                              std::to_string(arrival.self().device) + ": " + error);
}

ffi::Error CallSite::Initialize(const Arrival& arrival, Stream stream) {
  std::string missing;
  CudaRuntime* runtime = CudaRuntime::OfProcess(&missing);
  if (runtime == nullptr) return Failed(arrival, missing);
  const Driver& driver = runtime->driver;

  RunEntry entry;
  for (const Member& member : arrival.call->members) entry.clique.push_back(member.device);
  entry.rank = arrival.position;
  entry.run = arrival.run;
  entry.timeout = arrival.call->timeout;
  entry.device.ordinal = arrival.self().device;
  MaybeError error =
      driver.Check(driver.cuStreamGetCtx(stream, &entry.device.context), "cuStreamGetCtx");
  if (error) return Failed(arrival, *error);
  Function function = nullptr;
  error = runtime->kernels.Load(image_, kernel_, entry.device.context, &function);
  if (error) return Failed(arrival, *error);

  Clique* clique = nullptr;
  uint32_t number = 0;
  error = runtime->runs.Enter(entry, &clique, &number);
  if (error) return Failed(arrival, *error);
  const CollectiveMemory& pads = clique->pads();
  runtime->watch.Add(&pads);
  for (size_t rank = 0; rank < entry.clique.size(); ++rank) {
    std::string fault = FaultText(pads, rank);
    if (!fault.empty()) return Failed(arrival, "a kernel has stopped its device before: " + fault);
  }
  if (number != 0) {
    // In the stream, for graphs: their later launches there are part of this run.
    CurrentContext current(driver, entry.device.context);
    error = current.error();
    auto address = reinterpret_cast<DevicePointer>(&PadOf(pads, entry.rank)->run);
    if (!error) {
      error = driver.Check(driver.cuMemsetD32Async(address, number, 1, stream), "cuMemsetD32Async");
    }
    if (error) return Failed(arrival, *error);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  by_device_[entry.device.ordinal] = {function, clique};
  return ffi::Error::Success();
}

ffi::Error CallSite::Launch(const Arrival& arrival, Stream stream, unsigned blocks,
                            unsigned threads, void* arguments) {
  std::string missing;
  CudaRuntime* runtime = CudaRuntime::OfProcess(&missing);
  if (runtime == nullptr) return Failed(arrival, missing);
  Prepared prepared;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = by_device_.find(arrival.self().device);
    if (found == by_device_.end()) {
      return Failed(arrival, "XLA launches it without having initialized it");
    }
    prepared = found->second;
  }
  const Driver& driver = runtime->driver;
  int is_recorded = 0;
  MaybeError error =
      driver.Check(driver.cuStreamIsCapturing(stream, &is_recorded), "cuStreamIsCapturing");
  if (error) return Failed(arrival, *error);

  Site site{};
  site.pad = PadOf(prepared.clique->pads(), arrival.position);
  site.rank = static_cast<unsigned>(arrival.position);
  site.ranks = static_cast<unsigned>(arrival.call->members.size());
  site.tag = tag_;
  site.report_ms = Milliseconds(arrival.call->timeout);
  site.stop_ms = Milliseconds(StopAfter(arrival.call->timeout));
  error = runtime->runs.Launch(
      prepared.clique, arrival.position, arrival.run, is_recorded != 0, [&](const LaunchId& id) {
        site.run = id.run;
        site.launch = id.launch;
        void* parameters[] = {&site, arguments};
        return driver.Check(driver.cuLaunchKernel(prepared.function, blocks, 1, 1, threads, 1, 1, 0,
                                                  stream, parameters, nullptr),
                            "cuLaunchKernel");
      });
  return error ? Failed(arrival, *error) : ffi::Error::Success();
}

}  // namespace hloom::cuda
