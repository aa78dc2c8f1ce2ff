// Kernels that read their peers' operands, and fail where that was not safe.
//
// publish: publishes the address of its operand to the peers.
// read_peers: adds up the published operands of its group. Fails where a peer has not published
// yet,
//   has published another operand meanwhile, or where its own operand is not in the published
//   buffer.
// all_have_left: fails where a member of the group has not finished read_peers.
//
// Each sleeps for a time that differs from device to device and call to call.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using Floats = ffi::Buffer<ffi::F32>;
using Integers = ffi::Span<const int64_t>;

struct Published {
  const float* data = nullptr;
  int64_t times = 0;
  int64_t reads = 0;
};

// One device at one site of one run.
struct Caller {
  int64_t run;
  int64_t site;
  int64_t device;
};

std::mutex mutex;
std::map<std::tuple<int64_t, int64_t, int64_t>, Published> published;

Published Look(const Caller& caller, int64_t device) {
  std::lock_guard<std::mutex> lock(mutex);
  return published[{caller.run, caller.site, device}];
}

template <typename Change>
void Update(const Caller& caller, Change change) {
  std::lock_guard<std::mutex> lock(mutex);
  change(published[{caller.run, caller.site, caller.device}]);
}

void Sleep(const Caller& caller, int64_t salt) {
  const int64_t times = Look(caller, caller.device).times;
  const int64_t microseconds =
      (caller.device * 389 + caller.site * 571 + times * 811 + salt * 97) % 1500;
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

ffi::Error Unsafe(const Caller& caller, int64_t device, const std::string& what) {
  return ffi::Error(ffi::ErrorCode::kDataLoss, "unsafe at site " + std::to_string(caller.site) +
                                                   ": device " + std::to_string(device) + what);
}

std::vector<int64_t> Peers(int64_t device, Integers groups, int64_t group_size) {
  for (auto row = groups.begin(); row != groups.end(); row += group_size) {
    if (std::find(row, row + group_size, device) != row + group_size) {
      return {row, row + group_size};
    }
  }
  return {};
}

void Copy(const Floats& x, Floats& result) {
  if (x.typed_data() != result.typed_data()) {
    std::memcpy(result.typed_data(), x.typed_data(), x.size_bytes());
  }
}

ffi::Error Publish(ffi::RunId run, int32_t device, Floats x, ffi::Result<Floats> result,
                   int64_t site) {
  const Caller caller{run.run_id, site, device};
  Sleep(caller, 0);
  Copy(x, *result);
  Update(caller, [&](Published& mine) {
    mine.data = result->typed_data();
    ++mine.times;
  });
  return ffi::Error::Success();
}

ffi::Error ReadPeers(ffi::RunId run, int32_t device, Floats x, ffi::Result<Floats> result,
                     int64_t site, Integers groups, int64_t group_size) {
  const Caller caller{run.run_id, site, device};
  const Published mine = Look(caller, device);
  if (mine.data != x.typed_data()) return Unsafe(caller, device, " has its operand elsewhere");
  Sleep(caller, 1);
  std::fill_n(result->typed_data(), result->element_count(), 0.0f);
  for (const int64_t peer : Peers(device, groups, group_size)) {
    const Published theirs = Look(caller, peer);
    if (theirs.times < mine.times) return Unsafe(caller, peer, " is not there yet");
    if (theirs.times > mine.times) return Unsafe(caller, peer, " has gone on");
    for (size_t i = 0; i < x.element_count(); ++i) result->typed_data()[i] += theirs.data[i];
    if (Look(caller, peer).times > mine.times) return Unsafe(caller, peer, " has gone on");
  }
  Sleep(caller, 2);
  Update(caller, [&](Published& own) { own.reads = mine.times; });
  return ffi::Error::Success();
}

ffi::Error AllHaveLeft(ffi::RunId run, int32_t device, Floats x, ffi::Result<Floats> result,
                       int64_t site, Integers groups, int64_t group_size) {
  const Caller caller{run.run_id, site, device};
  const int64_t times = Look(caller, device).times;
  for (const int64_t peer : Peers(device, groups, group_size)) {
    if (Look(caller, peer).reads < times) return Unsafe(caller, peer, " is still reading");
  }
  Copy(x, *result);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(peers_publish, Publish,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::RunId>()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Attr<int64_t>("site"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(peers_read_peers, ReadPeers,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::RunId>()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Attr<int64_t>("site")
                                  .Attr<Integers>("groups")
                                  .Attr<int64_t>("group_size"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(peers_all_have_left, AllHaveLeft,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::RunId>()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Attr<int64_t>("site")
                                  .Attr<Integers>("groups")
                                  .Attr<int64_t>("group_size"));
