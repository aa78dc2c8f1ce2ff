// Where the ranks of one process wait for each other.
//
// The ranks of a replica group arrive at a meeting; the last one carries out the meeting's
// action, with everyone's payloads at hand, and releases all. Nobody waits forever: a meeting
// that is not complete within its timeout fails, and so does one that waits for a rank which has
// failed elsewhere in the same run. Time in which the process was stopped does not count.

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
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hloom {

// One rank of a replica group.
struct Member {
  int64_t rank;    // What errors say: the partition.
  int64_t device;  // What identifies it in this process: its ordinal.

  friend bool operator==(const Member& a, const Member& b) {
    return a.rank == b.rank && a.device == b.device;
  }
};

// Which meeting a rank comes to. Ranks meet that agree on run, channel and the first member; a
// rank may come again to the same ones (in a loop), also while others have not left yet. Of one
// meeting all say the same kind and members, or it fails.
struct Meeting {
  int64_t run = 0;                       // One execution of a program on all its devices.
  int64_t channel = 0;                   // One site of the program.
  std::vector<Member> members;           // The replica group; everyone gives the same order.
  size_t position = 0;                   // Which of the members arrives.
  std::chrono::milliseconds timeout{0};  // From the first arrival; positive.
  std::string_view what;                 // The kind of call: "hloom.barrier".
  std::string_view site;                 // For people: where the call stands in the program.
};

enum class FailureKind {
  kTimeout,  // Somebody did not come in time.
  kPeer,     // Somebody cannot come: it failed elsewhere in this run.
  kMisuse,   // The ranks do not agree on who meets, or one came twice.
  kAction,   // The action of the meeting failed.
};

struct Failure {
  FailureKind kind;
  std::string message;
};

// Nothing when all met.
using Outcome = std::optional<Failure>;

// Thread-safe. Destruction fails what is pending.
class Rendezvous {
 public:
  using Payload = std::shared_ptr<const void>;
  using Action = std::function<Outcome(const std::vector<Payload>& by_position)>;
  using Then = std::function<void(const Outcome&)>;
  using Launch = std::function<void(std::function<void()>)>;

  // The one of this process. Never destroyed: ranks may still wait when the process exits.
  static Rendezvous& OfProcess();

  Rendezvous() = default;
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  // Arrives and returns at once. `then` is called exactly once, here or later from another
  // thread; it must not throw.
  //
  // When this is the last arrival, `action` (may be empty) runs here, before anyone is released,
  // and its outcome is everyone's. Payloads live until it returns. Each of the others is then
  // released through `launch`, called here; without one they are released here, one after the
  // other, which is only right where no `then` can wait for another. A failure is delivered from
  // whichever thread finds it.
  void Arrive(const Meeting& meeting, Payload payload, const Action& action, Then then,
              const Launch& launch) noexcept;

  // Arrives and waits. Occupies the calling thread until all have come or the meeting failed.
  Outcome ArriveAndWait(const Meeting& meeting, Payload payload, const Action& action);

  // Says that a device has failed and will come to no further meeting of this run: those who wait
  // for it, now or later, fail at once with this message.
  void Abandon(int64_t run, const Member& member, const std::string& message) noexcept;

  // How many meetings are incomplete.
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

  // One coming together under a key. It leaves the map when it is complete or has failed, so that
  // a rank which comes again to the same key starts the next one.
  struct Generation {
    Meeting meeting;  // Its texts point into the two strings below.
    std::string what;
    std::string site;
    Clock::time_point started;  // By Watched, as is:
    Clock::time_point deadline;
    std::vector<Payload> payloads;  // By position, as is:
    std::vector<Then> thens;        // Empty where nobody has arrived.
    size_t arrived = 0;
  };
  using GenerationPtr = std::shared_ptr<Generation>;

  // What is to be said to whom, once the lock is released.
  using Releases = std::vector<std::pair<Then, Outcome>>;

  // Devices that failed in one run, with the first reason.
  struct FailedRun {
    std::unordered_map<int64_t, std::string> reason_by_device;
  };

  Outcome Enter(const Meeting& meeting, const Payload& payload, Then* then, GenerationPtr* complete,
                Releases* releases);
  GenerationPtr Open(const Meeting& meeting);
  Outcome Refusal(const Meeting& meeting, const Generation* generation) const;
  void FailLocked(const GenerationPtr& generation, const Failure& failure, Releases* releases);
  void MarkFailed(int64_t run, int64_t device, const std::string& reason);
  void SpreadFailures(int64_t run, Releases* releases);
  void StartWatching();
  void Watch() noexcept;
  // The clock without the time that the watcher did not run although it was to.
  Clock::time_point Watched(Clock::time_point now) const { return now - not_watched_; }
  void PlanLook(Clock::time_point now, const Generation& generation);

  mutable std::mutex mutex_;
  std::unordered_map<Key, GenerationPtr, KeyHash> pending_;
  std::unordered_map<int64_t, FailedRun> failed_runs_;
  std::deque<int64_t> failed_order_;  // Oldest first; only so many are remembered.
  std::condition_variable watch_changed_;
  Clock::time_point next_look_ = Clock::time_point::max();  // When the watcher is to run again.
  Clock::duration not_watched_{0};
  bool stopping_ = false;
  std::thread watcher_;
};

// "0-2, 5" for {0, 1, 2, 5}: sorted, runs of three and more put together.
std::string RanksText(std::vector<int64_t> ranks);

}  // namespace hloom

#endif  // HLOOM_RUNTIME_CSRC_RENDEZVOUS_H_
