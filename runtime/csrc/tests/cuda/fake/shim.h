// Runs CUDA kernels on the CPU: a block is a thread of the system, its threads are fibers of it.
//
// Enough of CUDA C++ for hloom's kernels, which are compiled with this in place of the toolkit's
// own headers. Blocks run in parallel, or one after the other where a kernel must bear that.

#ifndef HLOOM_RUNTIME_CSRC_TESTS_CUDA_FAKE_SHIM_H_
#define HLOOM_RUNTIME_CSRC_TESTS_CUDA_FAKE_SHIM_H_

#include <setjmp.h>
#include <ucontext.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace shim {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

// One launch; `stopped` once a thread of it has trapped.
struct Grid {
  unsigned blocks;
  unsigned threads;
  std::atomic<bool> stopped{false};
};

struct Stopped {};

class Block {
 public:
  Block(Grid& grid, unsigned index, std::function<void()> kernel)
      : grid_(grid), index_(index), kernel_(std::move(kernel)), alive_(grid.threads) {}

  static Block*& Current() {
    static thread_local Block* current = nullptr;
    return current;
  }

  // Runs the threads of the block in turns until all have returned or one has trapped.
  void Run() {
    Current() = this;
    fibers_.resize(grid_.threads);
    stacks_.reset(new char[grid_.threads * kStackBytes]);
    for (unsigned thread = 0; thread < grid_.threads; ++thread) {
      ucontext_t& context = fibers_[thread].context;
      getcontext(&context);
      context.uc_stack.ss_sp = stacks_.get() + thread * kStackBytes;
      context.uc_stack.ss_size = kStackBytes;
      context.uc_link = nullptr;
      makecontext(&context, &Block::Enter, 0);
    }
    while (alive_ > 0) {
      for (thread_ = 0; thread_ < grid_.threads; ++thread_) {
        if (!fibers_[thread_].done) Resume(fibers_[thread_]);
      }
      std::this_thread::yield();
    }
    Current() = nullptr;
  }

  // Lets the other threads of the block, and other blocks, go on.
  void Yield() {
    if (_setjmp(fibers_[thread_].left) == 0) _longjmp(scheduler_left_, 1);
    if (grid_.stopped) throw Stopped{};
  }

  // All threads of the block; returns whether any of them brought a value other than 0.
  bool Synchronize(bool value) {
    unsigned generation = generation_;
    any_ = any_ || value;
    if (++waiting_ == alive_) {
      result_ = any_;
      any_ = false;
      waiting_ = 0;
      ++generation_;
    }
    while (generation == generation_) Yield();
    return result_;
  }

  Grid& grid() { return grid_; }
  Index block() const { return {index_}; }
  Index thread() const { return {thread_}; }

 private:
  static constexpr size_t kStackBytes = 32 << 10;

  struct Fiber {
    ucontext_t context;  // Where it begins.
    jmp_buf left;        // Where it goes on.
    bool begun = false;
    bool done = false;
  };

  // Jumps, for swapcontext asks the kernel for the signal mask each time.
  void Resume(Fiber& fiber) {
    if (_setjmp(scheduler_left_) != 0) return;
    if (fiber.begun) _longjmp(fiber.left, 1);
    fiber.begun = true;
    setcontext(&fiber.context);
  }

  static void Enter() {
    Block* self = Current();
    try {
      self->kernel_();
    } catch (const Stopped&) {
      self->grid_.stopped = true;
    }
    self->fibers_[self->thread_].done = true;
    --self->alive_;
    _longjmp(self->scheduler_left_, 1);
  }

  Grid& grid_;
  const unsigned index_;
  const std::function<void()> kernel_;
  std::vector<Fiber> fibers_;
  std::unique_ptr<char[]> stacks_;
  jmp_buf scheduler_left_;
  unsigned thread_ = 0;
  unsigned alive_;
  unsigned waiting_ = 0;
  unsigned generation_ = 0;
  bool any_ = false;
  bool result_ = false;
};

// Runs a kernel to its end. False where it trapped.
inline bool Launch(unsigned blocks, unsigned threads, bool parallel,
                   const std::function<void()>& kernel) {
  Grid grid{blocks, threads};
  auto run = [&](unsigned block) { Block(grid, block, kernel).Run(); };
  std::vector<std::thread> others;
  for (unsigned block = 1; block < blocks; ++block) {
    // In reverse order where they follow each other: no kernel may count on the first being first.
    if (parallel) {
      others.emplace_back(run, block);
    } else {
      run(blocks - block);
    }
  }
  run(0);
  for (std::thread& other : others) other.join();
  return !grid.stopped;
}

}  // namespace shim

#define __global__
#define __device__
#define __launch_bounds__(threads)
#define __shared__ static thread_local
#define threadIdx (shim::Block::Current()->thread())
#define blockIdx (shim::Block::Current()->block())
#define blockDim (shim::Index{shim::Block::Current()->grid().threads})
#define gridDim (shim::Index{shim::Block::Current()->grid().blocks})

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

inline void __syncthreads() { shim::Block::Current()->Synchronize(false); }
inline int __syncthreads_or(int value) { return shim::Block::Current()->Synchronize(value != 0); }
inline void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }

inline unsigned atomicAdd(unsigned* address, unsigned value) {
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
inline unsigned atomicExch(unsigned* address, unsigned value) {
  return __atomic_exchange_n(address, value, __ATOMIC_RELAXED);
}
inline unsigned atomicOr(unsigned* address, unsigned value) {
  return __atomic_fetch_or(address, value, __ATOMIC_RELAXED);
}
inline unsigned atomicCAS(unsigned* address, unsigned expected, unsigned desired) {
  __atomic_compare_exchange_n(address, &expected, desired, false, __ATOMIC_RELAXED,
                              __ATOMIC_RELAXED);
  return expected;
}

#endif  // HLOOM_RUNTIME_CSRC_TESTS_CUDA_FAKE_SHIM_H_
