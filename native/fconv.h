// Float convolutions: stem, shortcuts and classifier. Maps are [h][w][c], padded with 0.
#pragma once
#include <cstddef>

namespace lcrbnn {

struct FConv {
  int in_h, in_w, in_c, out_h, out_w, out_c;
  int kh, kw, stride_h, stride_w, dil_h, dil_w;
  int pad_top, pad_left;    // the other sides follow from the sizes
  int groups;
  bool points = false;      // whether to use the algorithm of fconv_points.h
};

// Arguments of the inner loop: one or more panels of 16 output channels at some pixels of a row.
struct FTile {
  const float* pixels;      // input at the first tap of the first pixel
  size_t step;              // number of floats from one pixel to the next
  const float* weights;     // [panels][rows][across][length][16]
  size_t panel_step;        // number of floats from one panel of weights to the next
  const float* bias;        // [panels][16]
  int rows, across, length; // the taps form runs of floats: number of kernel rows, runs per row, floats per run
  size_t row_step, run_step, hop;  // distances in floats to the next row, run and tap
  float* out;               // output, [pixels][out_step], with panels next to each other
  size_t out_step;
};
constexpr int kFConvPanel = 16;                            // number of channels per panel
constexpr int kFConvMostPixels = 14, kFConvMostPanels = 2;  // maximum number of pixels and panels per tile in all paths

struct FSpread;
struct FGather;

// Functions for one instruction set. All use the same packed weights.
struct FPath {
  const char* name;        // name of the binary kernel for the same instructions
  bool (*supported)();
  int pixels, panels;      // maximum number of pixels and panels per tile
  void (*tile)(const FTile&, int pixels, int panels);
  void (*spread)(const FSpread&);  // spread and gather are only used if FConv::points is set
  void (*gather)(const FGather&);
};
extern const FPath fconv_scalar, fconv_avx2, fconv_avx512;
extern const FPath* const fconv_paths[];  // Paths of this build, the fastest first. The last one runs on every CPU.
extern const int fconv_path_count;

// Returns the first path that this CPU supports, or the one that the environment variable LCRBNN_KERNEL names. The
// rounding errors of the paths differ.
const FPath& choose_fconv();

// Weights [out][kh][kw][in / groups] are packed once, at load; `packed` and `scratch` should be aligned to 64 bytes.
size_t fconv_weight_floats(const FConv& c);
void fconv_pack(const FConv& c, const float* weights, float* packed);

// Computes rows [row_begin, row_end) of the output; `out` points to the first of them; bias may be null. Each thread
// needs its own scratch. With `goes_on`, the scratch is still that of the call for the row before `row_begin`, and is
// reused.
size_t fconv_scratch_floats(const FConv& c);
void fconv_rows(const FPath& path, const FConv& c, const float* packed, const float* bias, const float* in, float* out,
                float* scratch, int row_begin, int row_end, bool goes_on = false);

}  // namespace lcrbnn
