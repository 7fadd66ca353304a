// Operators other than convolutions, for output row y. Maps are [h][w][c].
#pragma once
#include "file.h"
#include "rows.h"

namespace lcrbnn {

struct Range {
  int begin, end;
};

// Returns the part of a window inside the map along one axis.
Range seen(int i, int size, int kernel, int stride, int before);

// Input row v is row v % ring of `from`.
void maxpool_row(const RowOps&, const Window&, const Shape& in, const Shape& out, const float* from, int ring,
                 float* row, int y);
void avgpool_row(const RowOps&, const Window&, const Shape& in, const Shape& out, const float* from, float* row,
                 double* sums, int y);
void mean_map(const RowOps&, const Shape& in, const float* from, float* to, double* sums);
void subsample_row(const Window&, const Shape& in, const Shape& out, const float* from, float* row, int y);
void channels_row(int before, const Shape& in, const Shape& out, const float* from, float* row, int y);
void softmax_row(const Shape& shape, const float* from, float* row, int y);
double sum_row(const float* row, size_t numbers);

}  // namespace lcrbnn
