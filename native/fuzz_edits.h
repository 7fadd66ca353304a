// Random changes of a graph: numbers, texts, members, nodes, and single characters.
#pragma once
#include <cstdlib>

#include "fuzz_models.h"

namespace lcrbnn {

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
    "null true false [] {} \"\" \"mean\" \"f32\" \"f16\" \"bits\" \"i32\" [0] [1,1] [0,0,0,0] {\"a\":1} \"\\u0000\" "
    "\"\\ud800\" \"\\ud83d\\ude00\" \"\xc3\xa9\" \"\xed\xa0\x80\" \"\xff\" \"\n\" "
    "[[[[[[[[[[[[[[[[[[[[0]]]]]]]]]]]]]]]]]]]] \" [ } ");
const std::vector<std::string> kOps = words(
    "conv bconv wconv affine add hardtanh relu prelu shift maxpool avgpool mean subsample channels flatten "
    "softmax multiply matmul constant clamp sigmoid tanh gelu gelu_tanh silu hardsigmoid hardswish elu take strided "
    "normalize bilinear adaptive_avgpool none");
const std::vector<std::string> kKeys = words(
    "op name in weight bias threshold pad_sign a b spatial slope kernel stride pad dilation groups before "
    "after type shape offset bytes top mean std margin writer input classes tensors nodes outputs transpose "
    "value low high alpha rows columns channels fill lengths strides size eps align_corners more");

struct Edit {
  size_t begin, end;
  std::string text;
};

// Returns the text with all edits that do not overlap a later edit.
inline std::string applied(const std::string& text, std::vector<Edit>& edits) {
  std::stable_sort(edits.begin(), edits.end(), [](const Edit& x, const Edit& y) { return x.begin > y.begin; });
  std::string made = text;
  size_t free = made.size();  // text after this position is changed already
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

  // Changes one number, or all equal numbers of the graph or of lists with the same key.
  void numbers() {
    const Place& p = place(m.numbers);
    const std::string old = text(p), with = number(old);
    const size_t how = random.below(4);
    for (const int i : m.numbers) {
      const Place& q = m.places[size_t(i)];
      if (&p == &q || (how == 0 && text(q) == old) || (how == 1 && text(q) == old && q.key == p.key)) put(q, with);
    }
  }

  // Replaces a value by another one with the same key.
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

  // Inserts a node with one input and without attributes before or after another node.
  void insert() {
    const Place& op = place(m.ops);
    const Place& node = m.places[size_t(op.parent)];
    static const std::vector<std::string> plain = {"relu",   "hardtanh", "mean", "flatten", "softmax",
                                                   "sigmoid", "gelu",     "tanh", "clamp",   "take"};
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

}  // namespace lcrbnn
