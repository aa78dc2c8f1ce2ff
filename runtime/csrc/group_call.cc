#include "group_call.h"

#include <algorithm>

namespace hloom {
namespace {

namespace ffi = xla::ffi;

using Ints = ffi::Span<const int64_t>;

ffi::Unexpected<ffi::Error> Wrong(std::string_view what, const std::string& why) {
  return ffi::Unexpected(ffi::Error::InvalidArgument(std::string(what) + ": " + why));
}

// The group that holds a partition, without its padding; empty where there is none.
std::vector<int64_t> GroupOf(int64_t partition, Ints groups, int64_t group_size) {
  const auto found = std::find(groups.begin(), groups.end(), partition);
  if (found == groups.end()) return {};
  const auto* begin = groups.begin() + (found - groups.begin()) / group_size * group_size;
  std::vector<int64_t> group;
  std::copy_if(begin, begin + group_size, std::back_inserter(group),
               [](int64_t member) { return member >= 0; });
  return group;
}

}  // namespace

ffi::ErrorOr<Meeting> MeetingOf(std::string_view what, const ffi::Dictionary& attributes,
                                ffi::RunId run, int32_t device) {
  const auto channel = attributes.get<int64_t>("channel");
  const auto groups = attributes.get<Ints>("replica_groups");
  const auto group_size = attributes.get<int64_t>("group_size");
  const auto devices = attributes.get<Ints>("devices");
  const auto timeout_ms = attributes.get<int64_t>("timeout_ms");
  const auto site = attributes.get<std::string_view>("site");
  if (channel.has_error()) return Wrong(what, channel.error().message());
  if (groups.has_error()) return Wrong(what, groups.error().message());
  if (group_size.has_error()) return Wrong(what, group_size.error().message());
  if (devices.has_error()) return Wrong(what, devices.error().message());
  if (timeout_ms.has_error()) return Wrong(what, timeout_ms.error().message());
  if (site.has_error()) return Wrong(what, site.error().message());

  if (*group_size <= 0 || groups->size() % static_cast<size_t>(*group_size) != 0) {
    return Wrong(what, "replica_groups has " + std::to_string(groups->size()) +
                           " numbers, not a multiple of group_size " + std::to_string(*group_size));
  }
  if (*timeout_ms <= 0) {
    return Wrong(what, "timeout_ms is " + std::to_string(*timeout_ms) + ", not positive");
  }
  const auto* found = std::find(devices->begin(), devices->end(), device);
  if (found == devices->end()) {
    return Wrong(what, "device " + std::to_string(device) + " has no partition in devices");
  }
  Meeting meeting;
  meeting.run = run.run_id;
  meeting.channel = *channel;
  meeting.timeout = std::chrono::milliseconds(*timeout_ms);
  meeting.what = what;
  meeting.site = *site;
  const int64_t self = found - devices->begin();
  const std::vector<int64_t> group = GroupOf(self, *groups, *group_size);
  if (group.empty()) {
    return Wrong(what, "partition " + std::to_string(self) + " is in no replica group");
  }
  for (const int64_t rank : group) {
    if (rank >= static_cast<int64_t>(devices->size())) {
      return Wrong(what, "partition " + std::to_string(rank) + " of a replica group is none of " +
                             std::to_string(devices->size()) + " partitions");
    }
    if (rank == self) meeting.position = meeting.members.size();
    meeting.members.push_back({rank, (*devices)[static_cast<size_t>(rank)]});
  }
  return meeting;
}

ffi::Error ErrorOf(const Failure& failure) {
  switch (failure.kind) {
    case FailureKind::kTimeout:
      return ffi::Error(ffi::ErrorCode::kDeadlineExceeded, failure.message);
    case FailureKind::kPeer:
      return ffi::Error(ffi::ErrorCode::kAborted, failure.message);
    case FailureKind::kMisuse:
      return ffi::Error(ffi::ErrorCode::kFailedPrecondition, failure.message);
    case FailureKind::kAction:
      break;
  }
  return ffi::Error(ffi::ErrorCode::kInternal, failure.message);
}

ffi::Future FailedCall(ffi::RunId run, int32_t device, ffi::Error error) {
  // Its rank is not known where the attributes are wrong; only its device counts here.
  Rendezvous::OfProcess().Abandon(run.run_id, {device, device}, error.message());
  ffi::Promise promise;
  ffi::Future future(promise);
  promise.SetError(std::move(error));
  return future;
}

}  // namespace hloom
