#include "trace.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>

namespace hloom {
namespace {

// Open for the life of the process; never closed, for calls may end after main has.
std::atomic<int> trace_file{-1};

std::string WithPid(std::string file) {
  const std::string pid = std::to_string(getpid());
  for (size_t at = file.find("%p"); at != std::string::npos; at = file.find("%p", at)) {
    file.replace(at, 2, pid);
    at += pid.size();
  }
  return file;
}

// The error where an open file cannot hold a trace: it would be another program's, or writing could
// wait for a reader.
const char* CheckRegular(int opened) {
  struct stat found{};
  if (fstat(opened, &found) != 0) return std::strerror(errno);
  return S_ISREG(found.st_mode) ? nullptr : "it is not a regular file";
}

// Opens and locks a file for this process alone. Returns -1 with an `error` where that fails;
// `is_taken` where another process records into it.
int OpenLocked(const std::string& file, std::string* error, bool* is_taken) {
  // Without waiting for a FIFO's reader, and not through a link at the end of the name.
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  const int opened = open(file.c_str(), kFlags, 0644);
  if (opened < 0) {
    // ENXIO: a FIFO without a reader, or a socket.
    *error = errno == ELOOP   ? "it is a symbolic link"
             : errno == ENXIO ? "it is not a regular file"
                              : std::strerror(errno);
    return -1;
  }
  const char* reason = CheckRegular(opened);
  if (reason == nullptr && flock(opened, LOCK_EX | LOCK_NB) == 0) return opened;
  if (reason == nullptr) {
    *is_taken = errno == EWOULDBLOCK;
    reason = std::strerror(errno);
  }
  *error = reason;
  close(opened);
  return -1;
}

// Stops the trace with one warning where a write fails.
void Write(int file, const std::string& text) {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = write(file, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      if (trace_file.exchange(-1) >= 0) {
        std::fprintf(stderr, "hloom: the trace ends here: %s\n", std::strerror(errno));
      }
      return;
    }
    written += static_cast<size_t>(count);
  }
}

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(c));
      quoted += escape;
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

// Whole microseconds and three digits, as the format wants it.
std::string Microseconds(std::chrono::nanoseconds duration) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3f", static_cast<double>(duration.count()) / 1000.0);
  return text;
}

}  // namespace

std::string StartTrace(const std::string& file) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  if (trace_file.load() >= 0) return "";
  const std::string name = WithPid(file);
  std::string error;
  bool is_taken = false;
  int opened = OpenLocked(name, &error, &is_taken);
  if (is_taken) opened = OpenLocked(name + "." + std::to_string(getpid()), &error, &is_taken);
  if (opened < 0) return error;
  if (ftruncate(opened, 0) != 0) {
    const int reason = errno;
    close(opened);
    return std::strerror(reason);
  }
  Write(opened, "[\n");
  trace_file.store(opened);
  return "";
}

std::shared_ptr<CallTrace> CallTrace::Begin(std::string_view kind, std::string_view site,
                                            int64_t rank, int64_t device, int64_t run,
                                            int64_t channel) {
  if (trace_file.load(std::memory_order_relaxed) < 0) return nullptr;
  const std::shared_ptr<CallTrace> call(new CallTrace());
  call->kind_ = kind;
  call->site_ = site;
  call->rank_ = rank;
  call->device_ = device;
  call->run_ = run;
  call->channel_ = channel;
  return call;
}

CallTrace::~CallTrace() {
  const int file = trace_file.load(std::memory_order_relaxed);
  if (file < 0) return;
  // Within the body: a handler of the whole destructor would throw again at its end, and that ends
  // the process.
  try {
    Write(file, Event());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "hloom: a call is missing in the trace: %s\n", error.what());
  }
}

std::string CallTrace::Event() const {
  const Clock::time_point now = Clock::now();
  const bool has_met = met_ != Clock::time_point{};
  const std::chrono::nanoseconds waited = (has_met ? met_ : now) - began_;
  const std::chrono::nanoseconds worked =
      worked_ == Clock::time_point{} ? std::chrono::nanoseconds(0) : worked_ - met_;
  std::string event =
      "{\"name\":" + Quoted(kind_) +
      ",\"cat\":\"hloom\",\"ph\":\"X\",\"ts\":" + Microseconds(began_.time_since_epoch()) +
      ",\"dur\":" + Microseconds(now - began_) + ",\"pid\":" + std::to_string(getpid()) +
      ",\"tid\":" + std::to_string(device_) + ",\"args\":{\"rank\":" + std::to_string(rank_) +
      ",\"run\":" + std::to_string(run_) + ",\"channel\":" + std::to_string(channel_) +
      ",\"site\":" + Quoted(site_) + ",\"wait_us\":" + Microseconds(waited) +
      ",\"execute_us\":" + Microseconds(worked);
  if (!error_.empty()) event += ",\"error\":" + Quoted(error_);
  return event + "}},\n";
}

}  // namespace hloom
