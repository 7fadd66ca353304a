// Reads the nodes of a graph: their attributes, and the shapes of their values.
#include "reader.h"

namespace lcrbnn {
namespace {

// Attributes of a node, one bit each.
enum Key : uint32_t {
  kWeight = 1 << 0,
  kBias = 1 << 1,
  kThreshold = 1 << 2,
  kPadSign = 1 << 3,
  kA = 1 << 4,
  kB = 1 << 5,
  kSpatial = 1 << 6,
  kSlope = 1 << 7,
  kKernel = 1 << 8,
  kStride = 1 << 9,
  kPad = 1 << 10,
  kDilation = 1 << 11,
  kGroups = 1 << 12,
  kBefore = 1 << 13,
  kAfter = 1 << 14
};
const uint32_t kPool = kKernel | kStride | kPad, kWindow = kPool | kDilation | kGroups;

const struct {
  const char* name;
  uint32_t bit;
} kKeys[] = {{"weight", kWeight},    {"bias", kBias},     {"threshold", kThreshold},
             {"pad_sign", kPadSign}, {"a", kA},           {"b", kB},
             {"spatial", kSpatial},  {"slope", kSlope},   {"kernel", kKernel},
             {"stride", kStride},    {"pad", kPad},       {"dilation", kDilation},
             {"groups", kGroups},    {"before", kBefore}, {"after", kAfter}};

// Row i describes Op i: number of inputs, required and optional attributes.
const struct OpRow {
  const char* name;
  int inputs;
  uint32_t required, optional;
} kOps[] = {{"conv", 1, kWeight | kWindow, kBias},
            {"bconv", 1, kWeight | kThreshold | kPadSign | kA | kB | kWindow, kSpatial},
            {"wconv", 1, kWeight | kA | kB | kWindow, kSpatial},
            {"affine", 1, kA | kB, 0},
            {"add", 2, 0, 0},
            {"hardtanh", 1, 0, 0},
            {"relu", 1, 0, 0},
            {"prelu", 1, kSlope, 0},
            {"shift", 1, kB, 0},
            {"maxpool", 1, kPool, 0},
            {"avgpool", 1, kPool, 0},
            {"mean", 1, 0, 0},
            {"subsample", 1, kStride, 0},
            {"channels", 1, kBefore | kAfter, 0},
            {"flatten", 1, 0, 0},
            {"softmax", 1, 0, 0}};

// Returns whether each window overlaps the map along one axis. It suffices to check the first and the last output,
// because pools have no dilation.
bool windows_overlap_map(int size, int kernel, int stride, int before, int out) {
  return before < kernel && int64_t(out - 1) * stride - before < size;
}

}  // namespace

const char* op_name(Op op) { return kOps[int(op)].name; }

bool Reader::read_attributes(const JsonValue& value, Node& node, int index) {
  const OpRow& row = kOps[int(node.op)];
  uint32_t seen = 0;
  Window& w = node.window;
  for (const JsonValue* m = json.first(value); m; m = json.next(*m)) {
    const char* key = json.key(*m);
    if (!strcmp(key, "op") || !strcmp(key, "name") || !strcmp(key, "in")) continue;
    uint32_t bit = 0;
    for (const auto& known : kKeys)
      if (!strcmp(key, known.name)) bit = known.bit;
    if (!(bit & (row.required | row.optional)))
      return error.file("node %d (%s) has an unknown key: %.40s", index, row.name, key);
    seen |= bit;
    bool is_valid = true;
    int64_t number = 0;
    int numbers[4];
    const auto index_of = [&](int& into) {
      is_valid = read_integer(m, 0, int64_t(graph.tensors.size()) - 1, number);
      into = int(number);
    };
    switch (bit) {
      case kWeight: index_of(node.weight); break;
      case kBias: index_of(node.bias); break;
      case kA: index_of(node.a); break;
      case kB: index_of(node.b); break;
      case kSpatial: index_of(node.spatial); break;
      case kSlope: index_of(node.slope); break;
      case kThreshold:
        node.mean_threshold = m->kind == JsonKind::text && strcmp(json.text(*m), "mean") == 0;
        if (!node.mean_threshold) index_of(node.threshold);
        break;
      case kPadSign:
        is_valid = read_integer(m, -1, 1, number);
        node.pad_sign = int(number);
        break;
      case kKernel:
        is_valid = read_integers(*m, 2, 1, kLargestSide, numbers);
        if (is_valid) w.kh = numbers[0], w.kw = numbers[1];
        break;
      case kStride:
        is_valid = read_integers(*m, 2, 1, kLargestSide, numbers);
        if (is_valid) w.sy = numbers[0], w.sx = numbers[1];
        break;
      case kDilation:
        is_valid = read_integers(*m, 2, 1, kLargestSide, numbers);
        if (is_valid) w.dy = numbers[0], w.dx = numbers[1];
        break;
      case kPad:
        is_valid = read_integers(*m, 4, 0, kLargestSide, numbers);
        if (is_valid) w.top = numbers[0], w.left = numbers[1], w.bottom = numbers[2], w.right = numbers[3];
        break;
      case kGroups:
        is_valid = read_integer(m, 1, kLargestSide, number);
        w.groups = int(number);
        break;
      case kBefore:
      case kAfter:
        is_valid = read_integer(m, 0, kLargestSide, number);
        (bit == kBefore ? node.before : node.after) = int(number);
        break;
      default: is_valid = false;
    }
    if (!is_valid) return error.file("node %d (%s): %s has an invalid value", index, row.name, key);
  }
  for (const auto& known : kKeys)
    if (row.required & ~seen & known.bit)
      return error.file("node %d (%s): the key %s is missing", index, row.name, known.name);
  return true;
}

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
    if (t.type == TensorType::bits || t.rank != 4 || t.shape[1] != w.kh || t.shape[2] != w.kw || t.shape[3] != group)
      return error.file("node %d: weight must be f32 or f16 [out, kh, kw, in/groups]", index);
  } else {
    if (t.type != TensorType::bits || t.shape[1] != taps)
      return error.file("node %d: weight must be bits [out, kh * kw * in/groups]", index);
    if (node.op == Op::bconv && taps > kMostTaps) return error.file("node %d: a sum has more than 65,535 terms", index);
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

bool Reader::infer_shape(Node& node, int index) {
  const Shape in = graph.values[size_t(node.in[0])];
  const Window& w = node.window;
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
      if (!(in == graph.values[size_t(node.in[1])]))
        return error.file("node %d: both inputs must have the same shape", index);
      break;
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
    case Op::hardtanh:
    case Op::relu:
    case Op::softmax: break;
  }
  const int64_t pixels = int64_t(node.out.h) * node.out.w;
  if (pixels > kLargestValue || pixels * node.out.c > kLargestValue)
    return error.file("node %d: the value has more than 2^28 numbers", index);
  return true;
}

bool Reader::read_node(const JsonValue& value, int index) {
  if (value.kind != JsonKind::object) return error.file("node %d must be an object", index);
  Node node;
  std::string op;
  if (!read_text(json.find(value, "op"), "a node's op", op) ||
      !read_text(json.find(value, "name"), "a node's name", node.name))
    return false;
  const OpRow* row = std::find_if(std::begin(kOps), std::end(kOps), [&op](const OpRow& r) { return op == r.name; });
  if (row == std::end(kOps)) return error.file("node %d: unknown op %.40s", index, op.c_str());
  node.op = Op(row - kOps);
  node.inputs = row->inputs;
  const JsonValue* in = json.find(value, "in");
  if (!in || !read_integers(*in, row->inputs, 0, index, node.in))
    return error.file("node %d (%s): in must be %d earlier value%s", index, row->name, row->inputs,
                      row->inputs > 1 ? "s" : "");
  if (!read_attributes(value, node, index) || !infer_shape(node, index)) return false;
  graph.values.push_back(node.out);
  graph.nodes.push_back(std::move(node));
  return true;
}

}  // namespace lcrbnn
