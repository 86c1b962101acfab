// Preloaded by a test: allocations of C++ code fail when told, one at a time.
//
// Which are counted: those of threads of the core's pool, or those of the thread that calls
// `fail_allocation`, and there only large ones, as the bindings end the process on some small ones.
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

constexpr std::size_t kLarge = 600;

std::atomic<bool> is_counting{false}, in_pool{false};
std::atomic<long> counted{0}, failing{-1};
pthread_t caller;

bool fails(std::size_t bytes) {
  if (!is_counting.load()) return false;
  const bool is_caller = pthread_equal(pthread_self(), caller) != 0;
  if (is_caller == in_pool.load() || (is_caller && bytes < kLarge)) return false;
  return counted.fetch_add(1) == failing.load();
}

void* allocate(std::size_t bytes) {
  void* memory = fails(bytes) ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

extern "C" {

// From now on the allocation of this number fails, counted from 0; -1: none.
void fail_allocation(long number, int of_pool) {
  caller = pthread_self();
  counted = 0;
  failing = number;
  in_pool = of_pool != 0;
  is_counting = true;
}

// Ends it; returns how many were counted.
long num_allocations() {
  is_counting = false;
  return counted.load();
}

void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  void* memory = nullptr;
  if (fails(bytes) || posix_memalign(&memory, alignment, bytes) != 0) return nullptr;
  return memory;
}
}

void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
