#include "call_attributes.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

namespace hloom {
namespace {

namespace ffi = xla::ffi;

using Ints = ffi::Span<const int64_t>;

constexpr int64_t kPadding = -1;

ffi::Unexpected<ffi::Error> Invalid(std::string_view kind, const std::string& error) {
  return ffi::Unexpected(ffi::Error::InvalidArgument(std::string(kind) + ": " + error));
}

// The smallest number that occurs twice in a list.
std::optional<int64_t> Repeated(std::vector<int64_t> numbers) {
  std::sort(numbers.begin(), numbers.end());
  const auto found = std::adjacent_find(numbers.begin(), numbers.end());
  return found == numbers.end() ? std::nullopt : std::optional<int64_t>(*found);
}

// The error in the replica groups or the devices, which are listed by partition.
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

}  // namespace

ffi::ErrorOr<CallAttributes> CallAttributes::Parse(std::string_view kind,
                                                   const ffi::Dictionary& attributes) {
  const auto channel = attributes.get<int64_t>("channel");
  const auto groups = attributes.get<Ints>("replica_groups");
  const auto group_size = attributes.get<int64_t>("group_size");
  const auto devices = attributes.get<Ints>("devices");
  const auto timeout_ms = attributes.get<int64_t>("timeout_ms");
  const auto site = attributes.get<std::string_view>("site");
  const auto unreadable = [&](const char* name, const auto& attribute) {
    return Invalid(kind, "attribute " + std::string(name) + ": " + attribute.error().message());
  };
  if (channel.has_error()) return unreadable("channel", channel);
  if (groups.has_error()) return unreadable("replica_groups", groups);
  if (group_size.has_error()) return unreadable("group_size", group_size);
  if (devices.has_error()) return unreadable("devices", devices);
  if (timeout_ms.has_error()) return unreadable("timeout_ms", timeout_ms);
  if (site.has_error()) return unreadable("site", site);

  if (*group_size <= 0 || groups->size() % static_cast<size_t>(*group_size) != 0) {
    return Invalid(kind, "replica_groups has " + std::to_string(groups->size()) +
                             " numbers, not a multiple of group_size " +
                             std::to_string(*group_size));
  }
  if (*timeout_ms <= 0) {
    return Invalid(kind, "timeout_ms is " + std::to_string(*timeout_ms) + ", not positive");
  }
  if (const auto error = CheckGroups(*groups, *devices)) return Invalid(kind, *error);

  CallAttributes parsed;
  parsed.kind_ = kind;
  parsed.site_ = *site;
  parsed.channel_ = *channel;
  for (size_t partition = 0; partition < devices->size(); ++partition) {
    parsed.by_device_[(*devices)[partition]].partition = static_cast<int64_t>(partition);
  }
  for (const auto* group = groups->begin(); group != groups->end(); group += *group_size) {
    auto call = std::make_shared<GroupCall>();
    call->channel = *channel;
    call->timeout = std::chrono::milliseconds(*timeout_ms);
    call->kind = kind;
    call->site = *site;
    for (const auto* partition = group; partition != group + *group_size; ++partition) {
      if (*partition == kPadding) continue;
      call->members.push_back({*partition, (*devices)[static_cast<size_t>(*partition)]});
    }
    for (size_t position = 0; position < call->members.size(); ++position) {
      Slot& slot = parsed.by_device_[call->members[position].device];
      slot.position = position;
      slot.call = call;
    }
  }
  return parsed;
}

ffi::ErrorOr<Arrival> CallAttributes::ArrivalOf(ffi::RunId run, int32_t device) const {
  const auto found = by_device_.find(device);
  if (found == by_device_.end()) {
    return Invalid(kind_, "device " + std::to_string(device) + " has no partition in devices");
  }
  const Slot& slot = found->second;
  if (slot.call == nullptr) {
    return Invalid(kind_,
                   "partition " + std::to_string(slot.partition) + " is in no replica group");
  }
  return Arrival{slot.call, run.run_id, slot.position};
}

}  // namespace hloom
