// The operators of version 2 that are not elementwise.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops.h"

namespace lcrbnn {

void broadcast_row(bool product, const Shape& first, const Shape& second, const Shape& out, const float* a,
                   const float* b, float* row, int y) {
  const auto line = [y](const Shape& s, const float* map) {
    return map + (s.h == 1 ? 0 : size_t(y) * size_t(s.w) * size_t(s.c));
  };
  const size_t c = size_t(out.c);
  a = line(first, a), b = line(second, b);
  const size_t step_a = first.w == 1 ? 0 : size_t(first.c), step_b = second.w == 1 ? 0 : size_t(second.c);
  const size_t each_a = first.c == 1 ? 0 : 1, each_b = second.c == 1 ? 0 : 1;
  for (int x = 0; x < out.w; ++x, row += c, a += step_a, b += step_b) {
    if (each_a && each_b) {
      if (product)
        for (size_t i = 0; i < c; ++i) row[i] = a[i] * b[i];
      else
        for (size_t i = 0; i < c; ++i) row[i] = a[i] + b[i];
      continue;
    }
    const float* wide = each_a ? a : b;  // both have one channel, or only this one has several
    const float single = each_a ? b[0] : a[0];
    const size_t each = each_a | each_b;
    if (product)
      for (size_t i = 0; i < c; ++i) row[i] = wide[i * each] * single;
    else
      for (size_t i = 0; i < c; ++i) row[i] = wide[i * each] + single;
  }
}

void matmul_row(const RowOps& ops, const Shape& in, const Shape& out, bool transpose, const float* a, const float* b,
                float* row, float* scratch, int y) {
  const size_t k = size_t(in.c), n = size_t(out.c);
  a += size_t(y) * size_t(in.w) * k;
  b += size_t(y) * k * n;
  if (transpose) {
    for (size_t p = 0; p < k; ++p)
      for (size_t j = 0; j < n; ++j) scratch[p * n + j] = b[j * k + p];
    b = scratch;
  }
  ops.matmul(a, b, row, in.w, in.c, out.c);
}

void take_row(const int32_t* const* indices, float fill, const Shape& in, const Shape& out, const float* from,
              float* row, int y) {
  const size_t c = size_t(out.c), width = size_t(out.w);
  const int v = indices[0] ? indices[0][y] : y;
  if (v < 0) {
    std::fill(row, row + width * c, fill);
    return;
  }
  from += size_t(v) * size_t(in.w) * size_t(in.c);
  const int32_t* channels = indices[2];
  for (size_t x = 0; x < width; ++x, row += c) {
    const int u = indices[1] ? indices[1][x] : int(x);
    if (u < 0) {
      std::fill(row, row + c, fill);
      continue;
    }
    const float* pixel = from + size_t(u) * size_t(in.c);
    if (!channels) {
      memcpy(row, pixel, c * 4);
      continue;
    }
    for (size_t i = 0; i < c; ++i) row[i] = channels[i] < 0 ? fill : pixel[channels[i]];
  }
}

void strided_row(const Factors& factors, int offset, const Shape& out, const float* from, float* row, int y) {
  const int last = factors.count - 1;
  const int64_t stride = factors.strides[last], length = factors.lengths[last];
  const int64_t count = int64_t(out.w) * out.c, start = int64_t(y) * count;
  int digits[kMostFactors];
  int64_t rest = start, at = offset;
  for (int i = last; i >= 0; --i) {
    digits[i] = int(rest % factors.lengths[i]);
    rest /= factors.lengths[i];
    at += int64_t(digits[i]) * factors.strides[i];
  }
  for (int64_t done = 0; done < count;) {
    const int64_t run = std::min(length - digits[last], count - done);
    const float* pixel = from + at;
    if (stride == 1) memcpy(row + done, pixel, size_t(run) * 4);
    else
      for (int64_t i = 0; i < run; ++i) row[done + i] = pixel[i * stride];
    done += run;
    at += run * stride;
    digits[last] += int(run);
    for (int i = last; digits[i] == factors.lengths[i] && i > 0; --i) {
      at += factors.strides[i - 1] - int64_t(factors.lengths[i]) * factors.strides[i];
      digits[i] = 0;
      ++digits[i - 1];
    }
  }
}

namespace {

// The position of an output index between two input indices, and the weight of the second one.
struct Between {
  size_t first, second;
  float weight;
};

Between position(int i, int size, int new_size, bool align_corners) {
  double at;
  if (align_corners) {
    at = double(i) * (new_size > 1 ? double(size - 1) / double(new_size - 1) : 0.0);
  } else {
    at = (double(i) + 0.5) * (double(size) / double(new_size)) - 0.5;
    at = at < 0 ? 0 : at;
  }
  const int first = std::min(int(at), size - 1);
  return {size_t(first), size_t(std::min(first + 1, size - 1)), float(at - double(first))};
}

}  // namespace

void bilinear_row(bool align_corners, const Shape& in, const Shape& out, const float* from, float* row, int y) {
  const size_t c = size_t(in.c), line = size_t(in.w) * c;
  const Between rows = position(y, in.h, out.h, align_corners);
  const float *above = from + rows.first * line, *below = from + rows.second * line;
  for (int x = 0; x < out.w; ++x, row += c) {
    const Between columns = position(x, in.w, out.w, align_corners);
    const size_t left = columns.first * c, right = columns.second * c;
    for (size_t i = 0; i < c; ++i) {
      const float top = above[left + i] + columns.weight * (above[right + i] - above[left + i]);
      const float bottom = below[left + i] + columns.weight * (below[right + i] - below[left + i]);
      row[i] = top + rows.weight * (bottom - top);
    }
  }
}

void adaptive_avgpool_row(const RowOps& ops, const Shape& in, const Shape& out, const float* from, float* row,
                          double* sums, int y) {
  const size_t c = size_t(in.c);
  const auto window = [](int i, int size, int new_size) {
    return Range{int(int64_t(i) * size / new_size), int((int64_t(i + 1) * size + new_size - 1) / new_size)};
  };
  const Range rows = window(y, in.h, out.h);
  for (int x = 0; x < out.w; ++x, row += c) {
    const Range columns = window(x, in.w, out.w);
    std::fill(sums, sums + c, 0.0);
    for (int v = rows.begin; v < rows.end; ++v)
      for (int u = columns.begin; u < columns.end; ++u)
        ops.sum(sums, from + (size_t(v) * size_t(in.w) + size_t(u)) * c, c);
    ops.divide(row, sums, double(rows.end - rows.begin) * double(columns.end - columns.begin), c);
  }
}

// The scratch has four parts of one number per channel: sums, means, and both as float32 (mean and inverse).
void Normalization::add_row(int phase, int y) const {
  const size_t c = size_t(in.c), group = c / size_t(groups);
  const float* line = from + size_t(y) * size_t(in.w) * c;
  double *sums = scratch, *to = parts + (size_t(phase) * size_t(in.h) + size_t(y)) * size_t(groups);
  const double* means = scratch + c;
  std::fill(sums, sums + c, 0.0);
  for (int x = 0; x < in.w; ++x, line += c) {
    if (phase == 0) {
      ops.sum(sums, line, c);
      continue;
    }
    for (size_t i = 0; i < c; ++i) {
      const double difference = double(line[i]) - means[i];
      sums[i] += difference * difference;
    }
  }
  for (size_t g = 0; g < size_t(groups); ++g) {
    double sum = 0;
    for (size_t i = 0; i < group; ++i) sum += sums[g * group + i];
    to[g] = sum;
  }
}

void Normalization::prepare(int phase) const {
  const size_t c = size_t(in.c), group = c / size_t(groups), rows = size_t(in.h);
  double* means = scratch + c;
  float *mean = reinterpret_cast<float*>(scratch + 2 * c), *inverse = mean + c;
  const double count = double(in.h) * double(in.w) * double(group);
  for (size_t g = 0; g < size_t(groups); ++g) {
    double sum = 0, squares = 0;
    for (size_t y = 0; y < rows; ++y) sum += parts[y * size_t(groups) + g];
    for (size_t y = 0; phase == 2 && y < rows; ++y) squares += parts[(rows + y) * size_t(groups) + g];
    const double center = sum / count;
    std::fill(means + g * group, means + (g + 1) * group, center);
    std::fill(mean + g * group, mean + (g + 1) * group, float(center));
    const float scale = float(1 / std::sqrt(squares / count + double(eps)));
    std::fill(inverse + g * group, inverse + (g + 1) * group, scale);
  }
}

void Normalization::run_row(bool spatial, float* row, int y) const {
  const size_t c = size_t(in.c), group = c / size_t(groups);
  const float* line = from + size_t(y) * size_t(in.w) * c;
  float *mean = reinterpret_cast<float*>(scratch + 2 * c), *inverse = mean + c;
  for (int x = 0; x < in.w; ++x, line += c, row += c) {
    for (size_t g = 0; !spatial && g < c; g += group) {
      const double center = sum_row(line + g, group) / double(group);
      double parts_of_sum[4] = {};
      size_t i = 0;
      for (; i + 4 <= group; i += 4)
        for (size_t k = 0; k < 4; ++k) {
          const double difference = double(line[g + i + k]) - center;
          parts_of_sum[k] += difference * difference;
        }
      for (; i < group; ++i) {
        const double difference = double(line[g + i]) - center;
        parts_of_sum[0] += difference * difference;
      }
      const double squares = (parts_of_sum[0] + parts_of_sum[1]) + (parts_of_sum[2] + parts_of_sum[3]);
      std::fill(mean + g, mean + g + group, float(center));
      std::fill(inverse + g, inverse + g + group, float(1 / std::sqrt(squares / double(group) + double(eps))));
    }
    for (size_t i = 0; i < c; ++i) row[i] = a[i] * ((line[i] - mean[i]) * inverse[i]) + b[i];
  }
}

void wide_counts_row(const CountsRow& r, const uint32_t* counts) {
  for (int x = 0; x < r.pixels; ++x) {
    const uint32_t* count = counts + size_t(x) * size_t(r.panel);
    const int32_t* more = r.correction ? r.correction + size_t(r.column[x]) * r.correction_stride : nullptr;
    float* to = r.to + size_t(x) * r.to_stride;
    for (int c = 0; c < r.n; ++c) {
      float sum = float(r.taps - 2 * int(count[c]) + (more ? more[c] : 0));
      if (r.spatial) sum = r.spatial[size_t(x) * r.spatial_stride + size_t(r.spatial_one ? 0 : c)] * sum;
      to[c] = r.a[c] * sum + r.b[c];
    }
  }
}

}  // namespace lcrbnn
