// Threads of a library should leave the signals of the process to its own.

#ifndef HLOOM_RUNTIME_CSRC_SIGNALS_BLOCKED_H_
#define HLOOM_RUNTIME_CSRC_SIGNALS_BLOCKED_H_

#include <pthread.h>
#include <signal.h>

namespace hloom {

// Blocks all signals for the calling thread, and so for the threads that it starts meanwhile.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace hloom

#endif  // HLOOM_RUNTIME_CSRC_SIGNALS_BLOCKED_H_
