// A pool of threads that lives as long as a model and works on one pass at a time.
//
// All threads run the same function. Between its steps they meet; within a step they take pieces
// of work from a shared counter, so a thread that lost its core to a neighbour only does less.
// Waiting threads look for a few microseconds and then sleep: nobody burns a core between passes.
// Two threads that a busy neighbour drove onto one core do not look, but hand it to each other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace pilotfish {

class ThreadPool {
 public:
  class Worker;
  using Work = std::function<void(Worker&)>;

  explicit ThreadPool(size_t num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t num_threads() const { return threads_.size() + 1; }

  // Runs `work` on all threads, the caller's among them, and returns when all have ended. `work`
  // must take the same steps on every thread. What `each` calls may throw: all steps are still
  // taken, then the first error is thrown here. What is outside of `each` must not throw.
  void run(const Work& work);

 private:
  static constexpr size_t kCounters = 64;

  struct alignas(64) Counter {
    std::atomic<size_t> next{0};
  };

  void serve(size_t index);
  void meet(size_t index, size_t& step);
  // Keeps the exception being handled, if it is the first of this run.
  void keep_error();
  bool shares_core(size_t index) const;

  // Where a thread was last seen; -1 unknown.
  struct alignas(64) Place {
    std::atomic<int> core{-1};
  };

  std::vector<std::thread> threads_;
  std::vector<Place> places_;
  const Work* work_ = nullptr;
  std::mutex error_mutex_;
  std::exception_ptr error_;
  Counter counters_[kCounters];
  alignas(64) std::atomic<uint32_t> passes_{0};  // counts runs; workers wait for the next
  alignas(64) std::atomic<uint32_t> steps_{0};   // counts meetings; threads wait for the next
  alignas(64) std::atomic<size_t> arrived_{0};
  std::atomic<bool> ending_{false};
};

// One thread's place in a run.
class ThreadPool::Worker {
 public:
  Worker(ThreadPool& pool, size_t index) : pool_(pool), index_(index) {}

  size_t index() const { return index_; }

  // Calls function(i) for i from 0 to count - 1, spread over the threads, and waits for all.
  template <class Function>
  void each(size_t count, const Function& function) {
    std::atomic<size_t>& next = pool_.counters_[step_ % kCounters].next;
    try {
      if (index_ == 0 && count == 1) {
        function(size_t(0));
      } else if (count > 1) {
        for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) function(i);
      }
    } catch (...) {
      pool_.keep_error();  // the others wait for this thread in each step that is left
    }
    pool_.meet(index_, step_);
  }

 private:
  ThreadPool& pool_;
  size_t index_;
  size_t step_ = 0;
};

}  // namespace pilotfish
