// A pool of permanent worker threads: a call distributes numbered tasks and returns when all are done.
#pragma once

#if defined(__wasm__)
namespace lcrbnn {
struct Mutex {};  // WebAssembly has one thread
struct Lock {
  explicit Lock(Mutex&) {}
};
}  // namespace lcrbnn
#else
#include <mutex>
namespace lcrbnn {
using Mutex = std::mutex;
using Lock = std::lock_guard<std::mutex>;
}  // namespace lcrbnn
#endif

namespace lcrbnn {

using Task = void (*)(void* context, int task, int worker);

const int kMostThreads = 256, kMostTasks = 60000;

// Runs tasks 0 to tasks - 1, at most kMostTasks, on up to `threads` threads, including the caller (worker 0). If the
// workers are busy with another call, the caller runs all tasks itself. The results are the same in both cases.
void parallel(int threads, int tasks, Task, void* context);

}  // namespace lcrbnn
