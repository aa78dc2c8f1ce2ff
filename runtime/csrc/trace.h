// Records calls as a Chrome trace: a JSON array of events that Perfetto and chrome://tracing open.
//
// Each event is written out as it ends, so the file is whole up to the last call also when the
// process is killed. The array is never closed: the format allows that.

#ifndef HLOOM_RUNTIME_CSRC_TRACE_H_
#define HLOOM_RUNTIME_CSRC_TRACE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace hloom {

// Starts to record into a file; "%p" in its name stands for the process id. Where another live
// process records into it, ".PID" is added to the name. Returns the error, or an empty text: the
// file must be regular or not exist yet, and its name must not be a symbolic link. Calls after the
// first that succeeds do nothing.
std::string StartTrace(const std::string& file);

// One rank's call, written when it is destroyed.
class CallTrace {
 public:
  using Clock = std::chrono::steady_clock;

  // Null where no trace is recorded.
  static std::shared_ptr<CallTrace> Begin(std::string_view kind, std::string_view site,
                                          int64_t rank, int64_t device, int64_t run,
                                          int64_t channel);
  ~CallTrace();
  CallTrace(const CallTrace&) = delete;
  CallTrace& operator=(const CallTrace&) = delete;

  // All ranks have arrived, and the action begins.
  void Met() { met_ = Clock::now(); }
  // The action ended.
  void Worked() { worked_ = Clock::now(); }
  void Failed(std::string_view error) { error_ = error; }

 private:
  CallTrace() = default;

  // The event's line in the file, with its newline.
  std::string Event() const;

  std::string kind_;
  std::string site_;
  std::string error_;
  int64_t rank_ = 0;
  int64_t device_ = 0;
  int64_t run_ = 0;
  int64_t channel_ = 0;
  Clock::time_point began_ = Clock::now();
  Clock::time_point met_{};     // Zero where the ranks did not all arrive.
  Clock::time_point worked_{};  // Zero where there was no action.
};

}  // namespace hloom

#endif  // HLOOM_RUNTIME_CSRC_TRACE_H_
