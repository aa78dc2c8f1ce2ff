// A call that runs out of memory when it writes its event does not end the process: `trace_test
// FILE`.

#include "trace.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>

namespace {

bool memory_is_out = false;

}  // namespace

void* operator new(std::size_t bytes) {
  void* memory = memory_is_out ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

// Inlined, they would be told from the operator above: GCC warns of what does not match.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

int main(int, char** arguments) {
  if (!hloom::StartTrace(arguments[1]).empty()) return 1;
  for (const bool is_out : {true, false}) {
    std::shared_ptr<hloom::CallTrace> call =
        hloom::CallTrace::Begin("hloom.barrier", "a site of the test", 0, 0, 1, 7);
    memory_is_out = is_out;
    call.reset();
    memory_is_out = false;
  }
  std::puts("alive");
  return 0;
}
