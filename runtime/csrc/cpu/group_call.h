// The common part of the CPU handlers whose calls replica groups make together.

#ifndef HLOOM_RUNTIME_CSRC_CPU_GROUP_CALL_H_
#define HLOOM_RUNTIME_CSRC_CPU_GROUP_CALL_H_

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "call_attributes.h"
#include "rendezvous.h"
#include "trace.h"
#include "xla/ffi/api/ffi.h"

namespace hloom {

// The state of one custom call: XLA makes one for each call and executable, which all devices of
// the process share, and destroys it with the executable.
struct CpuCall {
  // XLA writes the type's id here when Python registers it, under this symbol.
  static xla::ffi::TypeId id asm("hloom_cpu_call_type_id");

  CallAttributes attributes;
};

// The body of an instantiate handler: parses the attributes.
xla::ffi::ErrorOr<std::unique_ptr<CpuCall>> InstantiateCall(std::string_view kind,
                                                            const xla::ffi::Dictionary& attributes);

xla::ffi::Error ErrorOf(const Failure& failure);

// Ends a call that fails before it arrives. The other ranks of its group, who would wait for this
// one in vain, fail at once.
xla::ffi::Future FailedCall(xla::ffi::RunId run, int32_t device, xla::ffi::Error error);

// Runs the body of an execute handler with the rank's arrival. An exception in it becomes an error,
// for none may reach XLA.
template <typename Body>
xla::ffi::Future ExecuteCall(const CpuCall& call, xla::ffi::RunId run, int32_t device,
                             const Body& body) {
  const auto failed = [&](const std::string& error) {
    return FailedCall(run, device,
                      xla::ffi::Error::Internal(call.attributes.kind() + ": " + error));
  };
  try {
    const auto arrival = call.attributes.ArrivalOf(run, device);
    return arrival.has_error() ? FailedCall(run, device, arrival.error()) : body(*arrival);
  } catch (const std::exception& error) {
    return failed(error.what());
  } catch (...) {
    return failed("an unknown exception");
  }
}

// Joins the other ranks with a payload. The last arrival runs `action` (may be empty) on all
// payloads; then every rank's future becomes available, or takes the action's failure.
//
// No thread waits: XLA continues each rank in a thread of its own pool. (They continue in parallel
// because what follows may be a collective of XLA's, which blocks its thread until all ranks are
// there.) Where the pool has too few threads for that, the call waits instead.
template <typename T>
xla::ffi::Future Join(
    const Arrival& arrival, xla::ffi::ThreadPool& pool, T payload,
    const std::function<Outcome(const std::vector<const T*>& by_position)>& action) {
  struct Entry {
    T payload;
    std::shared_ptr<CallTrace> trace;
  };
  const GroupCall& call = *arrival.call;
  std::shared_ptr<CallTrace> trace = CallTrace::Begin(
      call.kind, call.site, arrival.self().rank, arrival.self().device, arrival.run, call.channel);

  const Rendezvous::Action act = [&action](const std::vector<Rendezvous::Payload>& payloads) {
    std::vector<const T*> typed;
    typed.reserve(payloads.size());
    for (const auto& erased : payloads) {
      const auto* entry = static_cast<const Entry*>(erased.get());
      if (entry->trace != nullptr) entry->trace->Met();
      typed.push_back(&entry->payload);
    }
    const Outcome outcome = action ? action(typed) : std::nullopt;
    for (const auto& erased : payloads) {
      const auto* entry = static_cast<const Entry*>(erased.get());
      if (entry->trace != nullptr) entry->trace->Worked();
    }
    return outcome;
  };

  xla::ffi::Promise promise;
  xla::ffi::Future future(promise);
  auto callback = [promise, trace](const Outcome& outcome) mutable {
    if (outcome.has_value() && trace != nullptr) trace->Failed(outcome->message);
    trace.reset();
    if (outcome.has_value()) {
      promise.SetError(ErrorOf(*outcome));
    } else {
      promise.SetAvailable();
    }
  };
  auto entry = std::make_shared<const Entry>(Entry{std::move(payload), std::move(trace)});
  Rendezvous& rendezvous = Rendezvous::OfProcess();
  if (pool.num_threads() < static_cast<int64_t>(call.members.size())) {
    callback(rendezvous.ArriveAndWait(arrival, std::move(entry), act));
  } else {
    rendezvous.Arrive(
        arrival, std::move(entry), act, std::move(callback),
        [&pool](std::function<void()> release) { pool.Schedule(std::move(release)); });
  }
  return future;
}

}  // namespace hloom

#endif  // HLOOM_RUNTIME_CSRC_CPU_GROUP_CALL_H_
