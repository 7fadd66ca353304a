// The memory of a plan: the place of each buffer in the arena, and the size of the buffers of one worker.
#include <algorithm>

#include "ops.h"
#include "plan.h"

namespace lcrbnn {
namespace {

uint64_t round_up(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

bool place_buffers(Plan& plan, Error& error) {
  std::vector<int> order, alive;
  for (int i = 1; i < int(plan.buffers.size()); ++i) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&plan](int x, int y) { return plan.buffers[size_t(x)].first < plan.buffers[size_t(y)].first; });
  for (const int i : order) {
    Buffer& b = plan.buffers[size_t(i)];
    const uint64_t bytes = round_up(b.bytes) + 64;
    alive.erase(
        std::remove_if(alive.begin(), alive.end(), [&](int j) { return plan.buffers[size_t(j)].last < b.first; }),
        alive.end());
    uint64_t at = 0;
    auto spot = alive.begin();  // sorted by offset
    for (; spot != alive.end(); ++spot) {
      const Buffer& other = plan.buffers[size_t(*spot)];
      if (other.offset >= at + bytes) break;
      at = other.offset + round_up(other.bytes) + 64;
    }
    b.offset = at;
    alive.insert(spot, i);
    plan.arena = std::max(plan.arena, at + bytes);
    if (plan.arena > kMemoryLimit) return error.memory("the model needs too much memory to run");
  }
  return true;
}

void size_tiles(const Graph& graph, const std::vector<NodeData>& data, Plan& plan) {
  uint64_t floats = 0, counts = 0, scratch = 0;
  for (const Stage& stage : plan.stages) {
    const uint64_t width = uint64_t(stage.out.w);
    if (stage.head == Head::bconv) {
      const uint64_t panel = uint64_t(data[size_t(stage.node)].kernel->panel);
      floats = std::max(floats, width * panel * 4);
      counts = std::max(counts, width * panel * (data[size_t(stage.node)].kernel->wide_row ? 4 : 2));
    } else if (stage.head == Head::conv) {
      scratch = std::max<uint64_t>(scratch, uint64_t(fconv_scratch_floats(data[size_t(stage.node)].fconv)) * 4);
    } else if (stage.feeder >= 0) {  // scratch of the convolution, then the rows of a window
      const Stage& feeder = plan.stages[size_t(stage.feeder)];
      const uint64_t own = round_up(uint64_t(fconv_scratch_floats(data[size_t(feeder.node)].fconv)) * 4);
      const uint64_t row = uint64_t(stage.in.w) * uint64_t(stage.in.c) * 4;
      scratch = std::max(scratch, own + uint64_t(graph.nodes[size_t(stage.node)].window.kh) * row);
    } else {
      floats = std::max(floats, width * uint64_t(stage.out.c) * 4);
      scratch = std::max<uint64_t>(scratch, uint64_t(stage.out.c) * 8);
      const Node& node = graph.nodes[size_t(stage.node)];
      if (stage.head == Head::normalize)
        scratch = std::max(scratch, normalize_scratch(stage.in));
      if (stage.head == Head::matmul && node.transpose)  // the second matrix, transposed
        scratch = std::max(scratch, uint64_t(stage.in.c) * uint64_t(stage.out.c) * 4);
    }
  }
  plan.tile_counts = size_t(round_up(floats) + 64);
  plan.tile_scratch = plan.tile_counts + size_t(round_up(counts) + 64);
  plan.tile = plan.tile_scratch + round_up(scratch) + 64;
}

}  // namespace lcrbnn
