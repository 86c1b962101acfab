#include "threads.hpp"

#include <utility>

#ifdef __linux__
#include <sched.h>
#endif

namespace pilotfish {
namespace {

// About 20 to 60 microseconds: longer than a step lasts when all goes well, shorter than it takes
// to matter when the other thread has no core.
constexpr int kLooks = 2000;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns when `value` is no longer `old`.
void wait_for_change(const std::atomic<uint32_t>& value, uint32_t old, int looks) {
  for (; looks > 0; looks--) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  while (value.load(std::memory_order_acquire) == old) {
    value.wait(old, std::memory_order_acquire);
  }
}

int current_core() {
#ifdef __linux__
  return sched_getcpu();
#else
  return -1;
#endif
}

}  // namespace

ThreadPool::ThreadPool(size_t num_threads) : places_(num_threads) {
  threads_.reserve(num_threads - 1);
  try {
    for (size_t i = 1; i < num_threads; i++) threads_.emplace_back([this, i] { serve(i); });
  } catch (...) {
    // a system that gives no more threads: the ones there are do the work
  }
}

ThreadPool::~ThreadPool() {
  ending_.store(true);
  passes_.fetch_add(1, std::memory_order_release);
  passes_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(const Work& work) {
  work_ = &work;
  passes_.fetch_add(1, std::memory_order_release);
  passes_.notify_all();
  Worker worker(*this, 0);
  work(worker);
  // all have left `work` once all have met again
  size_t last = 0;
  meet(0, last);
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::keep_error() {
  const std::lock_guard lock(error_mutex_);
  if (!error_) error_ = std::current_exception();
}

void ThreadPool::serve(size_t index) {
  uint32_t seen = 0;
  while (true) {
    wait_for_change(passes_, seen, kLooks);
    seen++;
    if (ending_.load()) return;
    Worker worker(*this, index);
    (*work_)(worker);
    size_t last = 0;
    meet(index, last);
  }
}

void ThreadPool::meet(size_t index, size_t& step) {
  places_[index].core.store(current_core(), std::memory_order_relaxed);
  const uint32_t now = steps_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads()) {
    // the counter of this step is spent; its next user is kCounters steps away
    counters_[step % kCounters].next.store(0, std::memory_order_relaxed);
    arrived_.store(0, std::memory_order_relaxed);
    steps_.fetch_add(1, std::memory_order_release);
    steps_.notify_all();
  } else {
    wait_for_change(steps_, now, shares_core(index) ? 0 : kLooks);
  }
  step++;
}

// Whether another thread was last seen on this thread's core: looking would keep it from working.
bool ThreadPool::shares_core(size_t index) const {
  const int core = places_[index].core.load(std::memory_order_relaxed);
  for (size_t i = 0; i < num_threads(); i++) {
    if (i != index && core >= 0 && places_[i].core.load(std::memory_order_relaxed) == core) {
      return true;
    }
  }
  return false;
}

}  // namespace pilotfish
