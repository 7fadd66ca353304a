// The execution plan of a graph: an ordered list of stages, each executed row by row, and one arena for all values.
//
// A stage has a head, which computes a map, and elementwise steps, which process each row while it is in the cache. The
// stage that computes a value also computes its sign bits for later binary convolutions, and prepares their maps.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "nodes.h"
#include "rows.h"

namespace lcrbnn {

enum class Head : uint8_t {
  load,
  bconv,
  conv,
  maxpool,
  avgpool,
  mean,
  subsample,
  channels,
  softmax,
  image_mean,
  broadcast,  // sum or product of two shapes
  matmul,
  take,
  strided,
  normalize,
  bilinear,
  adaptive_avgpool
};
enum class StepKind : uint8_t { spatial, affine, add, hardtanh, relu, prelu, shift, bits, multiply, activation };

const int kTile = -1;  // stands for a buffer of one row that belongs to the worker

struct Step {
  StepKind kind;
  int node = -1;             // the node; for bits, the first convolution that reads them
  const float* a = nullptr;  // a of affine, slope of prelu, thresholds of bits (null: mean of the image)
  const float* b = nullptr;  // b of affine and shift
  int other = -1;            // add and multiply: buffer of the second input
  Activation activation{};
  int to = kTile;            // output buffer; for bits, the bit map
  int group_in = 0, group_words = 0;
  size_t words = 0;            // bits: words per pixel
  std::vector<int> prepare{};  // bits: the convolutions (nodes) that read them
  // Bits computed from integer counts: bit = (count < limit) xor flip, [border class][channel].
  std::vector<uint16_t> limit{};
  std::vector<uint8_t> flip{};
};

struct Stage {
  Head head;
  int node;                   // node of the head; for load, that of the first step
  int from = -1, to = kTile;  // buffers
  int other = -1;             // broadcast and matmul: buffer of the second input
  Shape in{}, out{};          // shapes of the head
  int sums = -1;              // image_mean and normalize: buffer with sums of each row
  bool limits = false;        // all bits of the steps are computed from integer counts
  int feeder = -1;            // maxpool: the stage that computes its input row by row, in the cache
  bool feeds = false;         // conv: the next stage runs it row by row, and it has no output buffer
  bool micro = false;         // its steps can be done in registers, if the CPU has such a loop
  std::vector<Step> steps{};
};

struct Buffer {
  uint64_t bytes;
  int first, last;  // stages between which the buffer is in use
  uint64_t offset = 0;
  const float* constant = nullptr;  // numbers of the model, which need no place in the arena
};

struct Plan {
  std::vector<Stage> stages;
  std::vector<Buffer> buffers;               // buffer 0 is the input, in memory of the caller
  std::vector<int> value;                    // buffer of each value, -1 if it is never written
  std::vector<int> scratch;                  // by node: buffer of the prepared map of a convolution
  std::vector<int> stage_of;                 // by node: stage that computes it, -1 for views and constants
  uint64_t arena = 0, tile = 0;              // bytes of all buffers, and of the buffers of one worker
  size_t tile_counts = 0, tile_scratch = 0;  // offsets of counts and scratch in a tile
};

// With `fuse`, elementwise nodes become steps of the stage before them. With `keep`, every value is written and kept.
bool make_plan(const Graph&, const std::vector<NodeData>&, bool fuse, bool keep, Plan&, Error&);

// Assigns offsets in the order of first use; each buffer takes the first gap between the buffers in use.
bool place_buffers(Plan&, Error&);

// Computes the bytes of the buffers of one worker, which are the largest that a stage needs.
void size_tiles(const Graph&, const std::vector<NodeData>&, Plan&);

// Computes integer limits for the bits of a stage; changes nothing if limits would not be exact.
void integer_limits(const Graph&, const std::vector<NodeData>&, Stage&, uint64_t& budget);

}  // namespace lcrbnn
