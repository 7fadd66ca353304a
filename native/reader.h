// How a model file is read: the parts that file.cpp (bytes, tensors) and file_nodes.cpp (nodes) share.
#pragma once
#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "file.h"
#include "json.h"

namespace lcrbnn {

const uint64_t kLargestFile = uint64_t(1) << 31, kLargestGraph = 1 << 24;
const uint32_t kMostEntries = 65536;
const int64_t kLargestSide = 1 << 20, kLargestValue = 1 << 28;
const double kLargestMargin = 16;
const int64_t kMostTaps = 65535;  // of a binary convolution: kernels count in 16 bits

struct Reader {
  const uint8_t* data;
  size_t size;
  uint64_t tensors_at = 0, tensors_end = 0;
  Graph& graph;
  Error& error;
  Json json{};
  std::vector<bool> compared{};  // tensors that are known to be without NaN

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
  bool ordered(int tensor);

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

}  // namespace lcrbnn
