// A kernel that counts bytes: two channels of one word a register, four pixels by eight channels a tile. A byte holds 31
// words, then it is added to the 16-bit counts. Who includes this has said, for its instructions: Bytes, a register;
// none, twice (a word in both halves), count (bytes + the bits in which word and weights differ), widen (the bytes of
// eight channels added to their counts) and hold (one pixel after the other, where registers would run out).
#pragma once
#include <cstring>

#include "bconv_common.h"

namespace lcrbnn {
namespace {

constexpr int kPanel = 8, kWords = 31;

bool supported() { return true; }
bool takes(const BConv&) { return true; }
size_t weight_bytes(const BConv& c) { return panel_weight_bytes(c, kPanel); }
void pack(const BConv& c, const uint64_t* weights, void* packed) { panel_pack(c, kPanel, weights, packed); }

// Sums of one pixel and, in `rest`, of those after it. Arrays instead would not stay in registers with every compiler.
template <int kPixels>
struct Sums {
  Bytes a, b, c, d;  // two channels each
  Sums<kPixels - 1> rest;

  inline void clear() { a = b = c = d = none(), rest.clear(); }
  inline void add(const uint64_t* word, size_t step, const uint64_t* w) {
    const Bytes v = twice(word);
    a = count(a, v, w), b = count(b, v, w + 2), c = count(c, v, w + 4), d = count(d, v, w + 6);
    hold(a, b, c, d);
    rest.add(word + step, step, w);
  }
  inline void widen(uint16_t* counts) const {
    lcrbnn::widen(a, b, c, d, counts);
    rest.widen(counts + kPanel);
  }
};
template <>
struct Sums<0> {
  inline void clear() {}
  inline void add(const uint64_t*, size_t, const uint64_t*) {}
  inline void widen(uint16_t*) const {}
};

template <int kPixels>
void tile(const BConv& c, const PanelRow& at, int x, uint16_t* counts) {
  const int words = c.words();
  const bool together = c.dil_w == 1 || c.kw == 1;  // the taps of a kernel row lie side by side
  const int across = together ? 1 : c.kw, length = together ? c.kw * words : words;
  const size_t step = size_t(c.stride_w) * words;
  const uint64_t* w = at.weights;
  Sums<kPixels> sums;
  sums.clear();
  std::memset(counts, 0, sizeof(uint16_t) * kPixels * kPanel);
  int room = kWords;
  for (int ky = 0; ky < c.kh; ++ky)
    for (int kx = 0; kx < across; ++kx) {
      const uint64_t* word = at.words + ky * c.dil_h * at.row_words + x * step + size_t(kx) * c.dil_w * words;
      for (int left = length; left > 0;) {
        const int now = left < room ? left : room;
        for (int j = 0; j < now; ++j, ++word, w += kPanel) sums.add(word, step, w);
        left -= now, room -= now;
        if (room == 0) sums.widen(counts), sums.clear(), room = kWords;
      }
    }
  sums.widen(counts);
}

void row(const BConv& c, const void* packed, const void* scratch, int y, int index, uint16_t* counts) {
  const PanelRow at = panel_row(c, kPanel, packed, scratch, y, index);
  int x = 0;
  for (; x + 4 <= c.out_w; x += 4) tile<4>(c, at, x, counts + size_t(x) * kPanel);
  const int left = c.out_w - x;
  if (left == 3) tile<3>(c, at, x, counts + size_t(x) * kPanel);
  if (left == 2) tile<2>(c, at, x, counts + size_t(x) * kPanel);
  if (left == 1) tile<1>(c, at, x, counts + size_t(x) * kPanel);
}

}  // namespace
}  // namespace lcrbnn
