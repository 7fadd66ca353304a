// Input of fuzz.cpp: random numbers, and parsed model files.
#pragma once
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "file.h"

namespace lcrbnn {

const size_t kHeader = 64, kSum = 32;

using Bytes = std::vector<uint8_t>;

struct Random {
  uint64_t state;
  uint64_t word() {
    uint64_t z = state += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9, z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
  }
  size_t below(size_t n) { return n ? size_t(word() % n) : 0; }
  bool chance(int percent) { return below(100) < size_t(percent); }
  template <class T>
  const T& of(const std::vector<T>& list) {
    return list[below(list.size())];
  }
};

// A value of the graph: range [begin, end) of its text, and start of its key if it has one.
struct Place {
  size_t begin, end, from;
  int parent;
  int before, after;  // indices of its siblings, or -1
  char kind;          // { [ " or 0 for a number or keyword
  std::string key;    // key of the value, or key of the list that contains the value
};

struct Model {
  Bytes file;
  std::string text;  // length of the graph without the spaces at its end
  size_t room = 0;   // length of the graph with the spaces at its end
  Bytes tensors;
  std::vector<std::pair<size_t, size_t>> filled;  // ranges of numbers in `tensors`
  std::vector<Place> places;
  std::vector<int> numbers, texts, members, elements, ops, inputs;
};

// Lists the values of a valid graph text.
struct Scan {
  const std::string& text;
  std::vector<Place>& places;
  size_t at = 0;

  void space() {
    while (at < text.size() && strchr(" \n\r\t", text[at])) ++at;
  }
  void skip_text() {
    for (++at; text[at] != '"'; ++at) at += text[at] == '\\';
    ++at;
  }
  int value(int parent, size_t from, const std::string& key) {
    space();
    const int index = int(places.size());
    const char c = text[at];
    places.push_back(
        {at, at, from == std::string::npos ? at : from, parent, -1, -1, strchr("{[\"", c) ? c : '\0', key});
    if (c == '"') skip_text();
    else if (c == '{' || c == '[') members(index, c == '{');
    else at = std::min(text.find_first_of(",]} \n\r\t", at), text.size());
    places[size_t(index)].end = at;
    return index;
  }
  void members(int index, bool object) {
    int last = -1;
    ++at;
    for (space(); text[at] != '}' && text[at] != ']'; space()) {
      if (text[at] == ',') ++at;
      space();
      size_t from = std::string::npos;
      std::string key = places[size_t(index)].key;
      if (object) {
        from = at;
        skip_text();
        key = text.substr(from + 1, at - from - 2);
        at = text.find(':', at) + 1;
      }
      const int made = value(index, from, key);
      places[size_t(made)].before = last;
      if (last >= 0) places[size_t(last)].after = made;
      last = made;
    }
    ++at;
  }
};

inline uint64_t read_le(const uint8_t* p, int bytes) {
  uint64_t value = 0;
  for (int i = bytes; i-- > 0;) value = value << 8 | p[i];
  return value;
}

inline void write_le(uint8_t* p, int bytes, uint64_t value) {
  for (int i = 0; i < bytes; ++i) p[i] = uint8_t(value >> (8 * i));
}

inline bool load(const std::string& path, Model& m) {
  Error error;
  Graph graph;
  if (!read_file(path.c_str(), m.file, error) || !read_graph(m.file.data(), m.file.size(), graph, error))
    return fprintf(stderr, "%s: %s\n", path.c_str(), error.text), false;
  m.room = size_t(read_le(&m.file[32], 8));
  m.text.assign(reinterpret_cast<const char*>(m.file.data()) + kHeader, m.room);
  m.text.resize(m.text.find_last_of('}') + 1);
  m.tensors.assign(m.file.begin() + long(read_le(&m.file[40], 8)), m.file.end() - long(kSum));
  for (const Tensor& t : graph.tensors) m.filled.emplace_back(t.offset - read_le(&m.file[40], 8), t.bytes);
  Scan{m.text, m.places}.value(-1, std::string::npos, "");
  for (int i = 0; i < int(m.places.size()); ++i) {
    const Place& p = m.places[size_t(i)];
    if (p.kind == '"') m.texts.push_back(i);
    if (!p.kind) m.numbers.push_back(i);
    if (p.parent >= 0) (m.places[size_t(p.parent)].kind == '{' ? m.members : m.elements).push_back(i);
    if (p.kind == '"' && p.key == "op") m.ops.push_back(i);
    if (!p.kind && p.key == "in") m.inputs.push_back(i);
  }
  return true;
}

}  // namespace lcrbnn
