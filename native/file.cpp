#include "file.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "json.h"
#include "sha256.h"

namespace lcrbnn {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are used as they lie in the file");

const uint64_t kLargestFile = uint64_t(1) << 31, kLargestGraph = 1 << 24;
const uint32_t kMostEntries = 65536;
const int64_t kLargestSide = 1 << 20, kLargestValue = 1 << 28;
const int64_t kMostTaps = 65535;  // of a binary convolution: kernels count in 16 bits

uint64_t read_le(const uint8_t* p, int bytes) {
  uint64_t value = 0;
  for (int i = bytes; i-- > 0;) value = value << 8 | p[i];
  return value;
}

bool zeros(const uint8_t* from, const uint8_t* to) {
  return std::all_of(from, to, [](uint8_t byte) { return byte == 0; });
}

// Keys of a node, each a bit.
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

// Row i is of Op i: how many inputs, the keys that must and those that may be there.
const struct OpRow {
  const char* name;
  int inputs;
  uint32_t must, may;
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

struct Reader {
  const uint8_t* data;
  size_t size;
  uint64_t tensors_at = 0, tensors_end = 0;
  Graph& graph;
  Error& error;
  Json json{};

  bool header();
  bool top();
  bool input(const JsonValue&);
  bool tensor(const JsonValue&, size_t index);
  bool placed();
  bool node(const JsonValue&, int index);
  bool keys(const JsonValue&, Node&, int index);
  bool check(Node&, int index);
  bool window(Node&, int index, const Shape& in);
  bool weights(Node&, int index, const Shape& in);
  bool floats(int tensor, int index, const char* key, int64_t length);

  bool text(const JsonValue* value, const char* what, std::string& out) {
    if (!value || value->kind != JsonKind::text) return error.file("%s must be a text", what);
    out.assign(json.text(*value), value->count);
    return true;
  }

  bool whole(const JsonValue* value, int64_t low, int64_t high, int64_t& out) const {
    if (!value || value->kind != JsonKind::number || !value->whole || value->number < double(low) ||
        value->number > double(high))
      return false;
    out = int64_t(value->number);
    return true;
  }

  // A list of exactly n whole numbers.
  bool wholes(const JsonValue& value, int n, int64_t low, int64_t high, int* out) const {
    if (value.kind != JsonKind::list || value.count != uint32_t(n)) return false;
    int i = 0;
    for (const JsonValue* m = json.first(value); m; m = json.next(*m), ++i) {
      int64_t number;
      if (!whole(m, low, high, number)) return false;
      out[i] = int(number);
    }
    return true;
  }

  bool only(const JsonValue& object, const char* what, std::initializer_list<const char*> known) {
    if (object.kind != JsonKind::object) return error.file("%s must be an object", what);
    for (const JsonValue* m = json.first(object); m; m = json.next(*m)) {
      const char* key = json.key(*m);
      if (std::none_of(known.begin(), known.end(), [key](const char* k) { return strcmp(k, key) == 0; }))
        return error.file("%s has an unknown key: %.40s", what, key);
    }
    return true;
  }
};

bool Reader::header() {
  static const uint8_t magic[8] = {0x89, 'B', 'N', 'N', 0x0D, 0x0A, 0x1A, 0x0A};
  if (size < 8 || memcmp(data, magic, 8) != 0)
    return error.file("this is not a model file: its first bytes are others");
  if (size < 96) return error.file("the file is cut off: %zu bytes", size);
  if (size > kLargestFile) return error.file("the file is larger than 2 GiB");
  const uint64_t version = read_le(data + 8, 4), flags = read_le(data + 12, 4), bytes = read_le(data + 16, 8);
  const uint64_t graph_at = read_le(data + 24, 8), graph_bytes = read_le(data + 32, 8),
                 tensor_bytes = read_le(data + 48, 8);
  tensors_at = read_le(data + 40, 8);
  if (version != 1) return error.file("the file has version %llu; only 1 can be read", (unsigned long long)version);
  if (flags != 0) return error.file("the file has unknown flags");
  if (bytes != size) return error.file("the file says %llu bytes and has %zu", (unsigned long long)bytes, size);
  if (graph_at != 64) return error.file("the graph must start at byte 64");
  if (graph_bytes > kLargestGraph) return error.file("the graph is larger than 16 MiB");
  if (tensors_at != (64 + graph_bytes + 63) / 64 * 64)
    return error.file("the tensors must start after the graph, at a multiple of 64");
  if (tensor_bytes % 64 != 0 || tensor_bytes > size || tensors_at + tensor_bytes + 32 != size)
    return error.file("the sizes in the header do not add up to the file");
  if (!zeros(data + 56, data + 64)) return error.file("the end of the header must be zero");
  uint8_t digest[32];
  sha256(data, size - 32, digest);
  if (memcmp(digest, data + size - 32, 32) != 0) return error.file("the checksum is wrong: the file is damaged");
  if (!zeros(data + 64 + graph_bytes, data + tensors_at)) return error.file("bytes after the graph must be zero");
  tensors_end = tensors_at + tensor_bytes;
  return json.parse(data + 64, size_t(graph_bytes), error);
}

bool Reader::input(const JsonValue& value) {
  if (!only(value, "input", {"shape", "top", "mean", "std"})) return false;
  const JsonValue *shape = json.find(value, "shape"), *top = json.find(value, "top");
  int side[3];
  if (!shape || !wholes(*shape, 3, 1, kLargestSide, side))
    return error.file("input: shape must be three whole numbers from 1 to 2^20");
  if (int64_t(side[0]) * side[1] > kLargestValue || int64_t(side[0]) * side[1] * side[2] > kLargestValue)
    return error.file("input: more than 2^28 numbers");
  graph.values.push_back({side[0], side[1], side[2]});
  if (!top || top->kind != JsonKind::number || !(float(top->number) > 0) || !std::isfinite(float(top->number)))
    return error.file("input: top must be a positive number");
  graph.top = float(top->number);
  for (const char* key : {"mean", "std"}) {
    const JsonValue* list = json.find(value, key);
    if (!list || list->kind != JsonKind::list || list->count != uint32_t(side[2]))
      return error.file("input: %s must be a list of a number a channel", key);
    std::vector<float>& into = strcmp(key, "mean") == 0 ? graph.mean : graph.deviation;
    for (const JsonValue* m = json.first(*list); m; m = json.next(*m)) {
      const bool fine = m->kind == JsonKind::number && std::isfinite(float(m->number));
      if (!fine || (&into == &graph.deviation && !(float(m->number) > 0)))
        return error.file("input: %s has a bad number", key);
      into.push_back(float(m->number));
    }
  }
  return true;
}

bool Reader::tensor(const JsonValue& value, size_t index) {
  char what[32];
  snprintf(what, sizeof what, "tensor %zu", index);
  if (!only(value, what, {"type", "shape", "offset", "bytes"})) return false;
  Tensor t{};
  std::string type;
  if (!text(json.find(value, "type"), "a tensor's type", type)) return false;
  if (type == "f32") t.type = TensorType::f32;
  else if (type == "f16") t.type = TensorType::f16;
  else if (type == "bits") t.type = TensorType::bits;
  else return error.file("%s: unknown type %.20s", what, type.c_str());
  const JsonValue* shape = json.find(value, "shape");
  if (!shape || shape->kind != JsonKind::list || shape->count < 1 || shape->count > 4)
    return error.file("%s: shape must be a list of 1 to 4 sizes", what);
  uint64_t product = 1;
  for (const JsonValue* m = json.first(*shape); m; m = json.next(*m)) {
    if (!whole(m, 1, kLargestSide, t.shape[t.rank])) return error.file("%s: a size must be from 1 to 2^20", what);
    product *= uint64_t(t.shape[t.rank++]);  // at most 2^20 times what passed below
    if (product > 8 * kLargestFile) return error.file("%s: too large", what);
  }
  if (t.type == TensorType::bits && t.rank != 2) return error.file("%s: bits must have two sizes", what);
  int64_t offset, bytes;
  if (!whole(json.find(value, "offset"), 0, int64_t(kLargestFile), offset) ||
      !whole(json.find(value, "bytes"), 0, int64_t(kLargestFile), bytes))
    return error.file("%s: offset and bytes must be whole numbers", what);
  t.offset = uint64_t(offset);
  t.bytes = uint64_t(bytes);
  const uint64_t expected = t.type == TensorType::f32   ? 4 * product
                            : t.type == TensorType::f16 ? 2 * product
                                                        : uint64_t(t.shape[0]) * uint64_t((t.shape[1] + 7) / 8);
  if (t.bytes != expected) return error.file("%s: its bytes do not fit its shape", what);
  if (t.offset % 64 != 0 || t.offset < tensors_at || t.offset > tensors_end || t.bytes > tensors_end - t.offset)
    return error.file("%s: lies outside the tensors", what);
  if (t.type == TensorType::bits && t.shape[1] % 8 != 0) {
    const uint64_t row = uint64_t((t.shape[1] + 7) / 8);
    for (uint64_t r = 1; r <= uint64_t(t.shape[0]); ++r)
      if (data[t.offset + r * row - 1] >> (t.shape[1] % 8))
        return error.file("%s: bits after the end of a row must be 0", what);
  }
  graph.tensors.push_back(t);
  return true;
}

// Tensors do not overlap, and what lies between them is zero.
bool Reader::placed() {
  std::vector<uint32_t> order(graph.tensors.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = uint32_t(i);
  std::sort(order.begin(), order.end(),
            [this](uint32_t x, uint32_t y) { return graph.tensors[x].offset < graph.tensors[y].offset; });
  uint64_t end = tensors_at;
  for (const uint32_t i : order) {
    const Tensor& t = graph.tensors[i];
    if (t.offset < end) return error.file("tensor %u: overlaps another", i);
    if (!zeros(data + end, data + t.offset)) return error.file("bytes between tensors must be zero");
    end = t.offset + t.bytes;
  }
  return zeros(data + end, data + tensors_end) || error.file("bytes between tensors must be zero");
}

bool Reader::keys(const JsonValue& value, Node& node, int index) {
  const OpRow& row = kOps[int(node.op)];
  uint32_t seen = 0;
  Window& w = node.window;
  for (const JsonValue* m = json.first(value); m; m = json.next(*m)) {
    const char* key = json.key(*m);
    if (!strcmp(key, "op") || !strcmp(key, "name") || !strcmp(key, "in")) continue;
    uint32_t bit = 0;
    for (const auto& known : kKeys)
      if (!strcmp(key, known.name)) bit = known.bit;
    if (!(bit & (row.must | row.may)))
      return error.file("node %d (%s) has an unknown key: %.40s", index, row.name, key);
    seen |= bit;
    bool fine = true;
    int64_t number = 0;
    int four[4];
    const auto index_of = [&](int& into) {
      fine = whole(m, 0, int64_t(graph.tensors.size()) - 1, number);
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
        fine = whole(m, -1, 1, number);
        node.pad_sign = int(number);
        break;
      case kKernel:
        fine = wholes(*m, 2, 1, kLargestSide, four);
        if (fine) w.kh = four[0], w.kw = four[1];
        break;
      case kStride:
        fine = wholes(*m, 2, 1, kLargestSide, four);
        if (fine) w.sy = four[0], w.sx = four[1];
        break;
      case kDilation:
        fine = wholes(*m, 2, 1, kLargestSide, four);
        if (fine) w.dy = four[0], w.dx = four[1];
        break;
      case kPad:
        fine = wholes(*m, 4, 0, kLargestSide, four);
        if (fine) w.top = four[0], w.left = four[1], w.bottom = four[2], w.right = four[3];
        break;
      case kGroups:
        fine = whole(m, 1, kLargestSide, number);
        w.groups = int(number);
        break;
      case kBefore:
      case kAfter:
        fine = whole(m, 0, kLargestSide, number);
        (bit == kBefore ? node.before : node.after) = int(number);
        break;
      default: fine = false;
    }
    if (!fine) return error.file("node %d (%s): %s is not what it must be", index, row.name, key);
  }
  for (const auto& known : kKeys)
    if (row.must & ~seen & known.bit) return error.file("node %d (%s) lacks the key %s", index, row.name, known.name);
  return true;
}

bool Reader::floats(int tensor, int index, const char* key, int64_t length) {
  const Tensor& t = graph.tensors[size_t(tensor)];
  if (t.type != TensorType::f32 || t.rank != 1 || t.shape[0] != length)
    return error.file("node %d: %s must be an f32 tensor of %lld numbers", index, key, (long long)length);
  return true;
}

bool Reader::window(Node& node, int index, const Shape& in) {
  const Window& w = node.window;
  const int64_t span_y = int64_t(w.dy) * (w.kh - 1) + 1, span_x = int64_t(w.dx) * (w.kw - 1) + 1;
  const int64_t rest_y = int64_t(in.h) + w.top + w.bottom - span_y, rest_x = int64_t(in.w) + w.left + w.right - span_x;
  if (rest_y < 0 || rest_x < 0) return error.file("node %d: the window is larger than the map", index);
  const int64_t h = rest_y / w.sy + 1, x = rest_x / w.sx + 1;
  if (h > kLargestSide || x > kLargestSide) return error.file("node %d: a side of more than 2^20", index);
  node.out = {int(h), int(x), in.c};
  return true;
}

bool Reader::weights(Node& node, int index, const Shape& in) {
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
    if (node.op == Op::bconv && taps > kMostTaps) return error.file("node %d: more than 65,535 taps", index);
  }
  node.out.c = int(t.shape[0]);
  if (node.out.c % w.groups)
    return error.file("node %d: groups do not divide its %d output channels", index, node.out.c);
  const int c = node.out.c;
  if (node.bias >= 0 && !floats(node.bias, index, "bias", c)) return false;
  if (node.op == Op::conv) return true;
  if (!floats(node.a, index, "a", c) || !floats(node.b, index, "b", c)) return false;
  if (node.spatial >= 0) {
    const Tensor& s = graph.tensors[size_t(node.spatial)];
    if (s.type != TensorType::f32 || s.rank != 3 || s.shape[0] != node.out.h || s.shape[1] != node.out.w ||
        (s.shape[2] != 1 && s.shape[2] != c))
      return error.file("node %d: spatial must be f32 [h', w', 1 or out]", index);
  }
  if (node.threshold >= 0) {
    if (!floats(node.threshold, index, "threshold", in.c)) return false;
    const Tensor& h = graph.tensors[size_t(node.threshold)];
    for (int64_t i = 0; i < h.shape[0]; ++i) {
      float number;
      memcpy(&number, data + h.offset + 4 * uint64_t(i), 4);
      if (number != number) return error.file("node %d: a threshold is NaN", index);
    }
  }
  return true;
}

// Whether each window of one axis has some of the map: the first and the last output decide, and gaps cannot be without
// dilation.
bool covered(int size, int kernel, int stride, int before, int out) {
  return before < kernel && int64_t(out - 1) * stride - before < size;
}

bool Reader::check(Node& node, int index) {
  const Shape in = graph.values[size_t(node.in[0])];
  const Window& w = node.window;
  node.out = in;
  switch (node.op) {
    case Op::conv:
    case Op::bconv:
    case Op::wconv:
      if (!window(node, index, in) || !weights(node, index, in)) return false;
      break;
    case Op::affine:
      if (!floats(node.a, index, "a", in.c) || !floats(node.b, index, "b", in.c)) return false;
      break;
    case Op::add:
      if (!(in == graph.values[size_t(node.in[1])]))
        return error.file("node %d: its two inputs have different shapes", index);
      break;
    case Op::prelu:
      if (!floats(node.slope, index, "slope", in.c)) return false;
      break;
    case Op::shift:
      if (!floats(node.b, index, "b", in.c)) return false;
      break;
    case Op::maxpool:
    case Op::avgpool:
      if (!window(node, index, in)) return false;
      if (node.op == Op::avgpool && (w.top || w.left))
        return error.file("node %d: avgpool has no pad at the top and the left", index);
      if (!covered(in.h, w.kh, w.sy, w.top, node.out.h) || !covered(in.w, w.kw, w.sx, w.left, node.out.w))
        return error.file("node %d: a window lies outside the map", index);
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
    return error.file("node %d: a value of more than 2^28 numbers", index);
  return true;
}

bool Reader::node(const JsonValue& value, int index) {
  if (value.kind != JsonKind::object) return error.file("node %d must be an object", index);
  Node node;
  std::string op;
  if (!text(json.find(value, "op"), "a node's op", op) || !text(json.find(value, "name"), "a node's name", node.name))
    return false;
  const OpRow* row = std::find_if(std::begin(kOps), std::end(kOps), [&op](const OpRow& r) { return op == r.name; });
  if (row == std::end(kOps)) return error.file("node %d: unknown op %.40s", index, op.c_str());
  node.op = Op(row - kOps);
  node.inputs = row->inputs;
  const JsonValue* in = json.find(value, "in");
  if (!in || !wholes(*in, row->inputs, 0, index, node.in))
    return error.file("node %d (%s): in must be %d earlier value%s", index, row->name, row->inputs,
                      row->inputs > 1 ? "s" : "");
  if (!keys(value, node, index) || !check(node, index)) return false;
  graph.values.push_back(node.out);
  graph.nodes.push_back(std::move(node));
  return true;
}

bool Reader::top() {
  if (!header()) return false;
  const JsonValue& root = json.root();
  if (!only(root, "the graph", {"writer", "name", "input", "classes", "tensors", "nodes"})) return false;
  if (!text(json.find(root, "writer"), "writer", graph.writer) || !text(json.find(root, "name"), "name", graph.name))
    return false;
  const JsonValue *in = json.find(root, "input"), *classes = json.find(root, "classes");
  const JsonValue *tensors = json.find(root, "tensors"), *nodes = json.find(root, "nodes");
  if (!in || !input(*in)) return in ? false : error.file("the graph lacks input");
  if (!tensors || tensors->kind != JsonKind::list || tensors->count > kMostEntries)
    return error.file("tensors must be a list of at most 65,536");
  if (!nodes || nodes->kind != JsonKind::list || nodes->count > kMostEntries || nodes->count == 0)
    return error.file("nodes must be a list of 1 to 65,536");
  if (!classes || classes->kind != JsonKind::list) return error.file("classes must be a list of names");
  size_t i = 0;
  for (const JsonValue* m = json.first(*tensors); m; m = json.next(*m))
    if (!tensor(*m, i++)) return false;
  if (!placed()) return false;
  i = 0;
  for (const JsonValue* m = json.first(*nodes); m; m = json.next(*m))
    if (!node(*m, int(i++))) return false;
  std::vector<bool> used(graph.values.size(), false);
  for (const Node& n : graph.nodes)
    for (int k = 0; k < n.inputs; ++k) used[size_t(n.in[k])] = true;
  for (size_t v = 0; v + 1 < used.size(); ++v)
    if (!used[v]) return error.file("value %zu is not used", v);
  const Shape& last = graph.values.back();
  if (last.h != 1 || last.w != 1 || uint32_t(last.c) != classes->count)
    return error.file("the last value must be 1 x 1 x classes");
  for (const JsonValue* m = json.first(*classes); m; m = json.next(*m)) {
    std::string name;
    if (!text(m, "a class", name)) return false;
    graph.classes.push_back(std::move(name));
  }
  return true;
}

}  // namespace

const char* op_name(Op op) { return kOps[int(op)].name; }

bool read_graph(const uint8_t* data, size_t size, Graph& graph, Error& error) {
  graph = Graph{};
  Reader reader{data, size, 0, 0, graph, error};
  return reader.top();
}

bool read_file(const char* path, std::vector<uint8_t>& bytes, Error& error) {
  struct stat about;
  if (stat(path, &about) == 0 && !S_ISREG(about.st_mode)) return error.call("it is no file");
  FILE* file = fopen(path, "rb");
  if (!file) return error.call("it cannot be opened (%s)", strerror(errno));
  size_t filled = 0;
  bool fine = true;
  if (fseek(file, 0, SEEK_END) == 0) {
    const long size = ftell(file);
    fine = size >= 0 && uint64_t(size) <= kLargestFile && fseek(file, 0, SEEK_SET) == 0;
    if (fine) {
      bytes.resize(size_t(size));
      filled = fread(bytes.data(), 1, bytes.size(), file);
    }
  } else {
    fine = false;
  }
  fine = fine && filled == bytes.size();
  fclose(file);
  return fine || error.call("it cannot be read: no file of at most 2 GiB");
}

float widen_half(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
  uint32_t bits;
  if (exponent == 31) {
    bits = sign | 0x7F800000 | fraction << 13;
  } else if (exponent) {
    bits = sign | (exponent + 112) << 23 | fraction << 13;
  } else {
    const float small = float(fraction) * 0x1p-24f;
    memcpy(&bits, &small, 4);
    bits |= sign;
  }
  float result;
  memcpy(&result, &bits, 4);
  return result;
}

}  // namespace lcrbnn
