// Executes a plan, without allocations.
#pragma once
#include <cstdint>

#include "plan.h"

namespace lcrbnn {

// Memory of one worker. The arena of the first worker of a call has the values.
struct Workspace {
  char* arena = nullptr;
  char* tile = nullptr;
  uint64_t* nanoseconds = nullptr;  // total time per stage
};

// Output of the integer sums of one convolution, for tests.
struct Probe {
  int node = -1;
  int32_t* sums = nullptr;  // [out_h][out_w][out_c]
};

// Runs one image with `threads` workers. The results are value_of(plan, output), valid until the next run.
void run_image(const Graph&, const std::vector<NodeData>&, const Plan&, const RowOps&, const float* image,
               Workspace* workers, int threads, const Probe* probe);

inline const float* value_of(const Plan& plan, const Workspace& space, const float* image, int value) {
  const int buffer = plan.value[size_t(value)];
  const Buffer& b = plan.buffers[size_t(buffer)];
  if (b.constant) return b.constant;
  return buffer == 0 ? image : reinterpret_cast<const float*>(space.arena + b.offset);
}

}  // namespace lcrbnn
