// Running a plan: no allocation and no decision, only rows.
#pragma once
#include <cstdint>

#include "plan.h"

namespace lcrbnn {

// What one worker works in. The arena of the first one of a call holds the values.
struct Workspace {
  char* arena = nullptr;
  char* tile = nullptr;
  uint64_t* nanoseconds = nullptr;  // by stage, added up
};

// The sums of one convolution, asked for by a test.
struct Probe {
  int node = -1;
  int32_t* sums = nullptr;  // [out_h][out_w][out_c]
};

// One image; workers[i] for i below threads. The answer lies in value_of(plan, its last value) until the next run.
void run_image(const Graph&, const std::vector<NodeData>&, const Plan&, const RowOps&, const float* image,
               Workspace* workers, int threads, const Probe* probe);

inline const float* value_of(const Plan& plan, const Workspace& space, const float* image, int value) {
  const int buffer = plan.value[size_t(value)];
  return buffer == 0 ? image : reinterpret_cast<const float*>(space.arena + plan.buffers[size_t(buffer)].offset);
}

}  // namespace lcrbnn
