// Binary convolutions: what a kernel is. One table (dispatch.cpp), one short file an instruction set.
//
// A kernel counts, for each output pixel and channel, the taps where the bit of the map and the bit of the weight
// differ: acc = taps - 2 * differing. Outside the map every bit is `pad_bit`; who wants zeros there corrects by class
// of border (plan.cpp). Channels beyond the last one are 0 bits on both sides, and so never differ.
#pragma once
#include <cstddef>
#include <cstdint>

namespace lcrbnn {

// The geometry of one convolution, fixed at load. All sizes are of one image.
struct BConv {
  int in_h, in_w, in_c;     // the map; in_c counts all groups
  int out_h, out_w, out_c;
  int kh, kw, stride_h, stride_w, dil_h, dil_w;
  int pad_top, pad_left;    // the other sides follow from the sizes
  int groups;
  int pad_bit;              // 0 or 1: what stands outside the map

  int group_in() const { return in_c / groups; }
  int group_out() const { return out_c / groups; }
  int words() const { return (group_in() + 63) / 64; }      // 64-bit words of one group's channels at a pixel
  int taps() const { return kh * kw * group_in(); }
};

// A map of bits is [in_h][in_w][groups][words] 64-bit words, bit i of a word being channel 64 * word + i; unused bits
// are 0. Weights come as [out_c][kh][kw][words], the same way, and are packed once, at load, as the kernel likes them.
// `prepare` may be called for parts of the rows, at the same time, as long as all rows are covered before `row`.
struct BKernel {
  const char* name;
  bool (*supported)();                        // by this CPU
  bool (*takes)(const BConv&);                // this geometry
  int panel;                                  // output channels that one call of `row` computes; a multiple of 8
  size_t (*weight_bytes)(const BConv&);
  void (*pack)(const BConv&, const uint64_t* weights, void* packed);
  size_t (*scratch_bytes)(const BConv&);      // what `prepare` writes for one image; 64-byte aligned by the caller
  void (*prepare)(const BConv&, const uint64_t* map, void* scratch, int first_row, int last_row);  // of the input map
  // Differing taps of output row y for the channels of a panel: counts[out_w][panel], 64-byte aligned; channels past
  // the end of a group's out channels are left undefined. Panels are numbered group by group:
  // panels of a group = ceil(group_out / panel).
  void (*row)(const BConv&, const void* packed, const void* scratch, int y, int panel_index, uint16_t* counts);
};
// counts are 16 bits: a convolution of more than 65,535 taps is refused at load.

extern const BKernel bconv_scalar, bconv_avx2, bconv_avx512, bconv_neon, bconv_wasm;

}  // namespace lcrbnn
