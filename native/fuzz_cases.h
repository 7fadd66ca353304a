// The cases of fuzz.cpp: model files with one or a few changes. Most cases get a valid checksum, so that later checks
// are reached. Half of the cases with a changed graph also get matching tensors, so that the file may be accepted.
#pragma once
#include "fuzz_repair.h"
#include "sha256.h"

namespace lcrbnn {

inline void seal(Bytes& file) {
  if (file.size() >= kSum) sha256(file.data(), file.size() - kSum, file.data() + file.size() - kSum);
}

// Returns a valid file of a graph and tensors. Spaces after the graph keep the tensors at their offsets.
inline Bytes build(const std::string& text, const Bytes& tensors, size_t room, uint64_t version) {
  const size_t length = std::max(text.size(), room), start = (kHeader + length + 63) / 64 * 64;
  static const uint8_t magic[8] = {0x89, 'B', 'N', 'N', 0x0D, 0x0A, 0x1A, 0x0A};
  Bytes file(start + tensors.size() + kSum, 0);
  memcpy(file.data(), magic, 8);
  write_le(&file[8], 4, version);
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

// Truncates the file, or inserts or deletes bytes, with or without adjusting the sizes in the header.
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
  const uint64_t version = read_le(&m.file[8], 4) ^ (random.chance(2) ? 3 : 0);  // seldom the other one of 1 and 2
  Bytes file, tensors = m.tensors;
  if (how < 64) {
    Editor editor{m, random};
    for (size_t i = random.chance(60) ? 1 : 1 + random.below(4); i-- > 0;) editor.one();
    if (random.chance(10)) change_tensors(tensors, m, random);
    std::string text = applied(m.text, editor.edits);
    Repair repair{text, tensors, room, random};
    const bool right = random.chance(50);
    if (right) repair.all();
    file = build(text, tensors, random.chance(98) ? room : 0, version);
    seal(file);
    Graph graph;
    Error error;
    if (right && !read_graph(file.data(), file.size(), graph, error) && strstr(error.text, "x classes") &&
        repair.classes(size_t(graph.values[size_t(graph.outputs[0].value)].c)))
      file = build(text, tensors, room, version);
  } else if (how < 76) {
    change_tensors(tensors, m, random);
    file = build(m.text, tensors, room, version);
  } else if (how < 84) {
    file = m.file;
    change_header(file, random);
  } else if (how < 90) {
    file = m.file;
    change_size(file, random);
  } else if (how < 93) {
    file = build(soup(random), tensors, 0, version);
  } else if (how < 95) {
    file = build(m.text, random.of(models).tensors, room, version);
  } else if (how < 97) {  // flips bits without a new checksum
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
