// Float convolutions with about half the multiplications (Toom and Cook; Winograd): four outputs of a row are the
// product of two polynomials, found from its values at a few points. Meant for stems: few input channels, a wide kernel.
//
// A kernel row of stride s is s phases, each a convolution of stride 1 over every s-th column with 3 or 4 taps. All
// phases are added at the points 0, 1, -1, 1/2, -1/2 and infinity; those of 4 taps need 2 as well. Errors are some two
// to three times those of a plain sum. A NaN or an infinity reaches all four outputs, not only those that see it.
#pragma once
#include "fconv.h"

namespace lcrbnn {

constexpr int kPointsOut = 4;                  // outputs that are computed together
constexpr int kPointsMost = 7;                 // points, the last one only for phases of 4 taps
constexpr int kPointsInf = 5, kPointsTwo = 6;  // their places after 0, 1, -1, 1/2, -1/2
constexpr int kPointsBlock = 16;               // floats that `spread` takes at a time

// Where one channel of one phase stands, column by column, and where its values at the points go: `count` of each,
// a multiple of kPointsBlock.
struct FSpread {
  const float* column[kPointsMost];
  float* to[kPointsMost];  // with 3 taps all but the last
  bool four;
  int count;
};

// Sums at the points, [point][place][wide], to pixels: up to 4 from each place, `pixels` in all.
struct FGather {
  const float* sums;
  size_t point_step;
  int wide;
  bool two;           // whether there is a sum at that point
  const float* bias;  // [wide]
  int channels, pixels;
  float* out;         // [pixels][out_step]
  size_t out_step;
};

// Whether it can, and whether that is worth it.
bool points_fit(const FConv& c);
bool points_pay(const FConv& c);

// As the functions of fconv.h that call them.
size_t points_weight_floats(const FConv& c);
void points_pack(const FConv& c, const float* weights, float* packed);
size_t points_scratch_floats(const FConv& c);
void points_rows(const FPath& path, const FConv& c, const float* packed, const float* bias, const float* in, float* out,
                 float* scratch, int row_begin, int row_end, bool goes_on);

}  // namespace lcrbnn
