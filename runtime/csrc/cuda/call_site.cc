#include "cuda/call_site.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "cuda/pads/signal_pads.h"

namespace hloom::cuda {
namespace {

namespace ffi = xla::ffi;

using std::chrono::milliseconds;

// A kernel that gives up stops its device, and the process has to start again: it waits for so many
// times the timeout, and for so long at least.
constexpr int kStopAfterTimeouts = 10;
constexpr std::chrono::minutes kStopAfterAtLeast{5};

milliseconds StopAfter(milliseconds timeout) {
  if (timeout > milliseconds::max() / kStopAfterTimeouts) return milliseconds::max();
  return std::max<milliseconds>(timeout * kStopAfterTimeouts, kStopAfterAtLeast);
}

// As the kernels have it; 49 days at most.
unsigned Milliseconds(milliseconds time) {
  constexpr int64_t kMost = std::numeric_limits<unsigned>::max();
  return static_cast<unsigned>(std::min<int64_t>(time.count(), kMost));
}

std::vector<int64_t> CliqueOf(const Meeting& meeting) {
  std::vector<int64_t> clique;
  clique.reserve(meeting.members.size());
  for (const Member& member : meeting.members) clique.push_back(member.device);
  return clique;
}

}  // namespace

ffi::TypeId CallSite::id = {};

ffi::Error CallSite::Wrong(const Meeting& meeting, const std::string& why) const {
  return ffi::Error::Internal(what_ + ", " + std::string(meeting.site) + ", on device " +
                              std::to_string(meeting.members[meeting.position].device) + ": " +
                              why);
}

ffi::Error CallSite::Initialize(const Meeting& meeting, Stream stream) {
  std::string why;
  Machine* machine = Machine::OfProcess(&why);
  if (machine == nullptr) return Wrong(meeting, why);
  const Driver& driver = machine->driver;

  Arrival arrival;
  arrival.clique = CliqueOf(meeting);
  arrival.rank = meeting.position;
  arrival.run = meeting.run;
  arrival.timeout = meeting.timeout;
  arrival.place.ordinal = meeting.members[meeting.position].device;
  Problem problem =
      driver.Check(driver.cuStreamGetCtx(stream, &arrival.place.context), "cuStreamGetCtx");
  if (problem) return Wrong(meeting, *problem);
  Function function = nullptr;
  problem = machine->kernels.Function(image_, kernel_, arrival.place.context, &function);
  if (problem) return Wrong(meeting, *problem);

  Clique* clique = nullptr;
  uint32_t number = 0;
  problem = machine->runs.Enter(arrival, &clique, &number);
  if (problem) return Wrong(meeting, *problem);
  const CollectiveMemory& pads = clique->pads();
  machine->watch.Add(&pads);
  for (size_t rank = 0; rank < arrival.clique.size(); ++rank) {
    std::string fault = FaultText(pads, rank);
    if (!fault.empty()) return Wrong(meeting, "a kernel has stopped its device before: " + fault);
  }
  if (number != 0) {
    // In the stream, for graphs: what they launch there afterwards is part of this run.
    CurrentContext current(driver, arrival.place.context);
    problem = current.problem();
    auto address = reinterpret_cast<DevicePointer>(&PadOf(pads, arrival.rank)->run);
    if (!problem) {
      problem =
          driver.Check(driver.cuMemsetD32Async(address, number, 1, stream), "cuMemsetD32Async");
    }
    if (problem) return Wrong(meeting, *problem);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  functions_[arrival.place.ordinal] = function;
  cliques_[std::move(arrival.clique)] = clique;
  return ffi::Error::Success();
}

ffi::Error CallSite::Launch(const Meeting& meeting, Stream stream, unsigned blocks,
                            unsigned threads, void* arguments) {
  std::string why;
  Machine* machine = Machine::OfProcess(&why);
  if (machine == nullptr) return Wrong(meeting, why);
  Function function = nullptr;
  Clique* clique = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto known = cliques_.find(CliqueOf(meeting));
    auto loaded = functions_.find(meeting.members[meeting.position].device);
    if (known == cliques_.end() || loaded == functions_.end()) {
      return Wrong(meeting, "XLA launches it without having initialized it");
    }
    clique = known->second;
    function = loaded->second;
  }
  const Driver& driver = machine->driver;
  int is_recorded = 0;
  Problem problem =
      driver.Check(driver.cuStreamIsCapturing(stream, &is_recorded), "cuStreamIsCapturing");
  if (problem) return Wrong(meeting, *problem);

  Site site{};
  site.pad = PadOf(clique->pads(), meeting.position);
  site.rank = static_cast<unsigned>(meeting.position);
  site.ranks = static_cast<unsigned>(meeting.members.size());
  site.tag = SiteTag(what_, meeting.site, meeting.channel);
  site.report_ms = Milliseconds(meeting.timeout);
  site.stop_ms = Milliseconds(StopAfter(meeting.timeout));
  problem = machine->runs.Launch(
      clique, meeting.position, meeting.run, is_recorded != 0, [&](const LaunchId& id) {
        site.run = id.run;
        site.launch = id.launch;
        void* parameters[] = {&site, arguments};
        return driver.Check(driver.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream,
                                                  parameters, nullptr),
                            "cuLaunchKernel");
      });
  return problem ? Wrong(meeting, *problem) : ffi::Error::Success();
}

}  // namespace hloom::cuda
