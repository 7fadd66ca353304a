// Workers that stay: a call hands out numbered tasks and returns when all are done.
#pragma once

#if defined(__wasm__)
namespace lcrbnn {
struct Mutex {};  // there is one thread
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

// Runs task 0 .. tasks - 1, at most kMostTasks, on up to `threads` threads, the caller among them (worker 0). If the
// workers are busy with another call, the caller does it all: who computes never changes what is computed.
void parallel(int threads, int tasks, Task, void* context);

}  // namespace lcrbnn
