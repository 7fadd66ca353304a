// The loops of fconv_points.h, included once per instruction set, with TARGET and the vector type Pack defined. No
// header may be included here.
constexpr int kPack = sizeof(Pack) / sizeof(float);

TARGET inline Pack get(const float* from) {
  Pack v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}
TARGET inline void put(float* to, Pack v) { __builtin_memcpy(to, &v, sizeof(v)); }

// Multiplies the polynomial with coefficients y by (x - b) for all points b except one, for each point in turn.
TARGET inline void six_points(Pack y0, Pack y1, Pack y2, Pack y3, Pack y4, Pack y5, float* const* to, int i) {
  const Pack even = y4 - 0.25f * y2, odd = y3 - 0.25f * y1, more = y4 - y2, less = 0.5f * (y3 - y1);
  put(to[0] + i, even - y2 + 0.25f * y0);
  put(to[1] + i, even + odd);
  put(to[2] + i, even - odd);
  put(to[3] + i, more + less);
  put(to[4] + i, more - less);
  put(to[kPointsInf] + i, y5 - y3 - 0.5f * less);
}

TARGET void spread(const FSpread& s) {
  for (int i = 0; i < s.count; i += kPack) {
    const Pack x0 = get(s.column[0] + i), x1 = get(s.column[1] + i), x2 = get(s.column[2] + i);
    const Pack x3 = get(s.column[3] + i), x4 = get(s.column[4] + i), x5 = get(s.column[5] + i);
    if (!s.four) {
      six_points(x0, x1, x2, x3, x4, x5, s.to, i);
      continue;
    }
    // With 4 taps there is one more factor, (x - 2).
    const Pack x6 = get(s.column[6] + i);
    six_points(x1 - 2.0f * x0, x2 - 2.0f * x1, x3 - 2.0f * x2, x4 - 2.0f * x3, x5 - 2.0f * x4, x6 - 2.0f * x5, s.to, i);
    put(s.to[kPointsTwo] + i, x5 - 1.25f * x3 + 0.25f * x1);
  }
}

// 16 channels of four pixels.
TARGET inline void four_pixels(const float* m, size_t step, bool two, const float* bias, float* to, size_t to_step) {
  for (int i = 0; i < kFConvPanel; i += kPack, m += kPack, to += kPack, bias += kPack) {
    const Pack m1 = get(m + step), m2 = get(m + 2 * step), m3 = get(m + 3 * step), m4 = get(m + 4 * step);
    const Pack sum = m1 + m2, apart = m1 - m2, halves = m3 + m4, less = m3 - m4, b = get(bias);
    Pack y0 = b + (get(m) + sum + halves), y1 = b + (apart + 0.5f * less);
    Pack y2 = b + (sum + 0.25f * halves), y3 = b + (apart + 0.125f * less + get(m + kPointsInf * step));
    if (two) {
      const Pack m6 = get(m + kPointsTwo * step);
      y0 += m6, y1 += 2.0f * m6, y2 += 4.0f * m6, y3 += 8.0f * m6;
    }
    put(to, y0), put(to + to_step, y1), put(to + 2 * to_step, y2), put(to + 3 * to_step, y3);
  }
}

TARGET void gather(const FGather& g) {
  for (int x = 0; x < g.pixels; x += kPointsOut)
    for (int c = 0; c < g.wide; c += kFConvPanel) {
      const float* sums = g.sums + size_t(x / kPointsOut) * size_t(g.wide) + c;
      const int pixels = g.pixels - x, channels = g.channels - c;
      float *out = g.out + size_t(x) * g.out_step + c, part[kPointsOut * kFConvPanel];
      if (pixels >= kPointsOut && channels >= kFConvPanel) {
        four_pixels(sums, g.point_step, g.two, g.bias + c, out, g.out_step);
        continue;
      }
      four_pixels(sums, g.point_step, g.two, g.bias + c, part, kFConvPanel);
      for (int p = 0; p < pixels && p < kPointsOut; ++p)
        for (int i = 0; i < channels && i < kFConvPanel; ++i)
          out[size_t(p) * g.out_step + i] = part[p * kFConvPanel + i];
    }
}
