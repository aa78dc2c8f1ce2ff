#include "group_call.h"

#include <algorithm>
#include <optional>

namespace hloom {
namespace {

namespace ffi = xla::ffi;

using Ints = ffi::Span<const int64_t>;

constexpr int64_t kPadding = -1;

ffi::Unexpected<ffi::Error> Wrong(std::string_view what, const std::string& why) {
  return ffi::Unexpected(ffi::Error::InvalidArgument(std::string(what) + ": " + why));
}

// The first number that a list has twice.
std::optional<int64_t> Repeated(std::vector<int64_t> numbers) {
  std::sort(numbers.begin(), numbers.end());
  const auto found = std::adjacent_find(numbers.begin(), numbers.end());
  return found == numbers.end() ? std::nullopt : std::optional<int64_t>(*found);
}

// What is wrong with the replica groups of a call that runs on these devices, by partition.
std::optional<std::string> CheckGroups(Ints groups, Ints devices) {
  std::vector<int64_t> members;
  members.reserve(groups.size());
  for (const int64_t partition : groups) {
    if (partition == kPadding) continue;
    if (partition < 0) {
      return "replica_groups has " + std::to_string(partition) +
             "; wanted partitions, or -1 to fill up a group";
    }
    if (partition >= static_cast<int64_t>(devices.size())) {
      return "partition " + std::to_string(partition) + " of a replica group is none of " +
             std::to_string(devices.size()) + " partitions";
    }
    members.push_back(partition);
  }
  if (const auto partition = Repeated(std::move(members))) {
    return "partition " + std::to_string(*partition) + " is in replica_groups twice";
  }
  if (const auto device = Repeated({devices.begin(), devices.end()})) {
    return "device " + std::to_string(*device) + " is in devices twice";
  }
  return std::nullopt;
}

// The group that holds a partition, without its padding; empty where there is none.
std::vector<int64_t> GroupOf(int64_t partition, Ints groups, int64_t group_size) {
  const auto found = std::find(groups.begin(), groups.end(), partition);
  if (found == groups.end()) return {};
  const auto* begin = groups.begin() + (found - groups.begin()) / group_size * group_size;
  std::vector<int64_t> group;
  std::copy_if(begin, begin + group_size, std::back_inserter(group),
               [](int64_t member) { return member != kPadding; });
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
  const auto unreadable = [&](const char* name, const auto& attribute) {
    return Wrong(what, "attribute " + std::string(name) + ": " + attribute.error().message());
  };
  if (channel.has_error()) return unreadable("channel", channel);
  if (groups.has_error()) return unreadable("replica_groups", groups);
  if (group_size.has_error()) return unreadable("group_size", group_size);
  if (devices.has_error()) return unreadable("devices", devices);
  if (timeout_ms.has_error()) return unreadable("timeout_ms", timeout_ms);
  if (site.has_error()) return unreadable("site", site);

  if (*group_size <= 0 || groups->size() % static_cast<size_t>(*group_size) != 0) {
    return Wrong(what, "replica_groups has " + std::to_string(groups->size()) +
                           " numbers, not a multiple of group_size " + std::to_string(*group_size));
  }
  if (*timeout_ms <= 0) {
    return Wrong(what, "timeout_ms is " + std::to_string(*timeout_ms) + ", not positive");
  }
  if (const auto wrong = CheckGroups(*groups, *devices)) return Wrong(what, *wrong);
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
