// The cases of fuzz.cpp: model files, changed in one place or a few. Most get a right checksum, so that what lies
// behind it is reached; half of those with a changed graph also get tensors that fit it, so that it may be accepted.
#pragma once
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "file.h"
#include "json.h"
#include "sha256.h"

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

// --- what a model file is made of ------------------------------------------------------------------------------------

// A value of the graph: [begin, end) of its text, and where its key starts if it has one.
struct Place {
  size_t begin, end, from;
  int parent;
  int before, after;  // its siblings, or -1
  char kind;          // { [ " or 0 for a number or a word
  std::string key;    // its own, or that of the list it is in
};

struct Model {
  Bytes file;
  std::string text;  // without the spaces behind it
  size_t room = 0;   // with them
  Bytes tensors;
  std::vector<std::pair<size_t, size_t>> filled;  // where numbers are, in `tensors`
  std::vector<Place> places;
  std::vector<int> numbers, texts, members, elements, ops, inputs;
};

// Lists the values of a text that is right.
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

// --- changes of a graph ----------------------------------------------------------------------------------------------

inline std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> made(1);
  for (const char c : text)
    if (c == ' ') made.emplace_back();
    else made.back() += c;
  return made;
}

const std::vector<std::string> kExtremes = words(
    "0 1 2 3 4 7 8 9 15 16 17 31 32 33 63 64 65 127 128 255 256 511 1000 65535 65536 65537 1048575 1048576 "
    "1048577 268435456 2147483647 2147483648 4294967295 4294967296 9007199254740992 9223372036854775807 "
    "9223372036854775808 18446744073709551615 18446744073709551616 -1 -2 -0 -2147483648 -2147483649 "
    "-9223372036854775808 0.5 1.0 1e2 1e-400 1e38 3.5e38 1e300 1e400 01 +1 1. .5 NaN Infinity "
    "111111111111111111111111111111111111111111111111111111111111111111");
const std::vector<std::string> kOdd = words(
    "null true false [] {} \"\" \"mean\" \"f32\" \"f16\" \"bits\" [0] [1,1] [0,0,0,0] {\"a\":1} \"\\u0000\" "
    "\"\\ud800\" \"\\ud83d\\ude00\" \"\xc3\xa9\" \"\xed\xa0\x80\" \"\xff\" \"\n\" "
    "[[[[[[[[[[[[[[[[[[[[0]]]]]]]]]]]]]]]]]]]] \" [ } ");
const std::vector<std::string> kOps = words(
    "conv bconv wconv affine add hardtanh relu prelu shift maxpool avgpool mean subsample channels flatten "
    "softmax none");
const std::vector<std::string> kKeys = words(
    "op name in weight bias threshold pad_sign a b spatial slope kernel stride pad dilation groups before "
    "after type shape offset bytes top mean std writer input classes tensors nodes more");

struct Edit {
  size_t begin, end;
  std::string text;
};

// The text with all edits that do not overlap a later one.
inline std::string applied(const std::string& text, std::vector<Edit>& edits) {
  std::stable_sort(edits.begin(), edits.end(), [](const Edit& x, const Edit& y) { return x.begin > y.begin; });
  std::string made = text;
  size_t free = made.size();  // what lies behind is changed already
  for (const Edit& e : edits) {
    const size_t end = std::min(e.end, text.size());
    if (end > free) continue;
    made.replace(e.begin, end - e.begin, e.text);
    free = e.begin;
  }
  return made;
}

struct Editor {
  const Model& m;
  Random& random;
  std::vector<Edit> edits{};

  const Place& place(const std::vector<int>& list) { return m.places[size_t(random.of(list))]; }
  std::string text(const Place& p) const { return m.text.substr(p.begin, p.end - p.begin); }
  std::string member(const Place& p) const { return m.text.substr(p.from, p.end - p.from); }
  void put(const Place& p, const std::string& with) { edits.push_back({p.begin, p.end, with}); }

  std::string number(const std::string& old) {
    const size_t how = random.below(10);
    if (how < 4) return random.of(kExtremes);
    if (how < 5) return text(place(m.numbers));
    if (how < 6) return std::to_string(random.below(72));
    static const std::vector<long long> steps = {1, -1, 1, -1, 2, -2, 3, 64, -64, 128, 4096};
    const long long now = strtoll(old.c_str(), nullptr, 10);
    return std::to_string(how < 7 ? now * 2 : now + random.of(steps));
  }

  // One number, or all that are equal to it: of the graph, or in lists of the same name.
  void numbers() {
    const Place& p = place(m.numbers);
    const std::string old = text(p), with = number(old);
    const size_t how = random.below(4);
    for (const int i : m.numbers) {
      const Place& q = m.places[size_t(i)];
      if (&p == &q || (how == 0 && text(q) == old) || (how == 1 && text(q) == old && q.key == p.key)) put(q, with);
    }
  }

  // A value like another one of the same key.
  void borrow() {
    const Place& p = place(random.chance(50) ? m.members : m.elements);
    std::vector<int> same;
    for (const int i : random.chance(80) ? m.members : m.elements)
      if (m.places[size_t(i)].key == p.key) same.push_back(i);
    if (!same.empty()) put(p, text(place(same)));
  }

  void remove(const Place& p) {
    if (p.after >= 0) edits.push_back({p.from, m.places[size_t(p.after)].from, ""});
    else edits.push_back({p.before >= 0 ? m.places[size_t(p.before)].end : p.from, p.end, ""});
  }

  void repeat(const Place& p) {
    std::string more;
    for (size_t i = 0, n = random.chance(80) ? 1 : random.below(30); i < n; ++i) more += "," + member(p);
    edits.push_back({p.end, p.end, more});
  }

  void swap(const Place& p) {
    if (p.after < 0) return;
    const Place& q = m.places[size_t(p.after)];
    const std::string one = member(p), other = member(q);
    edits.push_back({p.from, p.end, other});
    edits.push_back({q.from, q.end, one});
  }

  void rename(const Place& p) {
    const size_t length = m.text.find('"', p.from + 1) - p.from - 1;
    edits.push_back({p.from + 1, p.from + 1 + length, random.of(kKeys)});
  }

  // A node put before or behind another: of one input and without keys, on an earlier value.
  void insert() {
    const Place& op = place(m.ops);
    const Place& node = m.places[size_t(op.parent)];
    static const std::vector<std::string> plain = {"relu", "hardtanh", "mean", "flatten", "softmax"};
    const std::string in = std::to_string(random.below(m.ops.size() + 1));
    const std::string made = "{\"op\":\"" + random.of(plain) + "\",\"name\":\"\",\"in\":[" + in + "]}";
    if (random.chance(50)) edits.push_back({node.begin, node.begin, made + ","});
    else edits.push_back({node.end, node.end, "," + made});
  }

  void letters() {
    const size_t at = random.below(m.text.size());
    static const std::vector<std::string> some = {"\"", "\\", "{", "}", "[", "]", ",", ":",    " ",
                                                  "\t", "0",  "9", "-", "e", ".", "u", "\x80", std::string(1, '\0')};
    edits.push_back(
        {at, at + random.below(3), random.chance(70) ? random.of(some) : std::string(1, char(random.word()))});
  }

  void one() {
    const size_t how = random.below(100);
    if (how < 40) numbers();
    else if (how < 52) borrow();
    else if (how < 58) remove(place(random.chance(50) ? m.members : m.elements));
    else if (how < 64) repeat(place(random.chance(30) ? m.members : m.elements));
    else if (how < 68) swap(place(random.chance(50) ? m.members : m.elements));
    else if (how < 72) rename(place(m.members));
    else if (how < 80) put(place(m.ops), "\"" + random.of(kOps) + "\"");
    else if (how < 87) put(place(m.inputs), std::to_string(random.below(m.ops.size() + 2)));
    else if (how < 90) put(place(random.chance(50) ? m.texts : m.members), random.of(kOdd));
    else if (how < 96) insert();
    else letters();
  }
};

// --- graphs made right again
// -------------------------------------------------------------------------------------------

// After a change of sizes: tensors, mean and std that fit them, so that other sizes are tried and not only refused.
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

  // The product of a list of sizes; 0 if there is something else in it, or far too much of it.
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
    if (from + size > 65536) return;  // it says so, and lies outside
    const std::vector<const Place*> sizes = children(*shape);
    const uint64_t last = bits && sizes.size() == 2 ? strtoull(value(*sizes[1]).c_str(), nullptr, 10) : 8,
                   row = (last + 7) / 8;
    tensors.resize(from + size_t(size + 63) / 64 * 64, 0);
    for (uint64_t i = 0; i < size; ++i) {
      uint8_t& byte = tensors[from + i];
      byte = uint8_t(random.word());
      if (bits && last % 8 && i % row == row - 1) byte = uint8_t(byte & ((1 << last % 8) - 1));
      if (!bits && i % 4 == 3) byte = uint8_t((byte & 0x80) | 0x3E);  // numbers of no great size
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
    if (random.chance(10)) tensors.resize(random.below(tensors.size() / 64 + 1) * 64);  // the last ones are not there
    text = applied(text, edits);
    edits.clear();
  }

  // As many classes as the last value has channels.
  bool classes(size_t n) {
    if (n > 512 || !scan()) return false;
    for (const Place* p : children(places[0]))
      if (p->key == "classes" && p->kind == '[') list(*p, n, "\"\"");
    text = applied(text, edits);
    return true;
  }
};

// --- files -----------------------------------------------------------------------------------------------------------

inline void seal(Bytes& file) {
  if (file.size() >= kSum) sha256(file.data(), file.size() - kSum, file.data() + file.size() - kSum);
}

// A file of a graph and tensors, right in all else. Spaces behind the graph let tensors stay where they were.
inline Bytes build(const std::string& text, const Bytes& tensors, size_t room) {
  const size_t length = std::max(text.size(), room), start = (kHeader + length + 63) / 64 * 64;
  static const uint8_t magic[8] = {0x89, 'B', 'N', 'N', 0x0D, 0x0A, 0x1A, 0x0A};
  Bytes file(start + tensors.size() + kSum, 0);
  memcpy(file.data(), magic, 8);
  write_le(&file[8], 4, 1);
  write_le(&file[16], 8, file.size());
  write_le(&file[24], 8, kHeader);
  write_le(&file[32], 8, length);
  write_le(&file[40], 8, start);
  write_le(&file[48], 8, tensors.size());
  memcpy(&file[kHeader], text.data(), text.size());
  memset(&file[kHeader + text.size()], ' ', length - text.size());
  if (!tensors.empty()) memcpy(&file[start], tensors.data(), tensors.size());
  return file;
}

inline void change_tensors(Bytes& tensors, const Model& m, Random& random) {
  static const std::vector<uint32_t> odd = {0x7FC00000, 0xFFC00000, 0x7F800001, 0x7F800000, 0xFF800000, 0x80000000,
                                            0,          1,          0x7F7FFFFF, 0xFF7FFFFF, 0x3F800000, 0xBF800000};
  if (tensors.size() < 4) return;
  for (size_t i = random.below(8) + 1; i-- > 0;) {
    size_t at = random.below(tensors.size() / 4) * 4;
    if (!m.filled.empty() && random.chance(90)) {
      const auto& [from, bytes] = random.of(m.filled);
      at = from + random.below(bytes / 4) * 4;
    }
    if (at + 4 > tensors.size()) continue;
    if (random.chance(60)) write_le(&tensors[at], 4, random.of(odd));
    else tensors[at + random.below(4)] = uint8_t(random.word());
  }
}

inline void change_header(Bytes& file, Random& random) {
  static const std::vector<int> fields = {0, 8, 12, 16, 16, 24, 32, 32, 40, 40, 48, 48, 56};
  static const std::vector<uint64_t> odd = {
      0,          1,          31,          32,    63,         64,     96,    1 << 24, (1 << 24) + 1,
      0x7FFFFFFF, 0x80000000, 0x100000000, ~0ull, 1ull << 63, ~63ull, ~31ull};
  for (size_t i = random.below(2) + 1; i-- > 0;) {
    const int at = random.of(fields), bytes = at == 8 || at == 12 ? 4 : 8;
    const uint64_t now = read_le(&file[size_t(at)], bytes);
    write_le(&file[size_t(at)], bytes,
             random.chance(50)   ? random.of(odd)
             : random.chance(50) ? now + random.below(129) - 64
                                 : random.word());
  }
}

// Cut off, or with bytes put in or taken out; sizes in the header follow or not.
inline void change_size(Bytes& file, Random& random) {
  const size_t at = random.chance(30) ? random.below(97) : random.below(file.size() + 1), how = random.below(3);
  const size_t n = random.chance(50) ? 64 : 1 + random.below(200), here = std::min(at, file.size());
  if (how == 0) file.resize(here);
  else if (how == 1) file.insert(file.begin() + long(here), n, uint8_t(random.chance(70) ? 0 : random.word()));
  else file.erase(file.begin() + long(here), file.begin() + long(std::min(here + n, file.size())));
  if (file.size() < kHeader + kSum || random.chance(30)) return;
  write_le(&file[16], 8, file.size());
  if (random.chance(70))
    write_le(&file[48], 8, file.size() - kSum - std::min<uint64_t>(read_le(&file[40], 8), file.size() - kSum));
}

inline std::string soup(Random& random) {
  std::string made;
  for (size_t i = random.below(60); i-- > 0;) {
    static const std::vector<std::string> signs = {"{", "}", "[", "]", ",", ":", "[", "{"};
    const size_t how = random.below(5);
    if (how < 3) made += random.of(signs);
    else if (how == 3) made += random.of(random.chance(50) ? kExtremes : kOdd);
    else made += "\"" + random.of(kKeys) + "\":";
  }
  return made;
}

inline Bytes make(const std::vector<Model>& models, uint64_t seed, uint64_t number) {
  Random random{seed * 0xD1342543DE82EF95 + number};
  random.state = random.word();
  const Model& m = models[random.below(models.size())];
  const size_t how = random.below(100);
  size_t room = m.room;
  Bytes file, tensors = m.tensors;
  if (how < 64) {
    Editor editor{m, random};
    for (size_t i = random.chance(60) ? 1 : 1 + random.below(4); i-- > 0;) editor.one();
    if (random.chance(10)) change_tensors(tensors, m, random);
    std::string text = applied(m.text, editor.edits);
    Repair repair{text, tensors, room, random};
    const bool right = random.chance(50);
    if (right) repair.all();
    file = build(text, tensors, random.chance(98) ? room : 0);
    seal(file);
    Graph graph;
    Error error;
    if (right && !read_graph(file.data(), file.size(), graph, error) && strstr(error.text, "x classes") &&
        repair.classes(size_t(graph.values.back().c)))
      file = build(text, tensors, room);
  } else if (how < 76) {
    change_tensors(tensors, m, random);
    file = build(m.text, tensors, room);
  } else if (how < 84) {
    file = m.file;
    change_header(file, random);
  } else if (how < 90) {
    file = m.file;
    change_size(file, random);
  } else if (how < 93) {
    file = build(soup(random), tensors, 0);
  } else if (how < 95) {
    file = build(m.text, random.of(models).tensors, room);
  } else if (how < 97) {  // a bit or more, and no new checksum
    file = m.file;
    for (size_t i = random.below(3) + 1; i-- > 0;) file[random.below(file.size())] ^= uint8_t(1 << random.below(8));
    return file;
  } else {
    file.resize(random.below(600));
    for (uint8_t& byte : file) byte = uint8_t(random.word());
    if (random.chance(60) && file.size() >= 8)
      memcpy(file.data(), m.file.data(), std::min<size_t>(file.size(), random.chance(50) ? 8 : 64));
  }
  if (random.chance(95)) seal(file);
  return file;
}

}  // namespace lcrbnn
