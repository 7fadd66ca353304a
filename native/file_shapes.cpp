// Infers the shapes of values, and checks the tensors of nodes.
#include "reader.h"

namespace lcrbnn {
namespace {

// Returns whether each window overlaps the map along one axis. It suffices to check the first and the last output,
// because pools have no dilation.
bool windows_overlap_map(int size, int kernel, int stride, int before, int out) {
  return before < kernel && int64_t(out - 1) * stride - before < size;
}

}  // namespace

bool Reader::check_floats(int tensor, int index, const char* key, int64_t length) {
  const Tensor& t = graph.tensors[size_t(tensor)];
  if (t.type != TensorType::f32 || t.rank != 1 || t.shape[0] != length)
    return error.file("node %d: %s must be an f32 tensor of %lld numbers", index, key, (long long)length);
  return true;
}

// Returns whether a tensor has no NaN. Each tensor is checked once, because thousands of nodes may share it.
bool Reader::has_no_nan(int tensor) {
  const Tensor& t = graph.tensors[size_t(tensor)];
  compared.resize(graph.tensors.size(), false);
  for (int64_t i = 0; !compared[size_t(tensor)] && i < t.shape[0]; ++i) {
    float number;
    memcpy(&number, data + t.offset + 4 * uint64_t(i), 4);
    if (number != number) return false;
  }
  return compared[size_t(tensor)] = true;
}

bool Reader::infer_window_output(Node& node, int index, const Shape& in) {
  const Window& w = node.window;
  const int64_t span_y = int64_t(w.dy) * (w.kh - 1) + 1, span_x = int64_t(w.dx) * (w.kw - 1) + 1;
  const int64_t rest_y = int64_t(in.h) + w.top + w.bottom - span_y, rest_x = int64_t(in.w) + w.left + w.right - span_x;
  if (rest_y < 0 || rest_x < 0) return error.file("node %d: the window is larger than the map", index);
  const int64_t h = rest_y / w.sy + 1, x = rest_x / w.sx + 1;
  if (h > kLargestSide || x > kLargestSide) return error.file("node %d: height or width is larger than 2^20", index);
  node.out = {int(h), int(x), in.c};
  return true;
}

bool Reader::check_weights(Node& node, int index, const Shape& in) {
  const Tensor& t = graph.tensors[size_t(node.weight)];
  const Window& w = node.window;
  if (in.c % w.groups) return error.file("node %d: groups do not divide its %d input channels", index, in.c);
  const int64_t group = in.c / w.groups, taps = int64_t(w.kh) * w.kw * group;  // below 2^60
  if (node.op == Op::conv) {
    if ((t.type != TensorType::f32 && t.type != TensorType::f16) || t.rank != 4 || t.shape[1] != w.kh || t.shape[2] != w.kw || t.shape[3] != group)
      return error.file("node %d: weight must be f32 or f16 [out, kh, kw, in/groups]", index);
  } else {
    if (t.type != TensorType::bits || t.shape[1] != taps)
      return error.file("node %d: weight must be bits [out, kh * kw * in/groups]", index);
    const int64_t most = version < 2 ? kMostTapsVersion1 : kMostTaps;
    if (node.op == Op::bconv && taps > most)
      return error.file("node %d: a sum has more than %lld terms", index, (long long)most);
  }
  node.out.c = int(t.shape[0]);
  if (node.out.c % w.groups)
    return error.file("node %d: groups do not divide its %d output channels", index, node.out.c);
  const int c = node.out.c;
  if (node.bias >= 0 && !check_floats(node.bias, index, "bias", c)) return false;
  if (node.op == Op::conv) return true;
  if (!check_floats(node.a, index, "a", c) || !check_floats(node.b, index, "b", c)) return false;
  if (node.spatial >= 0) {
    const Tensor& s = graph.tensors[size_t(node.spatial)];
    if (s.type != TensorType::f32 || s.rank != 3 || s.shape[0] != node.out.h || s.shape[1] != node.out.w ||
        (s.shape[2] != 1 && s.shape[2] != c))
      return error.file("node %d: spatial must be f32 [h', w', 1 or out]", index);
  }
  if (node.threshold >= 0) {
    if (!check_floats(node.threshold, index, "threshold", in.c)) return false;
    if (!has_no_nan(node.threshold)) return error.file("node %d: threshold must not be NaN", index);
  }
  return true;
}

bool Reader::infer_matrix_product(Node& node, int index, const Shape& in) {
  const Shape& other = graph.values[size_t(node.in[1])];
  const int k = node.transpose ? other.c : other.w, n = node.transpose ? other.w : other.c;
  if (other.h != in.h || k != in.c) return error.file("node %d: the shapes of its matrices do not fit", index);
  node.out = {in.h, in.w, n};
  return true;
}

// Checks the indices of a take. The range of each tensor is computed once, because thousands of nodes may share it.
bool Reader::infer_taken(Node& node, int index, const Shape& in) {
  const int sizes[3] = {in.h, in.w, in.c};
  int out[3] = {in.h, in.w, in.c};
  ranges.resize(graph.tensors.size(), {0, INT32_MIN});
  for (int axis = 0; axis < 3; ++axis) {
    const int tensor = node.indices[axis];
    if (tensor < 0) continue;
    const Tensor& t = graph.tensors[size_t(tensor)];
    if (t.type != TensorType::i32 || t.rank != 1)
      return error.file("node %d: rows, columns and channels must be i32 [n]", index);
    auto& [smallest, largest] = ranges[size_t(tensor)];
    for (int64_t i = 0; i < t.shape[0] && (i || largest == INT32_MIN); ++i) {
      int32_t number;
      memcpy(&number, data + t.offset + 4 * uint64_t(i), 4);
      smallest = i ? std::min(smallest, number) : number;
      largest = i ? std::max(largest, number) : number;
    }
    if (smallest < -1 || largest >= sizes[axis])
      return error.file("node %d: indices must be from -1 to %d", index, sizes[axis] - 1);
    out[axis] = int(t.shape[0]);
  }
  node.out = {out[0], out[1], out[2]};
  return true;
}

bool Reader::check_strided(Node& node, int index, const Shape& in) {
  const Factors& f = node.factors;
  int64_t count = 1, first = node.offset, last = node.offset;
  for (int i = 0; i < f.count; ++i) {
    count *= f.lengths[i];  // no overflow: it is at most 2^28 before, and a length is at most 2^28
    if (count > kLargestValue) return error.file("node %d: lengths select more than 2^28 numbers", index);
    const int64_t span = int64_t(f.lengths[i] - 1) * f.strides[i];  // below 2^57, and there are at most 8 spans
    (span < 0 ? first : last) += span;
  }
  if (int64_t(node.out.h) * node.out.w > kLargestValue || count != int64_t(node.out.h) * node.out.w * node.out.c)
    return error.file("node %d: the product of lengths must be that of shape", index);
  if (first < 0 || last >= int64_t(in.numbers()))
    return error.file("node %d: offset and strides select elements outside the input", index);
  return true;
}

bool Reader::infer_shape(Node& node, int index) {
  const Shape in = node.inputs ? graph.values[size_t(node.in[0])] : Shape{};
  const Window& w = node.window;
  const Shape wanted = node.out;  // from the keys `size` and `shape`
  node.out = in;
  switch (node.op) {
    case Op::conv:
    case Op::bconv:
    case Op::wconv:
      if (!infer_window_output(node, index, in) || !check_weights(node, index, in)) return false;
      break;
    case Op::affine:
      if (!check_floats(node.a, index, "a", in.c) || !check_floats(node.b, index, "b", in.c)) return false;
      break;
    case Op::add:
    case Op::multiply: {
      const Shape& other = graph.values[size_t(node.in[1])];
      const auto fits = [](int x, int y) { return x == y || x == 1 || y == 1; };
      if (in == other) break;
      if (version < 2) return error.file("node %d: both inputs must have the same shape", index);
      if (!fits(in.h, other.h) || !fits(in.w, other.w) || !fits(in.c, other.c))
        return error.file("node %d: dimensions of both inputs must be equal or 1", index);
      node.out = {std::max(in.h, other.h), std::max(in.w, other.w), std::max(in.c, other.c)};
      break;
    }
    case Op::prelu:
      if (!check_floats(node.slope, index, "slope", in.c)) return false;
      break;
    case Op::shift:
      if (!check_floats(node.b, index, "b", in.c)) return false;
      break;
    case Op::maxpool:
    case Op::avgpool:
      if (!infer_window_output(node, index, in)) return false;
      if (node.op == Op::avgpool && (w.top || w.left))
        return error.file("node %d: top and left of pad must be 0", index);
      if (!windows_overlap_map(in.h, w.kh, w.sy, w.top, node.out.h) ||
          !windows_overlap_map(in.w, w.kw, w.sx, w.left, node.out.w))
        return error.file("node %d: each window must overlap the map", index);
      break;
    case Op::mean: node.out = {1, 1, in.c}; break;
    case Op::subsample: node.out = {(in.h - 1) / w.sy + 1, (in.w - 1) / w.sx + 1, in.c}; break;
    case Op::channels:
      if (int64_t(in.c) + node.before + node.after > kLargestSide)
        return error.file("node %d: more than 2^20 channels", index);
      node.out.c = in.c + node.before + node.after;
      break;
    case Op::flatten:
      if (int64_t(in.numbers()) > kLargestSide) return error.file("node %d: more than 2^20 channels", index);
      node.out = {1, 1, int(in.numbers())};
      break;
    case Op::matmul:
      if (!infer_matrix_product(node, index, in)) return false;
      break;
    case Op::constant: {
      const Tensor& t = graph.tensors[size_t(node.value)];
      if ((t.type != TensorType::f32 && t.type != TensorType::f16) || t.rank != 3)
        return error.file("node %d: value must be f32 or f16 [h, w, c]", index);
      node.out = {int(t.shape[0]), int(t.shape[1]), int(t.shape[2])};
      break;
    }
    case Op::take:
      if (!infer_taken(node, index, in)) return false;
      break;
    case Op::strided:
      node.out = wanted;
      if (!check_strided(node, index, in)) return false;
      break;
    case Op::normalize:
      if (in.c % w.groups) return error.file("node %d: groups do not divide its %d channels", index, in.c);
      if (!check_floats(node.a, index, "a", in.c) || !check_floats(node.b, index, "b", in.c)) return false;
      break;
    case Op::bilinear:
    case Op::adaptive_avgpool: node.out = {wanted.h, wanted.w, in.c}; break;
    case Op::hardtanh:
    case Op::relu:
    case Op::softmax:
    case Op::clamp:
    case Op::sigmoid:
    case Op::tanh:
    case Op::gelu:
    case Op::gelu_tanh:
    case Op::silu:
    case Op::hardsigmoid:
    case Op::hardswish:
    case Op::elu: break;
  }
  const int64_t pixels = int64_t(node.out.h) * node.out.w;
  if (pixels > kLargestValue || pixels * node.out.c > kLargestValue)
    return error.file("node %d: the value has more than 2^28 numbers", index);
  return true;
}

}  // namespace lcrbnn
