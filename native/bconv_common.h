// Helpers of the popcount kernels: a padded copy of the map, and words shared by the taps of a kernel row if there are
// few channels.
#pragma once
#include "bconv.h"

namespace lcrbnn {

// Number of rows and columns that the windows cover. They start at -pad_top and -pad_left.
inline int padded_rows(const BConv& c) { return (c.out_h - 1) * c.stride_h + (c.kh - 1) * c.dil_h + 1; }
inline int padded_cols(const BConv& c) { return (c.out_w - 1) * c.stride_w + (c.kw - 1) * c.dil_w + 1; }

inline int panels_of_group(const BConv& c, int panel) { return (c.group_out() + panel - 1) / panel; }

// Returns word j of a pixel outside the map.
inline uint64_t pad_word(const BConv& c, int j) {
  const int left = c.group_in() - 64 * j;
  return !c.pad_bit ? 0 : left >= 64 ? ~uint64_t(0) : (uint64_t(1) << left) - 1;
}

// Returns the rows of the padded map for rows [first, last) of the map. The padding above belongs to the first row, the
// padding below to the last one, so that any partition of the rows fills the whole scratch.
struct RowRange { int begin, end; };
inline RowRange padded_range(const BConv& c, int first, int last) {
  const int rows = padded_rows(c);
  const int begin = first == 0 ? 0 : first + c.pad_top, end = last == c.in_h ? rows : last + c.pad_top;
  return {begin < rows ? begin : rows, end < rows ? end : rows};
}

// A padded map of words: [padded_rows][groups][padded_cols][words].
size_t padded_bytes(const BConv& c);
void padded_prepare(const BConv& c, const uint64_t* map, void* scratch, int first, int last);

// With few channels, most bits of a word are unused. If it saves words, the taps of a kernel row share words. `folded`
// is the resulting convolution, with kernels of one column over a map of such words, which is as wide as the output.
inline bool folds(const BConv& c) {
  return c.kw <= 16 && c.group_in() < 64 && (c.kw * c.group_in() + 63) / 64 < c.kw;
}
inline BConv folded(const BConv& c) {
  if (!folds(c)) return c;
  BConv f = c;
  f.in_c = c.in_c * c.kw, f.in_w = c.out_w, f.kw = f.stride_w = f.dil_w = 1, f.pad_left = 0;
  return f;
}
size_t folded_bytes(const BConv& c);
void folded_prepare(const BConv& c, const uint64_t* map, void* scratch, int first, int last);
size_t folded_weight_bytes(const BConv& c, int panel);
void folded_pack(const BConv& c, int panel, const uint64_t* weights, void* packed);

// Packed weights: [group][panel of the group][kh][kw][words][panel]; channels after the end are 0.
size_t panel_weight_bytes(const BConv& c, int panel);
void panel_pack(const BConv& c, int panel, const uint64_t* weights, void* packed);

// Pointers for one call of `row`: the weights of its panel, and the words of its group at the top left of row y.
struct PanelRow { const uint64_t* weights; const uint64_t* words; size_t row_words; };
inline PanelRow panel_row(const BConv& c, int panel, const void* packed, const void* scratch, int y, int index) {
  const size_t plane = size_t(padded_cols(c)) * c.words(), row = plane * c.groups;
  const size_t group = index / panels_of_group(c, panel);
  return {static_cast<const uint64_t*>(packed) + size_t(index) * c.kh * c.kw * c.words() * panel,
          static_cast<const uint64_t*>(scratch) + size_t(y) * c.stride_h * row + group * plane, row};
}

}  // namespace lcrbnn
