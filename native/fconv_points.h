// Float convolutions with about half the multiplications (Toom-Cook, Winograd). Four outputs of a row are coefficients
// of a product of two polynomials, which is computed from its values at a few points. Meant for stems, which have few
// input channels and large kernels.
//
// A kernel row of stride s consists of s phases. Each phase is a convolution of stride 1 over every s-th column with 3
// or 4 taps. The phases are added at the points 0, 1, -1, 1/2, -1/2 and infinity; phases of 4 taps also need 2.
// Rounding errors are two to three times those of a plain sum. NaN and infinity affect all four outputs of a place.
#pragma once
#include "fconv.h"

namespace lcrbnn {

constexpr int kPointsOut = 4;                  // number of outputs that are computed together
constexpr int kPointsMost = 7;                 // number of points; the last one is only for phases of 4 taps
// indices of the points infinity and 2; they come after 0, 1, -1, 1/2, -1/2
constexpr int kPointsInf = 5, kPointsTwo = 6;
constexpr int kPointsBlock = 16;               // number of floats that one step of `spread` processes

// Columns of one channel of one phase, and where to write its values at the points: `count` floats each, a multiple of
// kPointsBlock.
struct FSpread {
  const float* column[kPointsMost];
  float* to[kPointsMost];  // the last entry is only used for 4 taps
  bool four;
  int count;
};

// Converts sums at the points, [point][place][wide], to `pixels` pixels, up to 4 per place.
struct FGather {
  const float* sums;
  size_t point_step;
  int wide;
  bool two;           // whether sums at the point 2 exist
  const float* bias;  // [wide]
  int channels, pixels;
  float* out;         // [pixels][out_step]
  size_t out_step;
};

// The first function returns whether the algorithm supports the convolution, the second whether it is faster.
bool points_fit(const FConv& c);
bool points_pay(const FConv& c);

// These implement the functions of fconv.h with the same names.
size_t points_weight_floats(const FConv& c);
void points_pack(const FConv& c, const float* weights, float* packed);
size_t points_scratch_floats(const FConv& c);
void points_rows(const FPath& path, const FConv& c, const float* packed, const float* bias, const float* in, float* out,
                 float* scratch, int row_begin, int row_end, bool goes_on);

}  // namespace lcrbnn
