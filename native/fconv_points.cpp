#include "fconv_points.h"

#include <cstring>

namespace lcrbnn {
namespace {

constexpr double kPoint[kPointsMost] = {0, 1, -1, 0.5, -0.5, 0, 2};  // the entry of infinity is unused

int taps_of(const FConv& c, int phase) { return (c.kw - phase + c.stride_w - 1) / c.stride_w; }
int panels_of(const FConv& c) { return (c.out_c + kFConvPanel - 1) / kFConvPanel; }
size_t round_up(size_t n) { return (n + kPointsBlock - 1) / kPointsBlock * kPointsBlock; }

// Sizes and layout. The scratch has a row of the map, [column of a period][channel][place], where a place is four
// outputs, and for each point the values of the rows of a window, [row][phase][channel][place]. Each row is stored
// twice, kh rows apart, so that every window is contiguous.
struct Layout {
  int places, period;         // number of places per row; number of columns between places
  int four, points;           // number of phases with 4 taps, which come first; number of points
  size_t line, column;        // number of floats per channel of a phase, and per column of a period
  int lines[kPointsMost];     // number of lines per row of values
  size_t values[kPointsMost], weights[kPointsMost];
  size_t scratch, panel;      // total number of floats

  explicit Layout(const FConv& c) {
    places = (c.out_w + kPointsOut - 1) / kPointsOut, period = kPointsOut * c.stride_w;
    for (four = 0; four < c.stride_w && taps_of(c, four) > 3;) ++four;
    points = four ? kPointsMost : kPointsMost - 1;
    line = round_up(size_t(places)), column = line + kPointsBlock;
    scratch = size_t(period) * size_t(c.in_c) * column, panel = 0;
    for (int k = 0; k < points; ++k) {
      lines[k] = (k == kPointsTwo ? four : c.stride_w) * c.in_c;
      values[k] = scratch, weights[k] = panel;
      scratch += 2 * size_t(c.kh) * size_t(lines[k]) * line;
      panel += size_t(c.kh) * size_t(lines[k]) * kFConvPanel;
    }
  }
};

// Transposes four floats of four places, `step` apart, to four columns.
void four_by_four(const float* from, size_t step, float* to, size_t column) {
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
  typedef float Four __attribute__((vector_size(16)));
  Four v[4];
  for (int i = 0; i < 4; ++i) std::memcpy(&v[i], from + size_t(i) * step, sizeof(Four));
  const Four a = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5), b = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5);
  const Four c = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7), d = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
  v[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5), v[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
  v[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5), v[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
  for (int i = 0; i < 4; ++i) std::memcpy(to + size_t(i) * column, &v[i], sizeof(Four));
  return;
#endif
#endif
  for (int i = 0; i < 16; ++i) to[size_t(i % 4) * column + i / 4] = from[size_t(i / 4) * step + i % 4];
}

// Copies a row of the map column by column, with zeros outside the map.
void stage(const FConv& c, const Layout& at, const float* row, float* to) {
  const int floats = at.period * c.in_c, before = c.pad_left * c.in_c, all = c.in_w * c.in_c;  // in floats
  for (int t = 0; t <= at.places; ++t) {
    const int first = t * floats - before;
    if (first >= 0 && t + 3 <= at.places && first + 4 * floats <= all) {
      for (int i = 0; i < floats; i += 4)
        four_by_four(row + first + i, size_t(floats), to + size_t(i) * at.column + t, at.column);
      t += 3;
      continue;
    }
    for (int i = first; i < first + floats; ++i)
      to[size_t(i - first) * at.column + t] = i >= 0 && i < all ? row[i] : 0;
  }
}

// Computes the values of a map row at the points and stores them twice; `to` is the first slot.
void spread_row(const FPath& path, const FConv& c, const Layout& at, const float* row, float* scratch, int slot) {
  stage(c, at, row, scratch);
  for (int phase = 0; phase < c.stride_w; ++phase)
    for (int i = 0; i < c.in_c; ++i) {
      FSpread s = {};
      s.four = phase < at.four, s.count = int(at.line);
      for (int k = 0, x = phase; k < kPointsMost - !s.four; ++k, x += c.stride_w) {
        const int next = x >= at.period, q = x - next * at.period;
        s.column[k] = scratch + size_t(q * c.in_c + i) * at.column + next;
        s.to[k] = scratch + at.values[k] + size_t(slot * at.lines[k] + phase * c.in_c + i) * at.line;
      }
      path.spread(s);
    }
  for (int k = 0; k < at.points; ++k) {
    const size_t floats = size_t(at.lines[k]) * at.line;
    float* from = scratch + at.values[k] + size_t(slot) * floats;
    std::memcpy(from + size_t(c.kh) * floats, from, sizeof(float) * floats);
  }
}

// Returns the value of the taps of a phase at a point.
double weight_at(const FConv& c, const float* taps, int phase, int point) {
  const int count = taps_of(c, phase), last = kPointsMost - 1 - (count < 4);
  const size_t step = size_t(c.stride_w) * c.in_c;
  if (point == kPointsInf) return count < 3 ? 0 : taps[(count - 1) * step];
  double value = 0, scale = 1;
  for (int i = count; i-- > 0;) value = value * kPoint[point] + taps[i * step];
  for (int k = 0; k <= last; ++k)
    if (k != point && k != kPointsInf) scale *= kPoint[point] - kPoint[k];
  return value / scale;
}

}  // namespace

bool points_fit(const FConv& c) {
  const int taps = taps_of(c, 0);
  return c.groups == 1 && c.dil_h == 1 && c.dil_w == 1 && (taps == 3 || taps == 4);
}

bool points_pay(const FConv& c) {
  // the algorithm then needs little memory
  const bool stem = c.in_c <= 8 && c.kh <= 16 && c.stride_w <= 4;
  // there are enough products per value
  const bool much = c.in_c * c.kh >= 16 && c.out_c >= kFConvPanel && c.out_w >= 16;
  if (!points_fit(c) || !stem || !much) return false;
  const Layout at(c);
  // at most half of the multiplications of a plain convolution
  return 2 * at.panel <= size_t(kPointsOut) * c.kh * c.kw * c.in_c * kFConvPanel;
}

size_t points_weight_floats(const FConv& c) { return size_t(panels_of(c)) * Layout(c).panel; }

void points_pack(const FConv& c, const float* weights, float* packed) {
  const Layout at(c);
  for (int panel = 0; panel < panels_of(c); ++panel)
    for (int k = 0; k < at.points; ++k)
      for (int row = 0; row < c.kh; ++row)
        for (int line = 0; line < at.lines[k]; ++line)
          for (int i = 0; i < kFConvPanel; ++i) {
            const int o = panel * kFConvPanel + i, phase = line / c.in_c;
            const float* taps = weights + ((size_t(o) * c.kh + row) * c.kw + phase) * c.in_c + line % c.in_c;
            *packed++ = o < c.out_c ? float(weight_at(c, taps, phase, k)) : 0;
          }
}

size_t points_scratch_floats(const FConv& c) { return Layout(c).scratch; }

void points_rows(const FPath& path, const FConv& c, const float* packed, const float* bias, const float* in, float* out,
                 float* scratch, int row_begin, int row_end, bool goes_on) {
  const Layout at(c);
  const int blocks = (at.places + path.pixels - 1) / path.pixels;
  const float none[kFConvMostPanels * kFConvPanel] = {};
  alignas(64) float sums[kPointsMost * kFConvMostPixels * kFConvMostPanels * kFConvPanel];
  for (int y = row_begin; y < row_end; ++y, out += size_t(c.out_w) * c.out_c, goes_on = true) {
    const int top = y * c.stride_h - c.pad_top, before = goes_on ? top - c.stride_h + c.kh : 0;
    const int first = top < 0 ? 0 : top, last = top + c.kh > c.in_h ? c.in_h : top + c.kh;
    for (int r = before > first ? before : first; r < last; ++r)
      spread_row(path, c, at, in + size_t(r) * c.in_w * c.in_c, scratch, r % c.kh);
    const int rows = last > first ? last - first : 0, slot = rows ? first % c.kh : 0, skipped = rows ? first - top : 0;
    for (int panel = 0, some; panel < panels_of(c); panel += some) {
      some = panels_of(c) - panel < path.panels ? panels_of(c) - panel : path.panels;
      const int channel = panel * kFConvPanel, wide = some * kFConvPanel, left = c.out_c - channel;
      float some_bias[kFConvMostPanels * kFConvPanel] = {};
      FGather g;
      g.sums = sums, g.wide = wide, g.two = at.four > 0, g.bias = some_bias;
      g.channels = left < wide ? left : wide, g.out_step = size_t(c.out_c);
      if (bias) std::memcpy(some_bias, bias + channel, sizeof(float) * size_t(g.channels));
      for (int i = 0; i < blocks; ++i) {  // blocks of places of almost equal width
        const int place = int(size_t(at.places) * i / blocks);
        const int count = int(size_t(at.places) * (i + 1) / blocks) - place;
        const int x = place * kPointsOut;
        g.point_step = size_t(count) * wide;
        for (int k = 0; k < at.points; ++k) {
          FTile tile;
          tile.pixels = scratch + at.values[k] + size_t(slot) * at.lines[k] * at.line + place;
          tile.rows = tile.across = 1, tile.length = rows * at.lines[k];
          tile.step = 1, tile.hop = at.line, tile.row_step = tile.run_step = 0;
          tile.weights = packed + panel * at.panel + at.weights[k] + size_t(skipped) * at.lines[k] * kFConvPanel;
          tile.panel_step = at.panel, tile.bias = none;
          tile.out = sums + k * g.point_step, tile.out_step = size_t(wide);
          path.tile(tile, count, some);
        }
        g.pixels = c.out_w - x < count * kPointsOut ? c.out_w - x : count * kPointsOut;
        g.out = out + size_t(x) * c.out_c + channel;
        path.gather(g);
      }
    }
  }
}

}  // namespace lcrbnn
