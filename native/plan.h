// How a graph is run: stages in order, each a row at a time, and one arena where values live as long as they are read.
//
// A stage is a head (what makes a map) and steps (pointwise, on the row while it is in the nearest cache). Bits that a
// later convolution wants are made by the stage that makes their numbers, which prepares that convolution's map too.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "nodes.h"
#include "rows.h"

namespace lcrbnn {

enum class Head : uint8_t { load, bconv, conv, maxpool, avgpool, mean, subsample, channels, softmax, image_mean };
enum class StepKind : uint8_t { spatial, affine, add, hardtanh, relu, prelu, shift, bits };

const int kTile = -1;  // a buffer of the worker, of one row

struct Step {
  StepKind kind;
  int node = -1;             // what it computes; for bits, the first convolution that reads them
  const float* a = nullptr;  // affine; slope of prelu; threshold of bits (null: the mean of the image)
  const float* b = nullptr;  // affine, shift
  int other = -1;            // add: a buffer
  int to = kTile;            // a buffer; for bits, of the bit map
  int group_in = 0, group_words = 0;
  size_t words = 0;            // bits: of a pixel
  std::vector<int> prepare{};  // bits: the convolutions that read them (nodes)
  // Bits from counts alone: bit = (count < limit) xor flip, [class of border][channel].
  std::vector<uint16_t> limit{};
  std::vector<uint8_t> flip{};
};

struct Stage {
  Head head;
  int node;                   // of the head; for load, the first step's
  int from = -1, to = kTile;  // buffers
  Shape in{}, out{};          // of the head
  int sums = -1;              // image_mean: the buffer of sums of rows
  bool limits = false;        // all bits of its steps come from counts
  int feeder = -1;            // maxpool: the stage that makes its rows one by one, while they are in cache
  bool feeds = false;         // conv: it is run by the stage after it, and writes no buffer
  bool micro = false;         // its steps can be done in registers, where the CPU has such a loop
  std::vector<Step> steps{};
};

struct Buffer {
  uint64_t bytes;
  int first, last;  // stages
  uint64_t offset = 0;
};

struct Plan {
  std::vector<Stage> stages;
  std::vector<Buffer> buffers;               // 0: the input, which lies with the caller
  std::vector<int> value;                    // the buffer of each value, -1 where it is never written
  std::vector<int> scratch;                  // the buffer of each convolution's own map, by node
  std::vector<int> stage_of;                 // the stage that computes each node, -1 for flatten
  uint64_t arena = 0, tile = 0;              // bytes: of all buffers, of a worker
  size_t tile_counts = 0, tile_scratch = 0;  // where in a tile the counts and the scratch of a head start
};

// fuse: pointwise nodes join the stage before them. keep: every value is written and stays.
bool make_plan(const Graph&, const std::vector<NodeData>&, bool fuse, bool keep, Plan&, Error&);

// Tries to let the bits of a stage come from counts alone; where that would not be exact it changes nothing.
void integer_limits(const Graph&, const std::vector<NodeData>&, Stage&, uint64_t& budget);

}  // namespace lcrbnn
