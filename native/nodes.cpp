#include "nodes.h"

#include <cstring>

#include "fconv_points.h"

namespace lcrbnn {
namespace {

struct Loader {
  const Graph& graph;
  const uint8_t* file;
  const char* kernel;
  Memory& memory;
  Error& error;
  std::vector<const void*> loaded{};  // by tensor: its loaded copy

  template <class T>
  bool load_numbers(int tensor, const T*& out);
  bool load_constant(int tensor, const float*& out);
  bool load_float_weight(const Node&, NodeData&, int index);
  bool load_binary_weight(const Node&, NodeData&, int index);
  bool load_border_corrections(const Node&, NodeData&, const uint64_t* words, int index);
  bool load_node(const Node&, NodeData&, int index);
};

// Loads a tensor of 32-bit numbers.
template <class T>
bool Loader::load_numbers(int tensor, const T*& out) {
  if (tensor < 0) return true;
  if (!loaded[size_t(tensor)]) {
    const Tensor& t = graph.tensors[size_t(tensor)];
    void* block = memory.take(t.bytes);
    if (!block) return error.memory("the model needs too much memory");
    memcpy(block, file + t.offset, size_t(t.bytes));
    loaded[size_t(tensor)] = block;
  }
  out = static_cast<const T*>(loaded[size_t(tensor)]);
  return true;
}

void widen_halves(const uint8_t* from, size_t count, float* to) {
  for (size_t i = 0; i < count; ++i) {
    uint16_t half;
    memcpy(&half, from + 2 * i, 2);
    to[i] = widen_half(half);
  }
}

bool Loader::load_constant(int tensor, const float*& out) {
  if (tensor < 0 || graph.tensors[size_t(tensor)].type == TensorType::f32) return load_numbers(tensor, out);
  if (!loaded[size_t(tensor)]) {
    const Tensor& t = graph.tensors[size_t(tensor)];
    void* block = memory.take(2 * t.bytes);
    if (!block) return error.memory("the model needs too much memory");
    widen_halves(file + t.offset, size_t(t.bytes / 2), static_cast<float*>(block));
    loaded[size_t(tensor)] = block;
  }
  out = static_cast<const float*>(loaded[size_t(tensor)]);
  return true;
}

Factors combine_factors(const Factors& factors) {
  Factors made;
  for (int i = 0; i < factors.count; ++i) {
    const int length = factors.lengths[i], stride = factors.strides[i], last = made.count - 1;
    if (length == 1) continue;
    if (last >= 0 && made.strides[last] == int64_t(length) * stride) {
      made.lengths[last] *= length;  // the product of all lengths is at most 2^28
      made.strides[last] = stride;
    } else {
      made.lengths[made.count] = length;
      made.strides[made.count++] = stride;
    }
  }
  if (made.count == 0) made.lengths[0] = made.strides[0] = made.count = 1;
  return made;
}

// Returns n <= 64 bits of a row, starting at bit `at`.
uint64_t read_bits(const uint8_t* row, size_t bytes, size_t at, int n) {
  uint64_t low = 0;
  const size_t first = at / 8, shift = at % 8;
  const size_t left = bytes - first, take = left < 8 ? left : 8;
  memcpy(&low, row + first, take);
  low >>= shift;
  if (shift && left > 8) low |= uint64_t(row[first + 8]) << (64 - shift);
  return n == 64 ? low : low & ((uint64_t(1) << n) - 1);
}

double product(double a, double b, double c, double d) { return a * b * c * d; }

FConv float_shape(const Node& node, const Shape& in) {
  const Window& w = node.window;
  FConv f{};
  f.in_h = in.h, f.in_w = in.w, f.in_c = in.c;
  f.out_h = node.out.h, f.out_w = node.out.w, f.out_c = node.out.c;
  f.kh = w.kh, f.kw = w.kw, f.stride_h = w.sy, f.stride_w = w.sx, f.dil_h = w.dy, f.dil_w = w.dx;
  f.pad_top = w.top, f.pad_left = w.left, f.groups = w.groups;
  return f;
}

// Returns rows times columns of the padded map that the window covers.
double padded(const Node& node) {
  const Window& w = node.window;
  const double rows = double(node.out.h - 1) * w.sy + double(w.kh - 1) * w.dy + 1;
  const double cols = double(node.out.w - 1) * w.sx + double(w.kw - 1) * w.dx + 1;
  return rows * cols;
}

bool Loader::load_float_weight(const Node& node, NodeData& data, int index) {
  const Shape in = graph.values[size_t(node.in[0])];
  const Tensor& t = graph.tensors[size_t(node.weight)];
  const size_t taps = size_t(node.window.kh) * size_t(node.window.kw) * size_t(in.c / node.window.groups);
  const size_t count = taps * size_t(node.out.c);
  if (double(count) * 8 > double(kMemoryLimit) || padded(node) * in.c * 4 > double(kMemoryLimit))
    return error.memory("node %d needs too much memory", index);
  std::vector<float> numbers(count);
  const uint8_t* from = file + t.offset;
  if (t.type == TensorType::f32) {
    memcpy(numbers.data(), from, count * 4);
  } else if (t.type == TensorType::f16) {
    widen_halves(from, count, numbers.data());
  } else {
    const size_t row = (taps + 7) / 8;
    for (size_t o = 0; o < size_t(node.out.c); ++o)
      for (size_t i = 0; i < taps; ++i) numbers[o * taps + i] = from[o * row + i / 8] >> (i % 8) & 1 ? 1.0f : -1.0f;
  }
  data.fconv = float_shape(node, in);
  data.fconv.points = points_pay(data.fconv);
  data.path = &choose_fconv();
  void* packed = memory.take(uint64_t(fconv_weight_floats(data.fconv)) * 4);
  if (!packed) return error.memory("node %d needs too much memory", index);
  fconv_pack(data.fconv, numbers.data(), static_cast<float*>(packed));
  data.weight = packed;
  return true;
}

// Computes the range of taps that are inside the map along one axis, for output i.
void taps_inside(int i, int size, int kernel, int stride, int dilation, int before, int& low, int& high) {
  const int64_t start = int64_t(i) * stride - before;
  const int64_t first = start >= 0 ? 0 : (-start + dilation - 1) / dilation;
  const int64_t rest = size - start, last = rest <= 0 ? 0 : (rest + dilation - 1) / dilation;
  low = int(first < kernel ? first : kernel);
  high = int(last < kernel ? last : kernel);
  if (high < low) high = low;
}

// Returns whether any output has a tap outside the map along one axis; the first and last output decide.
bool has_outside_taps(int out, int size, int kernel, int stride, int dilation, int before) {
  return before > 0 || int64_t(out - 1) * stride + int64_t(kernel - 1) * dilation - before >= size;
}

struct Ranges {
  std::vector<int> low, high;
  int plain = -1;  // the class that sees all taps
  // Consecutive outputs that see the same taps form one class.
  void classes(int out, int size, int kernel, int stride, int dilation, int before, std::vector<int32_t>& of) {
    of.resize(size_t(out));
    for (int i = 0; i < out; ++i) {
      int l, h;
      taps_inside(i, size, kernel, stride, dilation, before, l, h);
      if (low.empty() || low.back() != l || high.back() != h) low.push_back(l), high.push_back(h);
      of[size_t(i)] = int32_t(low.size()) - 1;
      if (h - l == kernel) plain = of[size_t(i)];
    }
  }
};

// Kernels count each tap outside the map as -1 times its weight. The correction adds the sum of these weights.
bool Loader::load_border_corrections(const Node& node, NodeData& data, const uint64_t* words, int index) {
  const BConv& c = data.bconv;
  if (node.pad_sign != 0) return true;
  if (!has_outside_taps(c.out_h, c.in_h, c.kh, c.stride_h, c.dil_h, c.pad_top) &&
      !has_outside_taps(c.out_w, c.in_w, c.kw, c.stride_w, c.dil_w, c.pad_left))
    return true;
  if (!memory.charge((uint64_t(c.out_h) + uint64_t(c.out_w)) * 4))
    return error.memory("node %d needs too much memory", index);
  Ranges rows, columns;
  std::vector<int32_t> row, column;
  rows.classes(c.out_h, c.in_h, c.kh, c.stride_h, c.dil_h, c.pad_top, row);
  columns.classes(c.out_w, c.in_w, c.kw, c.stride_w, c.dil_w, c.pad_left, column);
  data.row.swap(row);
  data.column.swap(column);
  data.columns = int(columns.low.size());
  data.plain_row = rows.plain;
  data.plain_column = columns.plain;
  const double numbers = product(double(rows.low.size()), double(columns.low.size()), c.out_c, 4);
  int32_t* table = numbers < double(kMemoryLimit) ? static_cast<int32_t*>(memory.take(uint64_t(numbers))) : nullptr;
  if (!table) return error.memory("node %d needs too much memory", index);
  const size_t wide = size_t(c.kw) + 1, per = size_t(c.words());
  std::vector<int32_t> sums((size_t(c.kh) + 1) * wide, 0);  // of weights above and to the left
  for (int o = 0; o < c.out_c; ++o) {
    for (int y = 0; y < c.kh; ++y)
      for (int x = 0; x < c.kw; ++x) {
        int ones = 0;
        for (size_t j = 0; j < per; ++j) ones += __builtin_popcountll(*words++);
        const size_t at = size_t(y) * wide + size_t(x);
        sums[at + wide + 1] = sums[at + wide] + sums[at + 1] - sums[at] + 2 * ones - c.group_in();
      }
    const auto sum = [&](int y, int x) { return sums[size_t(y) * wide + size_t(x)]; };
    for (size_t r = 0; r < rows.low.size(); ++r)
      for (size_t q = 0; q < columns.low.size(); ++q) {
        const int t = rows.low[r], b = rows.high[r], l = columns.low[q], e = columns.high[q];
        const int32_t seen = sum(b, e) - sum(t, e) - sum(b, l) + sum(t, l);
        table[(r * columns.low.size() + q) * size_t(c.out_c) + size_t(o)] = sum(c.kh, c.kw) - seen;
      }
  }
  data.correction = table;
  return true;
}

bool Loader::load_binary_weight(const Node& node, NodeData& data, int index) {
  const Shape in = graph.values[size_t(node.in[0])];
  const Window& w = node.window;
  BConv& c = data.bconv;
  c.in_h = in.h, c.in_w = in.w, c.in_c = in.c;
  c.out_h = node.out.h, c.out_w = node.out.w, c.out_c = node.out.c;
  c.kh = w.kh, c.kw = w.kw, c.stride_h = w.sy, c.stride_w = w.sx, c.dil_h = w.dy, c.dil_w = w.dx;
  c.pad_top = w.top, c.pad_left = w.left, c.groups = w.groups;
  c.pad_bit = node.pad_sign > 0;
  const double words = product(c.out_c, c.kh, c.kw, double(c.words()) * 8);
  // Kernels may expand a bit to a byte and round channels up. 64 times this size is still far below 2^64.
  if (words > double(kMemoryLimit) / 8 || padded(node) * c.groups * c.words() * 8 > double(kMemoryLimit) / 8)
    return error.memory("node %d needs too much memory", index);
  std::vector<uint64_t> canonical(size_t(words) / 8);
  const Tensor& t = graph.tensors[size_t(node.weight)];
  const size_t row = size_t(t.shape[1] + 7) / 8, group = size_t(c.group_in());
  uint64_t* to = canonical.data();
  for (size_t o = 0; o < size_t(c.out_c); ++o)
    for (size_t tap = 0; tap < size_t(c.kh) * size_t(c.kw); ++tap)
      for (size_t i = 0; i < group; i += 64)
        *to++ = read_bits(file + t.offset + o * row, row, tap * group + i, int(group - i < 64 ? group - i : 64));
  data.kernel = choose_bconv(c, kernel);
  if (!data.kernel) {
    const char* name = kernel_name(kernel);
    return error.call("no binary kernel%s%.40s%s can compute node %d; there are %s", name ? " " : "", name ? name : "",
                      name && !kernel ? ", which LCRBNN_KERNEL names," : "", index, kernels_here().c_str());
  }
  void* packed = memory.take(data.kernel->weight_bytes(c));
  data.scratch = data.kernel->scratch_bytes(c);
  if (!packed || data.scratch > kMemoryLimit) return error.memory("node %d needs too much memory", index);
  data.kernel->pack(c, canonical.data(), packed);
  data.weight = packed;
  return load_border_corrections(node, data, canonical.data(), index);
}

bool Loader::load_node(const Node& node, NodeData& data, int index) {
  if (!load_numbers(node.a, data.a) || !load_numbers(node.b, data.b) || !load_numbers(node.slope, data.slope) ||
      !load_numbers(node.bias, data.bias))
    return false;
  if (!load_numbers(node.threshold, data.threshold) || !load_numbers(node.spatial, data.spatial)) return false;
  if (!load_constant(node.value, data.value)) return false;
  for (int axis = 0; axis < 3; ++axis)
    if (!load_numbers(node.indices[axis], data.indices[axis])) return false;
  if (node.op == Op::strided) data.factors = combine_factors(node.factors);
  if (node.spatial >= 0) data.spatial_one = graph.tensors[size_t(node.spatial)].shape[2] == 1;
  if (node.op == Op::bconv) return load_binary_weight(node, data, index);
  if (node.op == Op::conv || node.op == Op::wconv) return load_float_weight(node, data, index);
  return true;
}

}  // namespace

bool is_view(const Graph& graph, const Node& node) {
  if (node.op == Op::flatten) return true;
  if (node.op != Op::strided || node.offset != 0) return false;
  const Factors factors = combine_factors(node.factors);
  return factors.count == 1 && factors.strides[0] == 1 &&
         size_t(factors.lengths[0]) == graph.values[size_t(node.in[0])].numbers();
}

bool load_nodes(const Graph& graph, const uint8_t* file, const char* kernel, Memory& memory,
                std::vector<NodeData>& nodes, Error& error) {
  Loader loader{graph, file, kernel, memory, error};
  loader.loaded.assign(graph.tensors.size(), nullptr);
  nodes.clear();
  nodes.resize(graph.nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i)
    if (!loader.load_node(graph.nodes[i], nodes[i], int(i))) return false;
  return true;
}

}  // namespace lcrbnn
