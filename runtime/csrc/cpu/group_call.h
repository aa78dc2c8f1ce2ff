// What the handlers of calls that a group of ranks makes together have in common.

#ifndef HLOOM_RUNTIME_CSRC_GROUP_CALL_H_
#define HLOOM_RUNTIME_CSRC_GROUP_CALL_H_

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous.h"
#include "trace.h"
#include "xla/ffi/api/ffi.h"

namespace hloom {

// Reads the meeting of one call from the attributes `channel`, `replica_groups`, `group_size`,
// `devices`, `timeout_ms` and `site`, for the device that calls. Its texts point into the
// attributes: they are good during the call. An error says what is wrong with them.
xla::ffi::ErrorOr<Meeting> MeetingOf(std::string_view what, const xla::ffi::Dictionary& attributes,
                                     xla::ffi::RunId run, int32_t device);

xla::ffi::Error ErrorOf(const Failure& failure);

// The end of a call that fails before it meets anyone. The others of its group, who would wait for
// this rank in vain, fail at once.
xla::ffi::Future FailedCall(xla::ffi::RunId run, int32_t device, xla::ffi::Error error);

// Runs a handler's body; what it throws becomes an error, for no exception may reach XLA.
template <typename Body>
xla::ffi::Future Guarded(std::string_view what, xla::ffi::RunId run, int32_t device,
                         const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    return FailedCall(run, device,
                      xla::ffi::Error::Internal(std::string(what) + ": " + error.what()));
  } catch (...) {
    return FailedCall(run, device,
                      xla::ffi::Error::Internal(std::string(what) + ": an unknown exception"));
  }
}

// Arrives at the meeting with a payload. The last arrival carries out `action` (may be empty)
// with everyone's payloads, then all futures become available, or take its failure.
//
// No thread waits: XLA goes on with each rank in one of its own pool's threads. (They go on in
// parallel because what comes next may be a collective of XLA's, which blocks its thread until
// all ranks are there.) Where the pool has too few threads for that, the call waits instead.
template <typename T>
xla::ffi::Future Meet(
    const Meeting& meeting, xla::ffi::ThreadPool& pool, T payload,
    const std::function<Outcome(const std::vector<const T*>& by_position)>& action) {
  struct Arrival {
    T payload;
    std::shared_ptr<CallTrace> trace;
  };
  const Member& self = meeting.members[meeting.position];
  std::shared_ptr<CallTrace> trace = CallTrace::Begin(meeting.what, meeting.site, self.rank,
                                                      self.device, meeting.run, meeting.channel);

  const Rendezvous::Action act = [&action](const std::vector<Rendezvous::Payload>& payloads) {
    std::vector<const T*> typed;
    typed.reserve(payloads.size());
    for (const auto& erased : payloads) {
      const auto* arrival = static_cast<const Arrival*>(erased.get());
      if (arrival->trace != nullptr) arrival->trace->Met();
      typed.push_back(&arrival->payload);
    }
    const Outcome outcome = action ? action(typed) : std::nullopt;
    for (const auto& erased : payloads) {
      const auto* arrival = static_cast<const Arrival*>(erased.get());
      if (arrival->trace != nullptr) arrival->trace->Worked();
    }
    return outcome;
  };

  xla::ffi::Promise promise;
  xla::ffi::Future future(promise);
  auto then = [promise, trace](const Outcome& outcome) mutable {
    if (outcome.has_value() && trace != nullptr) trace->Failed(outcome->message);
    trace.reset();
    if (outcome.has_value()) {
      promise.SetError(ErrorOf(*outcome));
    } else {
      promise.SetAvailable();
    }
  };
  auto arrival = std::make_shared<const Arrival>(Arrival{std::move(payload), std::move(trace)});
  Rendezvous& rendezvous = Rendezvous::OfProcess();
  if (pool.num_threads() < static_cast<int64_t>(meeting.members.size())) {
    then(rendezvous.ArriveAndWait(meeting, std::move(arrival), act));
  } else {
    rendezvous.Arrive(
        meeting, std::move(arrival), act, std::move(then),
        [&pool](std::function<void()> release) { pool.Schedule(std::move(release)); });
  }
  return future;
}

}  // namespace hloom

#endif  // HLOOM_RUNTIME_CSRC_GROUP_CALL_H_
