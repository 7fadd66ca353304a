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

// Operators of version 2 (ops_version_2.cpp).

// Sum or product of two shapes, each dimension equal or 1.
void broadcast_row(bool product, const Shape& first, const Shape& second, const Shape& out, const float* a,
                   const float* b, float* row, int y);
// Product of the matrices of row y. A transposed second matrix is copied to `scratch`.
void matmul_row(const RowOps&, const Shape& in, const Shape& out, bool transpose, const float* a, const float* b,
                float* row, float* scratch, int y);
// `indices` are those of rows, columns and channels; null means all.
void take_row(const int32_t* const* indices, float fill, const Shape& in, const Shape& out, const float* from,
              float* row, int y);
void strided_row(const Factors&, int offset, const Shape& out, const float* from, float* row, int y);
void bilinear_row(bool align_corners, const Shape& in, const Shape& out, const float* from, float* row, int y);
void adaptive_avgpool_row(const RowOps&, const Shape& in, const Shape& out, const float* from, float* row, double* sums,
                          int y);

// Normalisation by groups of channels. With statistics over all pixels, phase 0 adds the numbers of each row and phase
// 1 their squared deviations, [row][group] of `parts`; then each task calls `prepare` once before its rows.
struct Normalization {
  const RowOps& ops;
  Shape in;
  int groups;
  float eps;
  const float *a, *b;
  const float* from;
  double* parts;    // of all rows: sums, then squares
  double* scratch;  // of normalize_scratch bytes, for each worker

  void add_row(int phase, int y) const;
  void prepare(int phase) const;
  void run_row(bool spatial, float* row, int y) const;
};
inline uint64_t normalize_scratch(const Shape& in) { return uint64_t(in.c) * 24; }

// Converts 32-bit counts of a row to numbers, as RowOps::counts does for 16-bit counts.
void wide_counts_row(const CountsRow&, const uint32_t* counts);

}  // namespace lcrbnn
