// Folded maps and weights, in which the taps of a kernel row share words: see bconv_common.h.
#include <cstring>

#include "bconv_common.h"

namespace lcrbnn {
namespace {

// Appends groups of bits to zeroed words that are `step` apart.
struct Folder {
  uint64_t* to;
  size_t step;
  int used = 0;  // number of bits of the word that are used

  void put(uint64_t bits, int count) {
    *to |= bits << used;
    if (used + count > 64) to[step] |= bits >> (64 - used);
    used += count;
    if (used >= 64) to += step, used -= 64;
  }
};

}  // namespace

size_t folded_bytes(const BConv& c) { return padded_bytes(folded(c)); }
size_t folded_weight_bytes(const BConv& c, int panel) { return panel_weight_bytes(folded(c), panel); }

void folded_prepare(const BConv& c, const uint64_t* map, void* scratch, int first, int last) {
  if (!folds(c)) return padded_prepare(c, map, scratch, first, last);
  const RowRange range = padded_range(c, first, last);
  const int channels = c.group_in(), words = folded(c).words();
  const uint64_t outside = pad_word(c, 0);
  const size_t row = size_t(c.groups) * c.out_w * words;
  uint64_t* to = static_cast<uint64_t*>(scratch) + size_t(range.begin) * row;
  std::memset(to, 0, sizeof(uint64_t) * row * (range.end - range.begin));
  for (int r = range.begin; r < range.end; ++r)
    for (int g = 0; g < c.groups; ++g) {
      const int y = r - c.pad_top, width = y < 0 || y >= c.in_h ? 0 : c.in_w;  // rows outside the map have no columns
      const uint64_t* from = map + (width ? size_t(y) * c.in_w * c.groups + g : 0);
      for (int x = 0; x < c.out_w; ++x, to += words) {
        Folder folder{to, 1};
        for (int k = 0, u = x * c.stride_w - c.pad_left; k < c.kw; ++k, u += c.dil_w)
          folder.put(u >= 0 && u < width ? from[size_t(u) * c.groups] : outside, channels);
      }
    }
}

void folded_pack(const BConv& c, int panel, const uint64_t* weights, void* packed) {
  if (!folds(c)) return panel_pack(c, panel, weights, packed);
  const int words = folded(c).words();
  uint64_t* to = static_cast<uint64_t*>(packed);
  std::memset(to, 0, folded_weight_bytes(c, panel));
  for (int g = 0; g < c.groups; ++g)
    for (int p = 0; p < panels_of_group(c, panel); ++p, to += size_t(c.kh) * words * panel)
      for (int i = 0; i < panel && p * panel + i < c.group_out(); ++i) {
        const uint64_t* from = weights + size_t(g * c.group_out() + p * panel + i) * c.kh * c.kw;
        for (int ky = 0; ky < c.kh; ++ky) {
          Folder folder{to + size_t(ky) * words * panel + i, size_t(panel)};
          for (int kx = 0; kx < c.kw; ++kx) folder.put(*from++, c.group_in());
        }
      }
}

}  // namespace lcrbnn
