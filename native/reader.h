// Reader of model files. file.cpp reads header, tensors and outputs, file_nodes.cpp reads the nodes, and
// file_shapes.cpp checks tensors of nodes and infers the shapes of values.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>

#include "file.h"
#include "json.h"

namespace lcrbnn {

const uint64_t kLargestFile = uint64_t(1) << 31, kLargestGraph = 1 << 24;
const uint32_t kMostEntries = 65536;
const int64_t kLargestSide = 1 << 20, kLargestValue = 1 << 28;
const double kLargestMargin = 16;
const int64_t kMostTaps = 1 << 20, kMostTapsVersion1 = 65535;  // terms of a sum
const uint32_t kMostOutputs = 64;

struct Reader {
  const uint8_t* data;
  size_t size;
  uint64_t tensors_at = 0, tensors_end = 0;
  Graph& graph;
  Error& error;
  Json json{};
  std::vector<bool> compared{};  // by tensor: it was checked for NaN
  // By tensor: the smallest and largest number of an i32 tensor, once they are known.
  std::vector<std::pair<int32_t, int32_t>> ranges{};
  uint32_t version = 1;

  bool read();
  bool read_header();
  bool read_input(const JsonValue&);
  bool read_tensor(const JsonValue&, size_t index);
  bool check_tensor_layout();
  bool read_node(const JsonValue&, int index);
  bool read_attributes(const JsonValue&, Node&, int index);
  bool infer_shape(Node&, int index);
  bool infer_window_output(Node&, int index, const Shape& in);
  bool check_weights(Node&, int index, const Shape& in);
  bool infer_matrix_product(Node&, int index, const Shape& in);
  bool infer_taken(Node&, int index, const Shape& in);
  bool check_strided(Node&, int index, const Shape& in);
  bool read_factors(const JsonValue&, int64_t low, Factors&, int* out) const;
  bool read_outputs(const JsonValue*);
  bool check_floats(int tensor, int index, const char* key, int64_t length);
  bool has_no_nan(int tensor);

  bool read_text(const JsonValue* value, const char* what, std::string& out) {
    if (!value || value->kind != JsonKind::text) return error.file("%s must be a text", what);
    out.assign(json.text(*value), value->count);
    return true;
  }

  bool read_integer(const JsonValue* value, int64_t low, int64_t high, int64_t& out) const {
    if (!value || value->kind != JsonKind::number || !value->whole || value->number < double(low) ||
        value->number > double(high))
      return false;
    out = int64_t(value->number);
    return true;
  }

  // Reads a number that float32 can represent.
  bool read_number(const JsonValue* value, float& out) const {
    if (!value || value->kind != JsonKind::number || !std::isfinite(float(value->number))) return false;
    out = float(value->number);
    return true;
  }

  // Reads a list of exactly n integers.
  bool read_integers(const JsonValue& value, int n, int64_t low, int64_t high, int* out) const {
    if (value.kind != JsonKind::list || value.count != uint32_t(n)) return false;
    int i = 0;
    for (const JsonValue* m = json.first(value); m; m = json.next(*m), ++i) {
      int64_t number;
      if (!read_integer(m, low, high, number)) return false;
      out[i] = int(number);
    }
    return true;
  }

  bool check_keys(const JsonValue& object, const char* what, std::initializer_list<const char*> known) {
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
