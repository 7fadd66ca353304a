// The loops of rows.h; rows.cpp includes this file once per instruction set, with TARGET set.
// No header may be included here. Products are rounded before sums (-ffp-contract=off).

TARGET void counts_row(const CountsRow& r) {
  const float *a = r.a, *b = r.b;
  const int taps = r.taps, n = r.n;
  for (int x = 0; x < r.pixels; ++x) {
    const uint16_t* count = r.counts + size_t(x) * size_t(r.panel);
    float* to = r.to + size_t(x) * r.to_stride;
    const int32_t* more =
        r.correction && r.column[x] != r.plain ? r.correction + size_t(r.column[x]) * r.correction_stride : nullptr;
    if (!r.spatial && !more) {
      LOOP for (int c = 0; c < n; ++c) to[c] = a[c] * float(taps - 2 * int(count[c])) + b[c];
      continue;
    }
    if (!r.spatial) {
      LOOP for (int c = 0; c < n; ++c) to[c] = a[c] * float(taps - 2 * int(count[c]) + more[c]) + b[c];
      continue;
    }
    const float* s = r.spatial + size_t(x) * r.spatial_stride;
    for (int c = 0; c < n; ++c) {
      const float sum = float(taps - 2 * int(count[c]) + (more ? more[c] : 0));
      to[c] = a[c] * (s[r.spatial_one ? 0 : c] * sum) + b[c];
    }
  }
}

TARGET void affine_row(const Row& r, const float* a, const float* b) {
  for (int x = 0; x < r.pixels; ++x) {
    const float* from = r.from + size_t(x) * r.from_stride;
    float* to = r.to + size_t(x) * r.to_stride;
    LOOP for (int c = 0; c < r.n; ++c) to[c] = a[c] * from[c] + b[c];
  }
}

// A contiguous row is treated as one long pixel by steps that do not depend on the channel.
TARGET inline Row joined(const Row& r, size_t other_stride) {
  const size_t n = size_t(r.n);
  if (r.from_stride != n || r.to_stride != n || other_stride != n) return r;
  return {r.from, 0, r.to, 0, 1, r.n * r.pixels};
}

TARGET void add_row(const Row& row, const float* other, size_t other_stride) {
  const Row r = joined(row, other_stride);
  for (int x = 0; x < r.pixels; ++x) {
    const float* from = r.from + size_t(x) * r.from_stride;
    const float* more = other + size_t(x) * other_stride;
    float* to = r.to + size_t(x) * r.to_stride;
    LOOP for (int c = 0; c < r.n; ++c) to[c] = from[c] + more[c];
  }
}

TARGET void multiply_row(const Row& row, const float* other, size_t other_stride) {
  const Row r = joined(row, other_stride);
  for (int x = 0; x < r.pixels; ++x) {
    const float* from = r.from + size_t(x) * r.from_stride;
    const float* more = other + size_t(x) * other_stride;
    float* to = r.to + size_t(x) * r.to_stride;
    LOOP for (int c = 0; c < r.n; ++c) to[c] = from[c] * more[c];
  }
}

#include "rows_functions.h"

TARGET void hardtanh_row(const Row& row) {
  const Row r = joined(row, size_t(row.n));
  for (int x = 0; x < r.pixels; ++x) {
    const float* from = r.from + size_t(x) * r.from_stride;
    float* to = r.to + size_t(x) * r.to_stride;
    LOOP for (int c = 0; c < r.n; ++c) {
      const float low = from[c] < -1.0f ? -1.0f : from[c];
      to[c] = low > 1.0f ? 1.0f : low;
    }
  }
}

TARGET void relu_row(const Row& row) {
  const Row r = joined(row, size_t(row.n));
  for (int x = 0; x < r.pixels; ++x) {
    const float* from = r.from + size_t(x) * r.from_stride;
    float* to = r.to + size_t(x) * r.to_stride;
    LOOP for (int c = 0; c < r.n; ++c) to[c] = from[c] < 0.0f ? 0.0f : from[c];
  }
}

TARGET void prelu_row(const Row& r, const float* slope) {
  for (int x = 0; x < r.pixels; ++x) {
    const float* from = r.from + size_t(x) * r.from_stride;
    float* to = r.to + size_t(x) * r.to_stride;
    LOOP for (int c = 0; c < r.n; ++c) {
      const float low = slope[c] * from[c];
      to[c] = from[c] >= 0.0f ? from[c] : low;
    }
  }
}

TARGET void shift_row(const Row& r, const float* b) {
  for (int x = 0; x < r.pixels; ++x) {
    const float* from = r.from + size_t(x) * r.from_stride;
    float* to = r.to + size_t(x) * r.to_stride;
    LOOP for (int c = 0; c < r.n; ++c) to[c] = from[c] + b[c];
  }
}

// Returns whether channel c is bit c of the words of a pixel and panels start at a byte: the usual and fast case.
TARGET inline bool flat(const BitsRow& to) {
  return to.first % 8 == 0 && (to.group_words * 64 == to.group_in || to.channels == to.group_in);
}

// Writes up to eight bits one by one.
TARGET inline void put_bits(uint64_t* pixel, const BitsRow& to, int channel, unsigned eight, int n) {
  for (int i = 0; i < n; ++i) {
    const int group = (channel + i) / to.group_in, in = (channel + i) % to.group_in;
    pixel[size_t(group) * size_t(to.group_words) + size_t(in / 64)] |= uint64_t(eight >> i & 1) << (in % 64);
  }
}

TARGET void bits_row(const Row& r, const float* threshold, bool one, const BitsRow& to) {
  const bool bytes = flat(to);
  for (int x = 0; x < r.pixels; ++x) {
    const float* from = r.from + size_t(x) * r.from_stride;
    uint64_t* pixel = to.to + size_t(x) * to.words;
    uint8_t* byte = reinterpret_cast<uint8_t*>(pixel) + to.first / 8;
    int c = 0;
    for (; bytes && !one && c + 32 <= r.n; c += 32, byte += 4) {
      const uint32_t word = signs(from + c, threshold + c) | signs(from + c + 8, threshold + c + 8) << 8 |
                            signs(from + c + 16, threshold + c + 16) << 16 |
                            signs(from + c + 24, threshold + c + 24) << 24;
      __builtin_memcpy(byte, &word, 4);
    }
    for (; c < r.n; c += 8) {
      const int n = r.n - c < 8 ? r.n - c : 8;
      unsigned eight = 0;
      if (n == 8) {
        eight = one ? signs_one(from + c, *threshold) : signs(from + c, threshold + c);
      } else {
        for (int i = 0; i < n; ++i) eight |= unsigned(!(from[c + i] < threshold[one ? 0 : c + i])) << i;
      }
      if (bytes) *byte++ = uint8_t(eight);
      else put_bits(pixel, to, to.first + c, eight, n);
    }
  }
}

TARGET void limits_row(const LimitsRow& r, const BitsRow& to) {
  const bool bytes = flat(to);
  for (int x = 0; x < r.pixels; ++x) {
    const uint16_t* count = r.counts + size_t(x) * size_t(r.panel);
    const uint16_t* limit = r.limit + (r.column ? size_t(r.column[x]) * r.limit_stride : 0);
    const uint8_t* flip = r.flip + to.first / 8;
    uint64_t* pixel = to.to + size_t(x) * to.words;
    uint8_t* byte = reinterpret_cast<uint8_t*>(pixel) + to.first / 8;
    int c = 0;
    for (; bytes && c + 32 <= r.n; c += 32, byte += 4, flip += 4) {
      uint32_t turn;
      __builtin_memcpy(&turn, flip, 4);
      turn ^= below32(count + c, limit + c);
      __builtin_memcpy(byte, &turn, 4);
    }
    for (; c < r.n; c += 8, ++flip) {
      const int n = r.n - c < 8 ? r.n - c : 8, shift = to.first % 8;
      unsigned eight = n == 8 ? below(count + c, limit + c) : 0;
      for (int i = 0; n < 8 && i < n; ++i) eight |= unsigned(count[c + i] < limit[c + i]) << i;
      eight ^= (unsigned(flip[0]) | unsigned(flip[1]) << 8) >> shift;  // `flip` has one byte more
      eight &= (1u << n) - 1;
      if (bytes) *byte++ = uint8_t(eight);
      else put_bits(pixel, to, to.first + c, eight, n);
    }
  }
}

// Maximum of kWide packs of channels, starting at c, over columns [begin, end). Variables instead of an array stay in
// registers.
template <int kWide>
TARGET inline void pool_some(const PoolRow& r, int begin, int end, size_t c, float* to) {
  const size_t n = size_t(r.n);
  const float* first = r.more ? to : r.rows[0] + size_t(begin) * n + c;
  Pack v0 = load(first), v1 = v0, v2 = v0, v3 = v0;
  if (kWide > 1) v1 = load(first + kLanes), v2 = load(first + 2 * kLanes), v3 = load(first + 3 * kLanes);
  for (int i = 0; i < r.count; ++i) {
    const float* from = r.rows[i] + size_t(begin) * n + c;
    for (int u = begin; u < end; ++u, from += n) {
      v0 = larger(v0, load(from));
      if (kWide > 1) {
        v1 = larger(v1, load(from + kLanes));
        v2 = larger(v2, load(from + 2 * kLanes));
        v3 = larger(v3, load(from + 3 * kLanes));
      }
    }
  }
  store(to, v0);
  if (kWide > 1) store(to + kLanes, v1), store(to + 2 * kLanes, v2), store(to + 3 * kLanes, v3);
}

TARGET void pool_row(const PoolRow& row) {
  const PoolRow r = row;
  const size_t n = size_t(r.n);
  for (int x = 0; x < r.pixels; ++x) {
    const int64_t start = int64_t(x) * r.sx - r.left, stop = start + r.kw;
    const int begin = int(start < 0 ? 0 : start), end = int(stop < r.width ? stop : r.width);
    float* to = r.to + size_t(x) * n;
    size_t c = 0;
    for (; c + 4 * kLanes <= n; c += 4 * kLanes) pool_some<4>(r, begin, end, c, to + c);
    for (; c + kLanes <= n; c += kLanes) pool_some<1>(r, begin, end, c, to + c);
    for (; c < n; ++c) {
      float top = r.more ? to[c] : r.rows[0][size_t(begin) * n + c];
      for (int i = 0; i < r.count; ++i)
        for (int u = begin; u < end; ++u) {
          const float v = r.rows[i][size_t(u) * n + c];
          top = top > v || top != top ? top : v;
        }
      to[c] = top;
    }
  }
}

// Columns of a block of four output rows, which stay in the cache while all terms are added.
const int kMatmulColumns = 1024;

TARGET void matmul_rows(const float* a, const float* b, float* to, int m, int k, int n) {
  const size_t terms = size_t(k), all = size_t(n);
  for (int first = 0; first < n; first += kMatmulColumns) {
    const int width = n - first < kMatmulColumns ? n - first : kMatmulColumns;
    int i = 0;
    for (; i + 4 <= m; i += 4) {
      const float *a0 = a + size_t(i) * terms, *a1 = a0 + terms, *a2 = a1 + terms, *a3 = a2 + terms;
      float *t0 = to + size_t(i) * all + size_t(first), *t1 = t0 + all, *t2 = t1 + all, *t3 = t2 + all;
      for (int j = 0; j < width; ++j) t0[j] = t1[j] = t2[j] = t3[j] = 0.0f;
      for (size_t p = 0; p < terms; ++p) {
        const float* from = b + p * all + size_t(first);
        const float f0 = a0[p], f1 = a1[p], f2 = a2[p], f3 = a3[p];
        LOOP for (int j = 0; j < width; ++j) {
          const float v = from[j];
          t0[j] = t0[j] + f0 * v;
          t1[j] = t1[j] + f1 * v;
          t2[j] = t2[j] + f2 * v;
          t3[j] = t3[j] + f3 * v;
        }
      }
    }
    for (; i < m; ++i) {
      float* t = to + size_t(i) * all + size_t(first);
      for (int j = 0; j < width; ++j) t[j] = 0.0f;
      for (size_t p = 0; p < terms; ++p) {
        const float* from = b + p * all + size_t(first);
        const float f = a[size_t(i) * terms + p];
        LOOP for (int j = 0; j < width; ++j) t[j] = t[j] + f * from[j];
      }
    }
  }
}

TARGET void sum_row(double* to, const float* from, size_t n) {
  LOOP for (size_t i = 0; i < n; ++i) to[i] += double(from[i]);
}

// Division by a power of two equals multiplication by its inverse exactly.
TARGET void divide_row(float* to, const double* from, double count, size_t n) {
  const uint64_t whole = uint64_t(count);
  const double inverse = 1 / count;
  if ((whole & (whole - 1)) == 0) {
    LOOP for (size_t i = 0; i < n; ++i) to[i] = float(from[i] * inverse);
  } else {
    LOOP for (size_t i = 0; i < n; ++i) to[i] = float(from[i] / count);
  }
}
