// Repairs graphs after a change.
#pragma once
#include <cstdlib>

#include "fuzz_edits.h"
#include "json.h"

namespace lcrbnn {

// Adapts tensors, mean and std after a change of sizes, so that files with other sizes are accepted and run.
struct Repair {
  std::string& text;
  Bytes& tensors;
  size_t& room;
  Random& random;
  std::vector<Place> places{};
  std::vector<Edit> edits{};

  std::string value(const Place& p) const { return text.substr(p.begin, p.end - p.begin); }

  std::vector<const Place*> children(const Place& parent) const {
    std::vector<const Place*> made;
    for (size_t i = size_t(&parent - places.data()) + 1; i < places.size() && places[i].begin < parent.end; ++i)
      if (places[i].parent == int(&parent - places.data())) made.push_back(&places[i]);
    return made;
  }

  bool scan() {
    Json json;
    Error error;
    places.clear();
    if (!json.parse(reinterpret_cast<const uint8_t*>(text.data()), text.size(), error)) return false;
    Scan{text, places}.value(-1, std::string::npos, "");
    return true;
  }

  // Returns the product of a list of sizes; 0 if it has other values or is far too large.
  uint64_t product(const Place& shape, bool bits) const {
    uint64_t made = 1;
    const std::vector<const Place*> sizes = children(shape);
    for (const Place* size : sizes) {
      uint64_t n = strtoull(value(*size).c_str(), nullptr, 10);
      if (bits && size == sizes.back()) n = (n + 7) / 8;
      if (n == 0 || n > 1 << 21 || (made *= n) > 1ull << 40) return 0;
    }
    return made;
  }

  void list(const Place& p, size_t n, const char* of) {
    std::string made = "[";
    for (size_t i = 0; i < n; ++i) made += (i ? "," : "") + std::string(of);
    edits.push_back({p.begin, p.end, made + "]"});
  }

  void input(const Place& of) {
    size_t channels = 0;
    for (const Place* p : children(of))
      if (p->key == "shape" && p->kind == '[' && children(*p).size() == 3)
        channels = strtoull(value(*children(*p)[2]).c_str(), nullptr, 10);
    for (const Place* p : children(of))
      if ((p->key == "mean" || p->key == "std") && channels < 512 && p->kind == '[' && children(*p).size() != channels)
        list(*p, channels, "0.5");
  }

  void tensor(const Place& of, uint64_t start) {
    std::string type;
    const Place *shape = nullptr, *offset = nullptr, *bytes = nullptr;
    for (const Place* p : children(of)) {
      if (p->key == "type") type = value(*p);
      if (p->key == "shape") shape = p;
      if (p->key == "offset") offset = p;
      if (p->key == "bytes") bytes = p;
    }
    if (!shape || !offset || !bytes || shape->kind != '[') return;
    const bool bits = type == "\"bits\"";
    const uint64_t count = product(*shape, bits), size = count * (bits ? 1 : type == "\"f16\"" ? 2 : 4);
    const size_t from = tensors.size(), at = random.chance(98) ? from : random.below(from / 64 + 3) * 64;
    edits.push_back({offset->begin, offset->end, std::to_string(start + at)});
    edits.push_back({bytes->begin, bytes->end, std::to_string(size)});
    if (from + size > 65536) return;  // the tensor stays outside the file
    const std::vector<const Place*> sizes = children(*shape);
    const uint64_t last = bits && sizes.size() == 2 ? strtoull(value(*sizes[1]).c_str(), nullptr, 10) : 8,
                   row = (last + 7) / 8;
    tensors.resize(from + size_t(size + 63) / 64 * 64, 0);
    for (uint64_t i = 0; type == "\"i32\"" && i < size; i += 4)
      write_le(&tensors[from + i], 4, uint32_t(random.below(4)) - 1);  // indices that most inputs have
    for (uint64_t i = 0; type != "\"i32\"" && i < size; ++i) {
      uint8_t& byte = tensors[from + i];
      byte = uint8_t(random.word());
      if (bits && last % 8 && i % row == row - 1) byte = uint8_t(byte & ((1 << last % 8) - 1));
      if (!bits && i % 4 == 3) byte = uint8_t((byte & 0x80) | 0x3E);  // keep numbers small
    }
  }

  void all() {
    if (!scan()) return;
    room = std::max(room, text.size() + 256);
    tensors.clear();
    const uint64_t start = (kHeader + room + 63) / 64 * 64;
    for (const Place* p : children(places[0])) {
      if (p->key == "input" && p->kind == '{') input(*p);
      if (p->key == "tensors" && p->kind == '[')
        for (const Place* t : children(*p))
          if (t->kind == '{') tensor(*t, start);
    }
    if (random.chance(10)) tensors.resize(random.below(tensors.size() / 64 + 1) * 64);  // the last tensors are missing
    text = applied(text, edits);
    edits.clear();
  }

  // Sets the number of classes to the channels of the last value.
  bool classes(size_t n) {
    if (n > 512 || !scan()) return false;
    for (const Place* p : children(places[0]))
      if (p->key == "classes" && p->kind == '[') list(*p, n, "\"\"");
    text = applied(text, edits);
    return true;
  }
};

}  // namespace lcrbnn
