// Data of the nodes for execution: weights packed for the kernels, parameters as float32, corrections at borders.
#pragma once
#include <cstdint>
#include <vector>

#include "dispatch.h"
#include "fconv.h"
#include "file.h"
#include "memory.h"

namespace lcrbnn {

struct NodeData {
  const float *a = nullptr, *b = nullptr, *slope = nullptr, *threshold = nullptr, *bias = nullptr, *spatial = nullptr;
  bool spatial_one = false;
  // bconv
  BConv bconv{};
  const BKernel* kernel = nullptr;
  size_t scratch = 0;                     // bytes of the kernel's prepared map
  const int32_t* correction = nullptr;    // [row class][column class][out], if the map is padded with zeros
  std::vector<int32_t> row, column;       // class of each output row and column (same taps)
  int columns = 1;                        // number of column classes
  int plain_row = -1, plain_column = -1;  // the classes whose windows are completely inside the map
  // conv and wconv
  FConv fconv{};
  const FPath* path = nullptr;
  const void* weight = nullptr;  // packed weights of conv, bconv or wconv
  const float* value = nullptr;                             // constant
  const int32_t* indices[3] = {nullptr, nullptr, nullptr};  // take
  // strided: its factors without those of length 1, with neighbors combined where one factor gives the same indices.
  Factors factors{};
};

// Returns whether the output of a node has the numbers of its input in the same order, so that it needs no computation.
bool is_view(const Graph&, const Node&);

bool load_nodes(const Graph&, const uint8_t* file, const char* kernel, Memory&, std::vector<NodeData>&, Error&);

}  // namespace lcrbnn
