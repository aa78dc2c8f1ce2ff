#include "cuda/site.h"

#include "cuda/signal_pads.h"

namespace hloom::cuda {
namespace {

namespace ffi = xla::ffi;

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

  MemoryRequest request;
  request.rank = meeting.position;
  request.run = meeting.run;
  request.timeout = meeting.timeout;
  request.place.ordinal = meeting.members[meeting.position].device;
  Problem problem =
      driver.Check(driver.cuStreamGetCtx(stream, &request.place.context), "cuStreamGetCtx");
  if (problem) return Wrong(meeting, *problem);
  Function function = nullptr;
  problem = machine->kernels.Function(image_, kernel_, request.place.context, &function);
  if (problem) return Wrong(meeting, *problem);

  std::vector<int64_t> clique = CliqueOf(meeting);
  std::shared_ptr<const CollectiveMemory> pads;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    functions_[request.place.ordinal] = function;
    auto found = pads_.find(clique);
    if (found != pads_.end()) pads = found->second;
  }
  if (pads == nullptr) {
    request.key = SignalPadsKey(clique);
    problem = machine->memory.Acquire(request, PrepareSignalPads, &pads);
    if (problem) return Wrong(meeting, *problem);
    machine->watch.Add(pads);
    std::lock_guard<std::mutex> lock(mutex_);
    // The first ones stay: launches of them may be recorded in graphs by now.
    pads = pads_.emplace(clique, pads).first->second;
  }
  for (size_t rank = 0; rank < clique.size(); ++rank) {
    std::string fault = FaultText(*pads, rank);
    if (!fault.empty()) return Wrong(meeting, "a kernel has stopped its device before: " + fault);
  }
  return ffi::Error::Success();
}

ffi::Error CallSite::Launch(const Meeting& meeting, Stream stream, unsigned blocks,
                            unsigned threads, void* arguments) {
  std::string why;
  Machine* machine = Machine::OfProcess(&why);
  if (machine == nullptr) return Wrong(meeting, why);
  Function function = nullptr;
  Site site{};
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto pads = pads_.find(CliqueOf(meeting));
    auto loaded = functions_.find(meeting.members[meeting.position].device);
    if (pads == pads_.end() || loaded == functions_.end()) {
      return Wrong(meeting, "XLA launches it without having initialized it");
    }
    site.pad = PadOf(*pads->second, meeting.position);
    function = loaded->second;
  }
  site.rank = static_cast<unsigned>(meeting.position);
  site.ranks = static_cast<unsigned>(meeting.members.size());
  site.tag = SiteTag(what_, meeting.site, meeting.channel);
  site.timeout_ns =
      static_cast<unsigned long long>(std::chrono::nanoseconds(meeting.timeout).count());
  void* parameters[] = {&site, arguments};
  const Driver& driver = machine->driver;
  Problem problem = driver.Check(
      driver.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, nullptr),
      "cuLaunchKernel");
  return problem ? Wrong(meeting, *problem) : ffi::Error::Success();
}

}  // namespace hloom::cuda
