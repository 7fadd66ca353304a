#include "threads.h"

#if defined(__wasm__)

namespace lcrbnn {
void parallel(int, int tasks, Task run, void* context) {
  for (int i = 0; i < tasks; ++i) run(context, i, 0);
}
}  // namespace lcrbnn

#else

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

namespace lcrbnn {
namespace {

const int kSpins = 4000;  // about ten microseconds, the time between two stages

inline void rest() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// The current job as one number: job number, number of helpers, number of tasks, and next task. A thread takes a task
// by a compare-and-swap of the whole number, so that a late helper cannot take a task of a job that has ended.
struct Ticket {
  uint64_t bits;
  int next() const { return int(bits & 0xFFFF); }
  int tasks() const { return int(bits >> 16 & 0xFFFF); }
  int helpers() const { return int(bits >> 32 & 0x3FF); }
  uint64_t job() const { return bits >> 42; }
  bool left() const { return next() < tasks(); }
  Ticket new_job(int helpers, int tasks) const {
    return {(job() + 1) << 42 | uint64_t(helpers) << 32 | uint64_t(tasks) << 16};
  }
};
static_assert(kMostTasks <= 0xFFFF && kMostThreads <= 0x3FF, "they fit in their parts of a ticket");

struct Pool {
  std::mutex busy;  // the call that uses the workers holds this lock
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<uint64_t> ticket{0};
  std::atomic<int> asleep{0}, pending{0};  // pending: number of unfinished tasks
  Task run = nullptr;
  void* context = nullptr;
  int helpers = 0;  // number of worker threads
  const pid_t owner = getpid();

  Ticket now() const { return {ticket.load(std::memory_order_acquire)}; }

  // Runs tasks until none is left. The caller does not wait for helpers without a task.
  void work(int worker) {
    for (Ticket t = now(); t.left() && worker <= t.helpers();) {
      if (!ticket.compare_exchange_weak(t.bits, t.bits + 1, std::memory_order_acq_rel, std::memory_order_acquire))
        continue;
      run(context, t.next(), worker);
      pending.fetch_sub(1, std::memory_order_release);
      t = now();
    }
  }

  void helper(int worker, uint64_t seen) {
    for (;;) {
      int spins = 0;
      while (now().job() == seen && spins < kSpins) rest(), ++spins;
      if (now().job() == seen) {
        std::unique_lock<std::mutex> lock(mutex);
        ++asleep;
        wake.wait(lock, [&] { return now().job() != seen; });
        --asleep;
      }
      seen = now().job();
      work(worker);
    }
  }

  void grow(int wanted) {
    while (helpers < wanted) {
#if defined(__cpp_exceptions)
      try {
        std::thread(&Pool::helper, this, helpers + 1, now().job()).detach();
      } catch (const std::system_error&) {
        return;  // if a thread cannot be created, continue with fewer helpers
      }
#else
      std::thread(&Pool::helper, this, helpers + 1, now().job()).detach();
#endif
      ++helpers;
    }
  }
};

std::atomic<Pool*> the_pool{nullptr};

// After a fork, the child has no workers, so it creates another pool. Pools are never freed, because workers use them.
Pool* pool() {
  Pool* now = the_pool.load();
  while (!now || now->owner != getpid()) {
    Pool* made = new (std::nothrow) Pool;
    if (!made) return nullptr;
    if (the_pool.compare_exchange_strong(now, made)) return made;
    delete made;
  }
  return now;
}

}  // namespace

void parallel(int threads, int tasks, Task run, void* context) {
  const int most = threads < tasks ? threads : tasks;
  Pool* p = most > 1 ? pool() : nullptr;
  if (!p || !p->busy.try_lock()) {
    for (int i = 0; i < tasks; ++i) run(context, i, 0);
    return;
  }
  p->grow((most < kMostThreads ? most : kMostThreads) - 1);
  const int helpers = most - 1 < p->helpers ? most - 1 : p->helpers;
  p->run = run;
  p->context = context;
  p->pending.store(tasks, std::memory_order_relaxed);
  {
    std::lock_guard<std::mutex> lock(p->mutex);
    p->ticket.store(p->now().new_job(helpers, tasks).bits, std::memory_order_seq_cst);
  }
  if (p->asleep.load()) p->wake.notify_all();
  p->work(0);
  for (int spins = 0; p->pending.load(std::memory_order_acquire) > 0; ++spins) {
    if (spins < kSpins) rest();
    else std::this_thread::yield();
  }
  p->busy.unlock();
}

}  // namespace lcrbnn

#endif
