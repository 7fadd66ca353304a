// A kernel that counts bits per byte. A register has one word of two channels; a tile is four pixels by eight channels.
// A byte can hold the counts of 31 words, then it is added to the 16-bit counts. The including file defines, for its
// instruction set: Bytes, a register; none (zero); twice (a word in both halves); count (bytes + the bits in which word
// and weights differ); widened (the bytes of eight channels as 16-bit counts); hold (process pixels one after the
// other, if there are too few registers).
#pragma once
#include <cstring>

#include "bconv_common.h"

namespace lcrbnn {
namespace {

constexpr int kPanel = 32, kTile = 8, kWords = 31;

bool supported() { return true; }
bool takes(const BConv&) { return true; }
size_t weight_bytes(const BConv& c) { return folded_weight_bytes(c, kTile); }
void pack(const BConv& c, const uint64_t* weights, void* packed) { folded_pack(c, kTile, weights, packed); }

// Sums of one pixel and, in `rest`, of the next pixels. Some compilers would keep an array in memory.
template <int kPixels>
struct Sums {
  Bytes a, b, c, d;  // each register has two channels
  Sums<kPixels - 1> rest;

  inline void clear() { a = b = c = d = none(), rest.clear(); }
  inline void add(const uint64_t* word, size_t step, const uint64_t* w) {
    const Bytes v = twice(word);
    a = count(a, v, w), b = count(b, v, w + 2), c = count(c, v, w + 4), d = count(d, v, w + 6);
    hold(a, b, c, d);
    rest.add(word + step, step, w);
  }
  inline void store(uint16_t* counts, bool more) const {
    Counts sum = widened(a, b, c, d), before;
    if (more) std::memcpy(&before, counts, sizeof(before)), sum += before;
    std::memcpy(counts, &sum, sizeof(sum));
    rest.store(counts + kPanel, more);
  }
};
template <>
struct Sums<0> {
  inline void clear() {}
  inline void add(const uint64_t*, size_t, const uint64_t*) {}
  inline void store(uint16_t*, bool) const {}
};

template <int kPixels>
void tile(const BConv& c, const PanelRow& at, int x, uint16_t* counts) {
  const int words = c.words();
  const bool together = c.dil_w == 1 || c.kw == 1;  // the taps of a kernel row are contiguous
  const int across = together ? 1 : c.kw, length = together ? c.kw * words : words;
  const size_t step = size_t(c.stride_w) * words;
  const uint64_t* w = at.weights;
  Sums<kPixels> sums;
  sums.clear();
  int room = kWords;
  bool more = false;  // whether `counts` contains earlier counts, to which these are added
  for (int ky = 0; ky < c.kh; ++ky)
    for (int kx = 0; kx < across; ++kx) {
      const uint64_t* word = at.words + ky * c.dil_h * at.row_words + x * step + size_t(kx) * c.dil_w * words;
      for (int left = length; left > 0;) {
        const int now = left < room ? left : room;
        for (int j = 0; j < now; ++j, ++word, w += kTile) sums.add(word, step, w);
        left -= now, room -= now;
        if (room == 0) sums.store(counts, more), sums.clear(), room = kWords, more = true;
      }
    }
  sums.store(counts, more);
}

// Processes the tiles of eight channels of a panel along the row.
void row(const BConv& given, const void* packed, const void* scratch, int y, int index, uint16_t* counts) {
  const BConv c = folded(given);
  const int panels = panels_of_group(c, kPanel), tiles = panels_of_group(c, kTile);
  const int group = index / panels, first = index % panels * (kPanel / kTile);
  for (int t = first; t < tiles && t < first + kPanel / kTile; ++t, counts += kTile) {
    const PanelRow at = panel_row(c, kTile, packed, scratch, y, group * tiles + t);
    int x = 0;
    for (; x + 4 <= c.out_w; x += 4) tile<4>(c, at, x, counts + size_t(x) * kPanel);
    const int left = c.out_w - x;
    if (left == 3) tile<3>(c, at, x, counts + size_t(x) * kPanel);
    if (left == 2) tile<2>(c, at, x, counts + size_t(x) * kPanel);
    if (left == 1) tile<1>(c, at, x, counts + size_t(x) * kPanel);
  }
}

}  // namespace
}  // namespace lcrbnn
