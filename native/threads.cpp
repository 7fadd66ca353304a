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

const int kSpins = 4000;  // some ten microseconds: the time between two stages

inline void rest() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

struct Pool {
  std::mutex busy;  // held by the call that uses the workers
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<uint64_t> order{0};  // number of the job * 1024 + helpers wanted
  std::atomic<int> asleep{0}, next{0}, pending{0};
  Task run = nullptr;
  void* context = nullptr;
  int tasks = 0, helpers = 0;  // helpers: how many there are
  const pid_t owner = getpid();

  void work(int worker) {
    for (int i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) run(context, i, worker);
  }

  void helper(int worker, uint64_t seen) {
    for (;;) {
      int spins = 0;
      while (order.load(std::memory_order_acquire) == seen && spins < kSpins) rest(), ++spins;
      if (order.load(std::memory_order_acquire) == seen) {
        std::unique_lock<std::mutex> lock(mutex);
        ++asleep;
        wake.wait(lock, [&] { return order.load() != seen; });
        --asleep;
      }
      seen = order.load(std::memory_order_acquire);
      if (worker > int(seen % 1024)) continue;
      work(worker);
      pending.fetch_sub(1, std::memory_order_release);
    }
  }

  void grow(int wanted) {
    while (helpers < wanted) {
#if defined(__cpp_exceptions)
      try {
        std::thread(&Pool::helper, this, helpers + 1, order.load()).detach();
      } catch (const std::system_error&) {
        return;  // fewer then
      }
#else
      std::thread(&Pool::helper, this, helpers + 1, order.load()).detach();
#endif
      ++helpers;
    }
  }
};

std::atomic<Pool*> the_pool{nullptr};

// After a fork the workers are not there: a child makes a pool of its own. Pools are never freed, for workers use them.
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
  p->tasks = tasks;
  p->next.store(0, std::memory_order_relaxed);
  p->pending.store(helpers, std::memory_order_relaxed);
  const uint64_t order = (p->order.load(std::memory_order_relaxed) / 1024 + 1) * 1024 + uint64_t(helpers);
  {
    std::lock_guard<std::mutex> lock(p->mutex);
    p->order.store(order, std::memory_order_seq_cst);
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
