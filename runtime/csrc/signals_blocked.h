// Blocks signals in the library's threads, so that the process's own threads handle them.

#ifndef HLOOM_RUNTIME_CSRC_SIGNALS_BLOCKED_H_
#define HLOOM_RUNTIME_CSRC_SIGNALS_BLOCKED_H_

#include <pthread.h>
#include <signal.h>

namespace hloom {

// Blocks all signals of the calling thread during its lifetime, and of threads started meanwhile.
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
