// A checked model file (docs/format.md). Later code relies on these checks.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "error.h"

namespace lcrbnn {

enum class Op : uint8_t {
  conv,
  bconv,
  wconv,
  affine,
  add,
  hardtanh,
  relu,
  prelu,
  shift,
  maxpool,
  avgpool,
  mean,
  subsample,
  channels,
  flatten,
  softmax,
  multiply,  // this and all later ones: version 2
  matmul,
  constant,
  clamp,
  sigmoid,
  tanh,
  gelu,
  gelu_tanh,
  silu,
  hardsigmoid,
  hardswish,
  elu,
  take,
  strided,
  normalize,
  bilinear,
  adaptive_avgpool
};

const char* op_name(Op);

struct Shape {
  int h, w, c;
  size_t numbers() const { return size_t(h) * size_t(w) * size_t(c); }
  bool operator==(const Shape& o) const { return h == o.h && w == o.w && c == o.c; }
};

enum class TensorType : uint8_t { f32, f16, bits, i32 };

struct Tensor {
  TensorType type;
  int rank;
  int64_t shape[4];
  uint64_t offset, bytes;  // in the file
};

struct Window {
  int kh = 1, kw = 1, sy = 1, sx = 1, top = 0, left = 0, bottom = 0, right = 0, dy = 1, dx = 1, groups = 1;
};

const int kMostFactors = 8;

// Elements of a strided: digit i of the row-major index has `lengths[i]` values and moves by `strides[i]`.
struct Factors {
  int count = 0;
  int lengths[kMostFactors], strides[kMostFactors];
};

// Tensors are given by index; -1 means absent.
struct Node {
  Op op;
  std::string name;
  int inputs = 0, in[2] = {0, 0};
  Shape out{};
  Window window;
  int weight = -1, bias = -1, threshold = -1, a = -1, b = -1, spatial = -1, slope = -1;
  bool mean_threshold = false;
  int pad_sign = 0, before = 0, after = 0;
  // version 2
  int indices[3] = {-1, -1, -1};  // take: rows, columns, channels
  int value = -1;                 // constant
  float low = -HUGE_VALF, high = HUGE_VALF, alpha = 0, fill = 0, eps = 0;
  bool transpose = false, spatial_groups = false, align_corners = false;
  Factors factors{};
  int offset = 0;

  bool is_sum_or_product() const { return op == Op::add || op == Op::multiply; }
};

struct Output {
  std::string name;
  int value;
};

struct Graph {
  std::string writer, name;
  float top = 1;
  std::vector<float> mean, deviation;
  std::vector<std::string> classes;
  std::vector<Tensor> tensors;
  std::vector<Node> nodes;
  std::vector<Shape> values;    // values[0] is the input, values[i + 1] the output of node i
  std::vector<Output> outputs;  // at least one
};

bool read_graph(const uint8_t* data, size_t size, Graph&, Error&);

// Copies the file into memory, so that it cannot change between the checks and its use.
bool read_file(const char* path, std::vector<uint8_t>&, Error&);

float widen_half(uint16_t);

}  // namespace lcrbnn
