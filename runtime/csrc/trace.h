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
// process records into it, this one takes the name with ".PID" added. Gives the reason where that
// fails, else an empty text: it must be a regular file, or none yet, and is not reached through a
// link in the place of its name. The first call that succeeds decides, later ones do nothing.
std::string StartTrace(const std::string& file);

// One rank's call, written when it is destroyed.
class CallTrace {
 public:
  using Clock = std::chrono::steady_clock;

  // Null where nothing is recorded.
  static std::shared_ptr<CallTrace> Begin(std::string_view what, std::string_view site,
                                          int64_t rank, int64_t device, int64_t run,
                                          int64_t channel);
  ~CallTrace();
  CallTrace(const CallTrace&) = delete;
  CallTrace& operator=(const CallTrace&) = delete;

  // Waiting ended: everyone is there, and the work begins.
  void Met() { met_ = Clock::now(); }
  // The work ended.
  void Worked() { worked_ = Clock::now(); }
  void Failed(std::string_view error) { error_ = error; }

 private:
  CallTrace() = default;

  // The line of the file, with its end.
  std::string Event() const;

  std::string what_;
  std::string site_;
  std::string error_;
  int64_t rank_ = 0;
  int64_t device_ = 0;
  int64_t run_ = 0;
  int64_t channel_ = 0;
  Clock::time_point began_ = Clock::now();
  Clock::time_point met_{};     // As is: it never met.
  Clock::time_point worked_{};  // As is: there was no work.
};

}  // namespace hloom

#endif  // HLOOM_RUNTIME_CSRC_TRACE_H_
