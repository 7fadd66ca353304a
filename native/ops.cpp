#include "ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace lcrbnn {

Range seen(int i, int size, int kernel, int stride, int before) {
  const int64_t start = int64_t(i) * stride - before, end = start + kernel;
  return {int(start < 0 ? 0 : start), int(end < size ? end : size)};
}

void maxpool_row(const RowOps& ops, const Window& w, const Shape& in, const Shape& out, const float* from, int ring,
                 float* row, int y) {
  const Range rows = seen(y, in.h, w.kh, w.sy, w.top);
  PoolRow pool{{}, 0, false, in.w, in.c, out.w, w.kw, w.sx, w.left, row};
  for (int v = rows.begin; v < rows.end; v += pool.count, pool.more = true) {
    pool.count = std::min(kPoolRows, rows.end - v);
    for (int i = 0; i < pool.count; ++i)
      pool.rows[i] = from + size_t((v + i) % ring) * size_t(in.w) * size_t(in.c);
    ops.pool(pool);
  }
}

void avgpool_row(const RowOps& ops, const Window& w, const Shape& in, const Shape& out, const float* from, float* row,
                 double* sums, int y) {
  const size_t c = size_t(in.c);
  const Range rows = seen(y, in.h, w.kh, w.sy, w.top);
  for (int x = 0; x < out.w; ++x, row += c) {
    const Range cols = seen(x, in.w, w.kw, w.sx, w.left);
    std::fill(sums, sums + c, 0.0);
    for (int v = rows.begin; v < rows.end; ++v)
      for (int u = cols.begin; u < cols.end; ++u) ops.sum(sums, from + (size_t(v) * size_t(in.w) + size_t(u)) * c, c);
    const double count = double(rows.end - rows.begin) * double(cols.end - cols.begin);
    ops.divide(row, sums, count, c);
  }
}

void mean_map(const RowOps& ops, const Shape& in, const float* from, float* to, double* sums) {
  const size_t c = size_t(in.c), pixels = size_t(in.h) * size_t(in.w);
  std::fill(sums, sums + c, 0.0);
  for (size_t p = 0; p < pixels; ++p) ops.sum(sums, from + p * c, c);
  ops.divide(to, sums, double(pixels), c);
}

void subsample_row(const Window& w, const Shape& in, const Shape& out, const float* from, float* row, int y) {
  const size_t c = size_t(in.c);
  const float* line = from + size_t(y) * size_t(w.sy) * size_t(in.w) * c;
  for (size_t x = 0; x < size_t(out.w); ++x) memcpy(row + x * c, line + x * size_t(w.sx) * c, c * 4);
}

void channels_row(int before, const Shape& in, const Shape& out, const float* from, float* row, int y) {
  const size_t c = size_t(in.c), all = size_t(out.c), first = size_t(before);
  from += size_t(y) * size_t(in.w) * c;
  for (int x = 0; x < out.w; ++x, row += all, from += c) {
    std::fill(row, row + first, 0.0f);
    memcpy(row + first, from, c * 4);
    std::fill(row + first + c, row + all, 0.0f);
  }
}

void softmax_row(const Shape& shape, const float* from, float* row, int y) {
  const size_t c = size_t(shape.c);
  from += size_t(y) * size_t(shape.w) * c;
  for (int x = 0; x < shape.w; ++x, row += c, from += c) {
    float top = from[0];
    for (size_t i = 1; i < c; ++i) top = from[i] > top || from[i] != from[i] ? from[i] : top;
    double sum = 0;
    for (size_t i = 0; i < c; ++i) sum += std::exp(double(from[i]) - double(top));
    for (size_t i = 0; i < c; ++i) row[i] = float(std::exp(double(from[i]) - double(top)) / sum);
  }
}

double sum_row(const float* row, size_t numbers) {
  double part[8] = {};
  size_t i = 0;
  for (; i + 8 <= numbers; i += 8)
    for (size_t k = 0; k < 8; ++k) part[k] += double(row[i + k]);
  for (; i < numbers; ++i) part[i % 8] += double(row[i]);
  return ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
}

}  // namespace lcrbnn
