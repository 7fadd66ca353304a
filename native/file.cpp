#include "reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "sha256.h"

namespace lcrbnn {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers of the file are used without conversion");

uint64_t read_le(const uint8_t* p, int bytes) {
  uint64_t value = 0;
  for (int i = bytes; i-- > 0;) value = value << 8 | p[i];
  return value;
}

bool all_zero(const uint8_t* from, const uint8_t* to) {
  return std::all_of(from, to, [](uint8_t byte) { return byte == 0; });
}

}  // namespace

bool Reader::read_header() {
  static const uint8_t magic[8] = {0x89, 'B', 'N', 'N', 0x0D, 0x0A, 0x1A, 0x0A};
  if (size < 8 || memcmp(data, magic, 8) != 0)
    return error.file("the file is not a .bnn model: it does not start with the magic bytes");
  if (size < 96) return error.file("the file is truncated: it has %zu bytes", size);
  if (size > kLargestFile) return error.file("the file is larger than 2 GiB");
  const uint64_t file_version = read_le(data + 8, 4), flags = read_le(data + 12, 4), bytes = read_le(data + 16, 8);
  const uint64_t graph_at = read_le(data + 24, 8), graph_bytes = read_le(data + 32, 8),
                 tensor_bytes = read_le(data + 48, 8);
  tensors_at = read_le(data + 40, 8);
  if (file_version != 1 && file_version != 2)
    return error.file("the file has version %llu; only versions 1 and 2 are supported",
                      (unsigned long long)file_version);
  version = uint32_t(file_version);
  if (flags != 0) return error.file("the file has unknown flags");
  if (bytes != size)
    return error.file("the header gives a size of %llu bytes, but the file has %zu", (unsigned long long)bytes, size);
  if (graph_at != 64) return error.file("the graph must start at byte 64");
  if (graph_bytes > kLargestGraph) return error.file("the graph is larger than 16 MiB");
  if (tensors_at != (64 + graph_bytes + 63) / 64 * 64)
    return error.file("the tensors must start after the graph, at a multiple of 64");
  if (tensor_bytes % 64 != 0 || tensor_bytes > size || tensors_at + tensor_bytes + 32 != size)
    return error.file("the sizes in the header do not add up to the file");
  if (!all_zero(data + 56, data + 64)) return error.file("the end of the header must be zero");
  uint8_t digest[32];
  sha256(data, size - 32, digest);
  if (memcmp(digest, data + size - 32, 32) != 0) return error.file("the checksum is wrong: the file is damaged");
  if (!all_zero(data + 64 + graph_bytes, data + tensors_at)) return error.file("bytes after the graph must be zero");
  tensors_end = tensors_at + tensor_bytes;
  return json.parse(data + 64, size_t(graph_bytes), error);
}

bool Reader::read_input(const JsonValue& value) {
  if (!check_keys(value, "input", {"shape", "top", "mean", "std", "margin"})) return false;
  const JsonValue *shape = json.find(value, "shape"), *top = json.find(value, "top");
  int side[3];
  if (!shape || !read_integers(*shape, 3, 1, kLargestSide, side))
    return error.file("input: shape must be three whole numbers from 1 to 2^20");
  if (int64_t(side[0]) * side[1] > kLargestValue || int64_t(side[0]) * side[1] * side[2] > kLargestValue)
    return error.file("input: the shape must have at most 2^28 numbers");
  graph.values.push_back({side[0], side[1], side[2]});
  if (!top || top->kind != JsonKind::number || !(float(top->number) > 0) || !std::isfinite(float(top->number)))
    return error.file("input: top must be a positive number");
  graph.top = float(top->number);
  if (const JsonValue* margin = json.find(value, "margin"))  // only used to crop pictures; the engine gets pixels
    if (margin->kind != JsonKind::number || !(margin->number >= 1) || !(margin->number <= kLargestMargin))
      return error.file("input: margin must be a number from 1 to 16");
  for (const char* key : {"mean", "std"}) {
    const JsonValue* list = json.find(value, key);
    if (!list || list->kind != JsonKind::list || list->count != uint32_t(side[2]))
      return error.file("input: %s must be a list of one number per channel", key);
    std::vector<float>& into = strcmp(key, "mean") == 0 ? graph.mean : graph.deviation;
    for (const JsonValue* m = json.first(*list); m; m = json.next(*m)) {
      const bool is_valid = m->kind == JsonKind::number && std::isfinite(float(m->number));
      if (!is_valid || (&into == &graph.deviation && !(float(m->number) > 0)))
        return error.file("input: %s has an invalid number", key);
      into.push_back(float(m->number));
    }
  }
  return true;
}

bool Reader::read_tensor(const JsonValue& value, size_t index) {
  char what[32];
  snprintf(what, sizeof what, "tensor %zu", index);
  if (!check_keys(value, what, {"type", "shape", "offset", "bytes"})) return false;
  Tensor t{};
  std::string type;
  if (!read_text(json.find(value, "type"), "a tensor's type", type)) return false;
  if (type == "f32") t.type = TensorType::f32;
  else if (type == "f16") t.type = TensorType::f16;
  else if (type == "bits") t.type = TensorType::bits;
  else if (type == "i32" && version > 1) t.type = TensorType::i32;
  else return error.file("%s: unknown type %.20s", what, type.c_str());
  const JsonValue* shape = json.find(value, "shape");
  if (!shape || shape->kind != JsonKind::list || shape->count < 1 || shape->count > 4)
    return error.file("%s: shape must be a list of 1 to 4 sizes", what);
  uint64_t product = 1;
  for (const JsonValue* m = json.first(*shape); m; m = json.next(*m)) {
    if (!read_integer(m, 1, kLargestSide, t.shape[t.rank]))
      return error.file("%s: a size must be from 1 to 2^20", what);
    product *= uint64_t(t.shape[t.rank++]);  // no overflow: the product before was checked below
    if (product > 8 * kLargestFile) return error.file("%s: the tensor is too large", what);
  }
  if (t.type == TensorType::bits && t.rank != 2) return error.file("%s: bits must have two sizes", what);
  int64_t offset, bytes;
  if (!read_integer(json.find(value, "offset"), 0, int64_t(kLargestFile), offset) ||
      !read_integer(json.find(value, "bytes"), 0, int64_t(kLargestFile), bytes))
    return error.file("%s: offset and bytes must be whole numbers", what);
  t.offset = uint64_t(offset);
  t.bytes = uint64_t(bytes);
  const uint64_t expected = t.type == TensorType::f16    ? 2 * product
                            : t.type == TensorType::bits ? uint64_t(t.shape[0]) * uint64_t((t.shape[1] + 7) / 8)
                                                         : 4 * product;
  if (t.bytes != expected) return error.file("%s: bytes does not match the shape", what);
  if (t.offset % 64 != 0 || t.offset < tensors_at || t.offset > tensors_end || t.bytes > tensors_end - t.offset)
    return error.file("%s: the tensor is not aligned or outside the tensor section", what);
  if (t.type == TensorType::bits && t.shape[1] % 8 != 0) {
    const uint64_t row = uint64_t((t.shape[1] + 7) / 8);
    for (uint64_t r = 1; r <= uint64_t(t.shape[0]); ++r)
      if (data[t.offset + r * row - 1] >> (t.shape[1] % 8))
        return error.file("%s: the padding bits of each row must be 0", what);
  }
  graph.tensors.push_back(t);
  return true;
}

// Tensors must not overlap, and the bytes between them must be zero.
bool Reader::check_tensor_layout() {
  std::vector<uint32_t> order(graph.tensors.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = uint32_t(i);
  std::sort(order.begin(), order.end(),
            [this](uint32_t x, uint32_t y) { return graph.tensors[x].offset < graph.tensors[y].offset; });
  uint64_t end = tensors_at;
  for (const uint32_t i : order) {
    const Tensor& t = graph.tensors[i];
    if (t.offset < end) return error.file("tensor %u: it overlaps another tensor", i);
    if (!all_zero(data + end, data + t.offset)) return error.file("bytes between tensors must be zero");
    end = t.offset + t.bytes;
  }
  return all_zero(data + end, data + tensors_end) || error.file("bytes between tensors must be zero");
}

// Reads the list of outputs. Without a list, the last value is the only output.
bool Reader::read_outputs(const JsonValue* list) {
  if (!list) {
    graph.outputs.push_back({"output", int(graph.values.size()) - 1});
    return true;
  }
  if (version < 2) return error.file("a list of outputs needs version 2");
  if (list->kind != JsonKind::list || list->count < 1 || list->count > kMostOutputs)
    return error.file("outputs must be a list of 1 to 64");
  for (const JsonValue* m = json.first(*list); m; m = json.next(*m)) {
    Output output;
    int64_t value;
    if (!check_keys(*m, "an output", {"name", "value"}) ||
        !read_text(json.find(*m, "name"), "the name of an output", output.name))
      return false;
    if (!read_integer(json.find(*m, "value"), 1, int64_t(graph.values.size()) - 1, value))
      return error.file("an output must be a value that a node computes");
    for (const Output& other : graph.outputs)
      if (other.name == output.name) return error.file("the outputs must have different names");
    output.value = int(value);
    graph.outputs.push_back(std::move(output));
  }
  return true;
}

bool Reader::read() {
  if (!read_header()) return false;
  const JsonValue& root = json.root();
  if (!check_keys(root, "the graph", {"writer", "name", "input", "classes", "tensors", "nodes", "outputs"}))
    return false;
  if (!read_text(json.find(root, "writer"), "writer", graph.writer) ||
      !read_text(json.find(root, "name"), "name", graph.name))
    return false;
  const JsonValue *in = json.find(root, "input"), *classes = json.find(root, "classes");
  const JsonValue *tensors = json.find(root, "tensors"), *nodes = json.find(root, "nodes");
  if (!in || !read_input(*in)) return in ? false : error.file("the graph has no input");
  if (!tensors || tensors->kind != JsonKind::list || tensors->count > kMostEntries)
    return error.file("tensors must be a list of at most 65,536");
  if (!nodes || nodes->kind != JsonKind::list || nodes->count > kMostEntries || nodes->count == 0)
    return error.file("nodes must be a list of 1 to 65,536");
  if (!classes || classes->kind != JsonKind::list) return error.file("classes must be a list of names");
  size_t i = 0;
  for (const JsonValue* m = json.first(*tensors); m; m = json.next(*m))
    if (!read_tensor(*m, i++)) return false;
  if (!check_tensor_layout()) return false;
  i = 0;
  for (const JsonValue* m = json.first(*nodes); m; m = json.next(*m))
    if (!read_node(*m, int(i++))) return false;
  std::vector<bool> used(graph.values.size(), false);
  for (const Node& n : graph.nodes)
    for (int k = 0; k < n.inputs; ++k) used[size_t(n.in[k])] = true;
  const JsonValue* outputs = json.find(root, "outputs");
  if (!read_outputs(outputs)) return false;
  for (const Output& output : graph.outputs) used[size_t(output.value)] = true;
  for (size_t v = 0; v < used.size(); ++v)
    if (!used[v]) return error.file("value %zu is not used", v);
  const Shape& first = graph.values[size_t(graph.outputs[0].value)];
  if ((!outputs || classes->count) && (first.h != 1 || first.w != 1 || uint32_t(first.c) != classes->count))
    return error.file("the %s must have the shape 1 x 1 x classes", outputs ? "first output" : "last value");
  for (const JsonValue* m = json.first(*classes); m; m = json.next(*m)) {
    std::string name;
    if (!read_text(m, "a class", name)) return false;
    graph.classes.push_back(std::move(name));
  }
  return true;
}

bool read_graph(const uint8_t* data, size_t size, Graph& graph, Error& error) {
  graph = Graph{};
  Reader reader{data, size, 0, 0, graph, error};
  return reader.read();
}

bool read_file(const char* path, std::vector<uint8_t>& bytes, Error& error) {
  struct stat about;
  if (stat(path, &about) == 0 && !S_ISREG(about.st_mode)) return error.call("it is not a regular file");
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
  return fine || error.call("it cannot be read, or it is larger than 2 GiB");
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
