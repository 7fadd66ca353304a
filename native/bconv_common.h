// What the popcount kernels share: a map copied once with a ring of padding, and how far that ring must reach.
#pragma once
#include "bconv.h"

namespace lcrbnn {

// Rows and columns that the output touches, counted from -pad_top and -pad_left.
inline int padded_rows(const BConv& c) { return (c.out_h - 1) * c.stride_h + (c.kh - 1) * c.dil_h + 1; }
inline int padded_cols(const BConv& c) { return (c.out_w - 1) * c.stride_w + (c.kw - 1) * c.dil_w + 1; }

inline int panels_of_group(const BConv& c, int panel) { return (c.group_out() + panel - 1) / panel; }

// The bits of word j of a pixel outside the map.
inline uint64_t pad_word(const BConv& c, int j) {
  const int left = c.group_in() - 64 * j;
  return !c.pad_bit ? 0 : left >= 64 ? ~uint64_t(0) : (uint64_t(1) << left) - 1;
}

// The rows of the padded map that belong to rows [first, last) of the map: the ring above goes with the first row,
// the ring below with the last one, so that any partition of the rows fills the whole scratch.
struct RowRange { int begin, end; };
inline RowRange padded_range(const BConv& c, int first, int last) {
  const int rows = padded_rows(c);
  const int begin = first == 0 ? 0 : first + c.pad_top, end = last == c.in_h ? rows : last + c.pad_top;
  return {begin < rows ? begin : rows, end < rows ? end : rows};
}

// A padded map of words: [padded_rows][groups][padded_cols][words].
size_t padded_bytes(const BConv& c);
void padded_prepare(const BConv& c, const uint64_t* map, void* scratch, int first, int last);

// Weights of words: [group][panel of the group][kh][kw][words][panel], channels past the end 0.
size_t panel_weight_bytes(const BConv& c, int panel);
void panel_pack(const BConv& c, int panel, const uint64_t* weights, void* packed);

// What one call of `row` works on: the weights of its panel, and its group's words at the top left of output row y.
struct PanelRow { const uint64_t* weights; const uint64_t* words; size_t row_words; };
inline PanelRow panel_row(const BConv& c, int panel, const void* packed, const void* scratch, int y, int index) {
  const size_t plane = size_t(padded_cols(c)) * c.words(), row = plane * c.groups;
  const size_t group = index / panels_of_group(c, panel);
  return {static_cast<const uint64_t*>(packed) + size_t(index) * c.kh * c.kw * c.words() * panel,
          static_cast<const uint64_t*>(scratch) + size_t(y) * c.stride_h * row + group * plane, row};
}

}  // namespace lcrbnn
