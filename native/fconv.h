// Float convolutions: the stem, shortcuts and the classifier. Maps are [h][w][c]; outside the map is 0.
#pragma once
#include <cstddef>

namespace lcrbnn {

struct FConv {
  int in_h, in_w, in_c, out_h, out_w, out_c;
  int kh, kw, stride_h, stride_w, dil_h, dil_w;
  int pad_top, pad_left;    // the other sides follow from the sizes
  int groups;
  bool points = false;      // by fewer multiplications: fconv_points.h
};

// What is inside: 16 output channels, or several times as many, at some pixels of a row.
struct FTile {
  const float* pixels;      // the first tap of the first pixel
  size_t step;              // floats from a pixel to the next one
  const float* weights;     // [panels][rows][across][length][16]
  size_t panel_step;        // floats from a panel of weights to the next one
  const float* bias;        // [panels][16]
  int rows, across, length; // runs of floats: kernel rows, runs in each, floats in a run
  size_t row_step, run_step, hop;  // from one to the next
  float* out;               // [pixels][out_step], the panels side by side
  size_t out_step;
};
constexpr int kFConvPanel = 16;                            // channels of a panel
constexpr int kFConvMostPixels = 14, kFConvMostPanels = 2;  // of a tile, in any path

struct FSpread;
struct FGather;

// One instruction set's way. All take the same packed weights.
struct FPath {
  const char* name;        // as the binary kernel of the same instructions
  bool (*supported)();
  int pixels, panels;      // of a tile, at most
  void (*tile)(const FTile&, int pixels, int panels);
  void (*spread)(const FSpread&);  // both for FConv::points
  void (*gather)(const FGather&);
};
extern const FPath fconv_scalar, fconv_avx2, fconv_avx512;
extern const FPath* const fconv_paths[];  // compiled into this build, the fastest first; the last one runs everywhere
extern const int fconv_path_count;

// The first that this CPU supports, or the one that the environment variable LCRBNN_KERNEL names. Sums differ by
// rounding from one path to another.
const FPath& choose_fconv();

// Weights [out][kh][kw][in / groups] are packed once, at load; `packed` and `scratch` are best aligned to 64 bytes.
size_t fconv_weight_floats(const FConv& c);
void fconv_pack(const FConv& c, const float* weights, float* packed);

// Rows [row_begin, row_end) of the output, the first of them at `out`; bias may be null. Each thread needs its own
// scratch. With `goes_on` the scratch is as the call for the row before `row_begin` left it: less is to be done.
size_t fconv_scratch_floats(const FConv& c);
void fconv_rows(const FPath& path, const FConv& c, const float* packed, const float* bias, const float* in, float* out,
                float* scratch, int row_begin, int row_end, bool goes_on = false);

}  // namespace lcrbnn
