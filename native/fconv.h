// Float convolutions: the stem, shortcuts and the classifier. Maps are [h][w][c]; outside the map is 0.
#pragma once
#include <cstddef>

namespace lcrbnn {

struct FConv {
  int in_h, in_w, in_c, out_h, out_w, out_c;
  int kh, kw, stride_h, stride_w, dil_h, dil_w;
  int pad_top, pad_left;    // the other sides follow from the sizes
  int groups;
};

// Weights [out][kh][kw][in / groups] are packed once, at load; `packed` and `scratch` are best aligned to 64 bytes.
size_t fconv_weight_floats(const FConv& c);
void fconv_pack(const FConv& c, const float* weights, float* packed);

// Rows [row_begin, row_end) of the output; bias may be null. Each thread needs its own scratch.
size_t fconv_scratch_floats(const FConv& c);
void fconv_rows(const FConv& c, const float* packed, const float* bias, const float* in, float* out, float* scratch,
                int row_begin, int row_end);

// What is inside: 16 output channels at some pixels of a row. Both paths, the portable one and AVX2, do this.
struct FTile {
  const float* pixels;      // the first tap of the first pixel
  size_t step;              // floats from a pixel to the next one
  const float* weights;     // [rows][across][length][16]
  const float* bias;        // 16 floats
  int rows, across, length; // runs of floats that lie together: kernel rows, runs in each, floats in a run
  size_t row_step, run_step;
  float* out;               // [pixels][out_step]
  size_t out_step;
};
constexpr int kFConvPixels = 6, kFConvPanel = 16;  // at most so many pixels, always so many channels
void fconv_tile_portable(const FTile& tile, int pixels);
void fconv_tile_avx2(const FTile& tile, int pixels);
bool fconv_has_avx2();

}  // namespace lcrbnn
