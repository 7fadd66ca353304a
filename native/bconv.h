// Interface of binary convolution kernels. dispatch.cpp lists them; there is one file per instruction set.
//
// A kernel counts, for each output pixel and channel, the taps for which the bits of map and weight differ. The sum is
// taps - 2 * differing. Outside the map every bit is `pad_bit`; zero padding is corrected afterwards by border class
// (nodes.cpp). Bits of channels after the last one are 0 in map and weight, so they never differ.
#pragma once
#include <cstddef>
#include <cstdint>

namespace lcrbnn {

// The geometry of one convolution, fixed at load. All sizes are of one image.
struct BConv {
  int in_h, in_w, in_c;     // the map; in_c is the sum over all groups
  int out_h, out_w, out_c;
  int kh, kw, stride_h, stride_w, dil_h, dil_w;
  int pad_top, pad_left;    // the other sides follow from the sizes
  int groups;
  int pad_bit;              // 0 or 1: bit outside the map

  int group_in() const { return in_c / groups; }
  int group_out() const { return out_c / groups; }
  int words() const { return (group_in() + 63) / 64; }      // 64-bit words per pixel for the channels of one group
  int taps() const { return kh * kw * group_in(); }
};

// A bit map is [in_h][in_w][groups][words] of 64-bit words; bit i of a word is channel 64 * word + i, unused bits are
// 0. Weights have the layout [out_c][kh][kw][words] and are packed for the kernel once, at load. `prepare` may be
// called concurrently for parts of the rows; all rows must be prepared before `row` is called.
struct BKernel {
  const char* name;
  bool (*supported)();                        // whether the CPU supports it
  bool (*takes)(const BConv&);                // whether it supports the geometry
  int panel;                                  // output channels per call of `row`; a multiple of 8
  size_t (*weight_bytes)(const BConv&);
  void (*pack)(const BConv&, const uint64_t* weights, void* packed);
  size_t (*scratch_bytes)(const BConv&);      // output bytes of `prepare`; the caller aligns to 64
  void (*prepare)(const BConv&, const uint64_t* map, void* scratch, int first_row, int last_row);
  // Writes the differing taps of output row y for the channels of a panel: counts[out_w][panel], aligned to 64 bytes.
  // Channels after the end of a group are undefined. Panels are numbered group by group; a group has
  // ceil(group_out / panel) panels.
  void (*row)(const BConv&, const void* packed, const void* scratch, int y, int panel_index, uint16_t* counts);
  // The same with 32-bit counts, for convolutions with more than kMostTapsOf16Bits taps; null for other kernels.
  void (*wide_row)(const BConv&, const void* packed, const void* scratch, int y, int panel_index,
                   uint32_t* counts) = nullptr;
};

const int kMostTapsOf16Bits = 65535;

// bconv_wide is the only kernel with `wide_row`, and it has no `row`.
extern const BKernel bconv_scalar, bconv_wide, bconv_avx2, bconv_avx512, bconv_neon, bconv_wasm;

}  // namespace lcrbnn
