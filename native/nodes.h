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
};

bool load_nodes(const Graph&, const uint8_t* file, const char* kernel, Memory&, std::vector<NodeData>&, Error&);

}  // namespace lcrbnn
