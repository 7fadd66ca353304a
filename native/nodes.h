// What the nodes of a graph need at run: weights packed as kernels like them, numbers widened, corrections of borders.
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
  size_t scratch = 0;                     // bytes of the kernel's own map
  const int32_t* correction = nullptr;    // [class of a row][class of a column][out], where zeros pad the map
  std::vector<int32_t> row, column;       // the class of each output row and column
  int columns = 1;                        // classes of columns
  int plain_row = -1, plain_column = -1;  // the classes that see the whole window
  // conv and wconv
  FConv fconv{};
  const FPath* path = nullptr;
  const void* weight = nullptr;  // packed, of any of the three
};

bool load_nodes(const Graph&, const uint8_t* file, const char* kernel, Memory&, std::vector<NodeData>&, Error&);

}  // namespace lcrbnn
