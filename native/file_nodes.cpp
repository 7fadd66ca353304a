// Reads the nodes of a graph and their attributes.
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
  kAfter = 1 << 14,
  kTranspose = 1 << 15,
  kValue = 1 << 16,
  kLow = 1 << 17,
  kHigh = 1 << 18,
  kAlpha = 1 << 19,
  kRows = 1 << 20,
  kColumns = 1 << 21,
  kChannels = 1 << 22,
  kFill = 1 << 23,
  kShape = 1 << 24,
  kLengths = 1 << 25,
  kStrides = 1 << 26,
  kOffset = 1 << 27,
  kSpatialGroups = 1 << 28,  // `spatial` of normalize, which is not a tensor
  kEps = 1 << 29,
  kSize = 1 << 30,
  kAlignCorners = 1u << 31
};
const uint32_t kPool = kKernel | kStride | kPad, kWindow = kPool | kDilation | kGroups;

// Keys of different bits may have the same name; no operator has both.
const struct {
  const char* name;
  uint32_t bit;
} kKeys[] = {{"weight", kWeight},       {"bias", kBias},         {"threshold", kThreshold},
             {"pad_sign", kPadSign},    {"a", kA},               {"b", kB},
             {"spatial", kSpatial},     {"slope", kSlope},       {"kernel", kKernel},
             {"stride", kStride},       {"pad", kPad},           {"dilation", kDilation},
             {"groups", kGroups},       {"before", kBefore},     {"after", kAfter},
             {"transpose", kTranspose}, {"value", kValue},       {"low", kLow},
             {"high", kHigh},           {"alpha", kAlpha},       {"rows", kRows},
             {"columns", kColumns},     {"channels", kChannels}, {"fill", kFill},
             {"shape", kShape},         {"lengths", kLengths},   {"strides", kStrides},
             {"offset", kOffset},       {"eps", kEps},           {"spatial", kSpatialGroups},
             {"size", kSize},           {"align_corners", kAlignCorners}};

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
            {"softmax", 1, 0, 0},
            {"multiply", 2, 0, 0},
            {"matmul", 2, kTranspose, 0},
            {"constant", 0, kValue, 0},
            {"clamp", 1, 0, kLow | kHigh},
            {"sigmoid", 1, 0, 0},
            {"tanh", 1, 0, 0},
            {"gelu", 1, 0, 0},
            {"gelu_tanh", 1, 0, 0},
            {"silu", 1, 0, 0},
            {"hardsigmoid", 1, 0, 0},
            {"hardswish", 1, 0, 0},
            {"elu", 1, kAlpha, 0},
            {"take", 1, 0, kRows | kColumns | kChannels | kFill},
            {"strided", 1, kShape | kLengths | kStrides | kOffset, 0},
            {"normalize", 1, kGroups | kSpatialGroups | kEps | kA | kB, 0},
            {"bilinear", 1, kSize | kAlignCorners, 0},
            {"adaptive_avgpool", 1, kSize, 0}};

}  // namespace

const char* op_name(Op op) { return kOps[int(op)].name; }

// Reads the lengths or strides of a strided. Both lists must have the same count, so the second one checks that of the
// first one.
bool Reader::read_factors(const JsonValue& value, int64_t low, Factors& factors, int* out) const {
  const bool is_first = factors.count == 0;
  if (value.kind != JsonKind::list || value.count < 1 || value.count > uint32_t(kMostFactors)) return false;
  if (is_first) factors.count = int(value.count);
  return read_integers(value, factors.count, low, kLargestValue, out);
}

bool Reader::read_attributes(const JsonValue& value, Node& node, int index) {
  const OpRow& row = kOps[int(node.op)];
  uint32_t seen = 0;
  Window& w = node.window;
  for (const JsonValue* m = json.first(value); m; m = json.next(*m)) {
    const char* key = json.key(*m);
    if (!strcmp(key, "op") || !strcmp(key, "name") || !strcmp(key, "in")) continue;
    uint32_t bit = 0;
    for (const auto& known : kKeys)
      if (known.bit & (row.required | row.optional) && !strcmp(key, known.name)) bit = known.bit;
    if (!bit)
      return error.file("node %d (%s) has an unknown key: %.40s", index, row.name, key);
    seen |= bit;
    bool is_valid = true;
    int64_t number = 0;
    int numbers[4];
    const auto index_of = [&](int& into) {
      is_valid = read_integer(m, 0, int64_t(graph.tensors.size()) - 1, number);
      into = int(number);
    };
    const auto flag_of = [&](bool& into) {
      is_valid = read_integer(m, 0, 1, number);
      into = number == 1;
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
      case kValue: index_of(node.value); break;
      case kRows: index_of(node.indices[0]); break;
      case kColumns: index_of(node.indices[1]); break;
      case kChannels: index_of(node.indices[2]); break;
      case kTranspose: flag_of(node.transpose); break;
      case kSpatialGroups: flag_of(node.spatial_groups); break;
      case kAlignCorners: flag_of(node.align_corners); break;
      case kLow: is_valid = read_number(m, node.low); break;
      case kHigh: is_valid = read_number(m, node.high); break;
      case kAlpha: is_valid = read_number(m, node.alpha); break;
      case kFill: is_valid = read_number(m, node.fill); break;
      case kEps: is_valid = read_number(m, node.eps) && !(m->number < 0); break;
      case kSize:
        is_valid = read_integers(*m, 2, 1, kLargestSide, numbers);
        if (is_valid) node.out.h = numbers[0], node.out.w = numbers[1];
        break;
      case kShape:
        is_valid = read_integers(*m, 3, 1, kLargestSide, numbers);
        if (is_valid) node.out = {numbers[0], numbers[1], numbers[2]};
        break;
      case kLengths: is_valid = read_factors(*m, 1, node.factors, node.factors.lengths); break;
      case kStrides: is_valid = read_factors(*m, -kLargestValue, node.factors, node.factors.strides); break;
      case kOffset:
        is_valid = read_integer(m, 0, kLargestValue, number);
        node.offset = int(number);
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
  if (version < 2 && node.op >= Op::multiply)
    return error.file("node %d: the op %.40s needs version 2", index, op.c_str());
  node.inputs = row->inputs;
  const JsonValue* in = json.find(value, "in");
  if (!in || !read_integers(*in, row->inputs, 0, index, node.in))
    return error.file("node %d (%s): in must be %d earlier value%s", index, row->name, row->inputs,
                      row->inputs == 1 ? "" : "s");
  if (!read_attributes(value, node, index) || !infer_shape(node, index)) return false;
  graph.values.push_back(node.out);
  graph.nodes.push_back(std::move(node));
  return true;
}

}  // namespace lcrbnn
