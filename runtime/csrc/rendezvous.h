// The rendezvous of the ranks of one process.
//
// The ranks of a replica group arrive at a collective call; the last one runs the call's action on
// all payloads and releases everyone. No rank waits forever: a call fails when it is not complete
// within its timeout, and when it waits for a rank that has failed elsewhere in the same run. Time
// in which the process was stopped does not count.

#ifndef HLOOM_RUNTIME_CSRC_RENDEZVOUS_H_
#define HLOOM_RUNTIME_CSRC_RENDEZVOUS_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hloom {

// One rank of a replica group.
struct Member {
  int64_t rank;    // The partition, for error messages.
  int64_t device;  // The ordinal, which identifies it in this process.

  friend bool operator==(const Member& a, const Member& b) {
    return a.rank == b.rank && a.device == b.device;
  }
};

// One collective call of one replica group: what its ranks agree on, the same in every run.
struct GroupCall {
  int64_t channel = 0;                   // Identifies the call in the program.
  std::vector<Member> members;           // The replica group, in the same order for every rank.
  std::chrono::milliseconds timeout{0};  // From the first arrival; positive.
  std::string kind;                      // For example "hloom.barrier".
  std::string site;                      // For people: the call's location in the program.
};

// One rank's arrival at a call. Ranks wait for each other when they agree on the run, the channel
// and the first member; a rank may arrive again (in a loop) before the others have left. They must
// also agree on kind and members, or the call fails.
struct Arrival {
  std::shared_ptr<const GroupCall> call;
  int64_t run = 0;      // One execution of a program on all its devices.
  size_t position = 0;  // The index of the arriving member.

  const Member& self() const { return call->members[position]; }
};

enum class FailureKind {
  kTimeout,  // A rank did not arrive in time.
  kPeer,     // A rank cannot arrive: it failed elsewhere in this run.
  kMisuse,   // The ranks disagree on the call, or one arrived twice.
  kAction,   // The action failed.
};

struct Failure {
  FailureKind kind;
  std::string message;
};

// Empty when all ranks arrived and the action succeeded.
using Outcome = std::optional<Failure>;

// Thread-safe. Destruction fails all pending calls.
class Rendezvous {
 public:
  using Payload = std::shared_ptr<const void>;
  using Action = std::function<Outcome(const std::vector<Payload>& by_position)>;
  using Callback = std::function<void(const Outcome&)>;
  using Scheduler = std::function<void(std::function<void()>)>;

  // The one of this process. Never destroyed: ranks may still wait when the process exits.
  static Rendezvous& OfProcess();

  Rendezvous() = default;
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  // Arrives and returns at once. `callback` is called exactly once, in this call or later from
  // another thread; it must not throw.
  //
  // The last arrival runs `action` (may be empty) before any rank is released, and its outcome is
  // every rank's. Payloads live until it returns. `schedule` then runs the callbacks of the other
  // ranks; without it they run in this call one after the other, which is only right where no
  // callback can wait for another. A failure is delivered from the thread that finds it.
  void Arrive(const Arrival& arrival, Payload payload, const Action& action, Callback callback,
              const Scheduler& schedule) noexcept;

  // Arrives and blocks the calling thread until all ranks have arrived or the call failed.
  Outcome ArriveAndWait(const Arrival& arrival, Payload payload, const Action& action);

  // Marks a device as failed: it arrives at no further call of this run, and ranks that wait for
  // it, now or later, fail at once with this message.
  void Abandon(int64_t run, const Member& member, const std::string& message) noexcept;

  // The number of incomplete calls.
  size_t pending() const;

 private:
  using Clock = std::chrono::steady_clock;

  struct Key {
    int64_t run;
    int64_t channel;
    int64_t first_device;
    friend bool operator==(const Key& a, const Key& b) {
      return a.run == b.run && a.channel == b.channel && a.first_device == b.first_device;
    }
  };
  struct KeyHash {
    size_t operator()(const Key& key) const noexcept;
  };

  // The arrivals under a key up to the last one. It leaves the map when it is complete or has
  // failed, so that a rank which arrives again under the key starts the next generation.
  struct Generation {
    std::shared_ptr<const GroupCall> call;  // The first arrival's.
    int64_t run;
    Clock::time_point started;  // On the clock of Watched, as is:
    Clock::time_point deadline;
    std::vector<Payload> payloads;    // By position, as is:
    std::vector<Callback> callbacks;  // Empty for ranks that have not arrived.
    size_t arrived = 0;

    Key key() const { return {run, call->channel, call->members.front().device}; }
  };
  using GenerationPtr = std::shared_ptr<Generation>;

  // Callbacks to call once the lock is released.
  using Releases = std::vector<std::pair<Callback, Outcome>>;

  // Devices that failed in one run, with the first reason.
  struct FailedRun {
    std::unordered_map<int64_t, std::string> reason_by_device;
  };

  Outcome Enter(const Arrival& arrival, const Payload& payload, Callback* callback,
                GenerationPtr* complete, Releases* releases);
  GenerationPtr Open(const Arrival& arrival);
  Outcome Check(const Arrival& arrival, const Generation* generation) const;
  void FailLocked(const GenerationPtr& generation, const Failure& failure, Releases* releases);
  void MarkFailed(int64_t run, int64_t device, const std::string& reason);
  void SpreadFailures(int64_t run, Releases* releases);
  void StartWatching();
  void Watch() noexcept;
  // The clock without the time in which the watcher was due but did not run.
  Clock::time_point Watched(Clock::time_point now) const { return now - not_watched_; }
  void PlanLook(Clock::time_point now, const Generation& generation);

  mutable std::mutex mutex_;
  std::unordered_map<Key, GenerationPtr, KeyHash> pending_;
  std::unordered_map<int64_t, FailedRun> failed_runs_;
  std::deque<int64_t> failed_order_;  // Oldest first, of limited length.
  std::condition_variable watch_changed_;
  Clock::time_point next_look_ = Clock::time_point::max();  // When the watcher runs next.
  Clock::duration not_watched_{0};
  bool stopping_ = false;
  std::thread watcher_;
};

// "0-2, 5" for {0, 1, 2, 5}: sorted, with sequences of three and more abbreviated.
std::string RanksText(std::vector<int64_t> ranks);

}  // namespace hloom

#endif  // HLOOM_RUNTIME_CSRC_RENDEZVOUS_H_
