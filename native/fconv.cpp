#include "fconv.h"

#include <cstdlib>
#include <cstring>

#include "fconv_points.h"

namespace lcrbnn {
namespace {


int group_in(const FConv& c) { return c.in_c / c.groups; }
int group_out(const FConv& c) { return c.out_c / c.groups; }
int panels(const FConv& c) { return (group_out(c) + kFConvPanel - 1) / kFConvPanel; }
int padded_cols(const FConv& c) { return (c.out_w - 1) * c.stride_w + (c.kw - 1) * c.dil_w + 1; }

// Returns whether windows reach outside the map; if so, rows are first copied with padding.
bool needs_copy(const FConv& c) { return c.pad_left > 0 || padded_cols(c) > c.in_w; }

void copy_row(const FConv& c, const float* from, float* to) {
  const size_t cols = padded_cols(c), before = c.pad_left < int(cols) ? c.pad_left : cols, rest = cols - before;
  const size_t inside = rest < size_t(c.in_w) ? rest : c.in_w;
  std::memset(to, 0, sizeof(float) * before * c.in_c);
  std::memcpy(to + before * c.in_c, from, sizeof(float) * inside * c.in_c);
  std::memset(to + (before + inside) * c.in_c, 0, sizeof(float) * (rest - inside) * c.in_c);
}

// A vector of four floats, for any CPU with 128-bit vectors.
typedef float Four __attribute__((vector_size(16)));
typedef Four Pack;
#define TARGET
#include "fconv_points_body.h"
#undef TARGET


// Sums of 16 channels at one pixel and, in `rest`, at the next pixels: see fconv_avx2.cpp.
template <int kPixels>
struct Sums {
  Four a, b, c, d;
  Sums<kPixels - 1> rest;

  void set(const float* v) { a = get(v), b = get(v + 4), c = get(v + 8), d = get(v + 12), rest.set(v); }
  void multiply(const float* from, size_t step, const float* w) {
    const Four v = {*from, *from, *from, *from};
    a += v * get(w), b += v * get(w + 4), c += v * get(w + 8), d += v * get(w + 12);
    rest.multiply(from + step, step, w);
  }
  void store(float* to, size_t step) const {
    const Four all[4] = {a, b, c, d};
    std::memcpy(to, all, sizeof(all));
    rest.store(to + step, step);
  }
};
template <>
struct Sums<0> {
  void set(const float*) {}
  void multiply(const float*, size_t, const float*) {}
  void store(float*, size_t) const {}
};

template <int kPixels>
void portable(const FTile& t) {
  Sums<kPixels> sums;
  sums.set(t.bias);
  const float* w = t.weights;
  for (int r = 0; r < t.rows; ++r)
    for (int a = 0; a < t.across; ++a) {
      const float* from = t.pixels + r * t.row_step + a * t.run_step;
      for (int k = 0; k < t.length; ++k, from += t.hop, w += kFConvPanel) sums.multiply(from, t.step, w);
    }
  sums.store(t.out, t.out_step);
}

void tile(const FTile& t, int pixels, int) {
  switch (pixels) {
    case 1: return portable<1>(t);
    case 2: return portable<2>(t);
    case 3: return portable<3>(t);
    case 4: return portable<4>(t);
    case 5: return portable<5>(t);
    default: return portable<6>(t);
  }
}

bool everywhere() { return true; }

#if defined(__wasm__)
constexpr int kPixels = 2;  // sums of more pixels do not stay in registers in WebAssembly
#else
constexpr int kPixels = 6;
#endif

}  // namespace

const FPath fconv_scalar = {"scalar", everywhere, kPixels, 1, tile, spread, gather};
const FPath* const fconv_paths[] = {
#if defined(__x86_64__)
    &fconv_avx512, &fconv_avx2,
#endif
    &fconv_scalar};
const int fconv_path_count = sizeof(fconv_paths) / sizeof(fconv_paths[0]);

const FPath& choose_fconv() {
  const char* name = std::getenv("LCRBNN_KERNEL");
  const FPath* best = nullptr;
  for (const FPath* path : fconv_paths) {
    if (!path->supported()) continue;
    if (name && std::strcmp(name, path->name) == 0) return *path;
    if (!best) best = path;
  }
  return *best;
}

size_t fconv_weight_floats(const FConv& c) {
  if (c.points) return points_weight_floats(c);
  return size_t(c.groups) * panels(c) * c.kh * c.kw * group_in(c) * kFConvPanel;
}

void fconv_pack(const FConv& c, const float* weights, float* packed) {
  if (c.points) return points_pack(c, weights, packed);
  const size_t taps = size_t(c.kh) * c.kw * group_in(c);
  for (int g = 0; g < c.groups; ++g)
    for (int panel = 0; panel < panels(c); ++panel)
      for (size_t k = 0; k < taps; ++k)
        for (int i = 0; i < kFConvPanel; ++i) {
          const int o = panel * kFConvPanel + i;
          *packed++ = o < group_out(c) ? weights[(size_t(g) * group_out(c) + o) * taps + k] : 0;
        }
}

size_t fconv_scratch_floats(const FConv& c) {
  if (c.points) return points_scratch_floats(c);
  return needs_copy(c) ? size_t(c.kh) * padded_cols(c) * c.in_c : 0;
}

void fconv_rows(const FPath& path, const FConv& c, const float* packed, const float* bias, const float* in, float* out,
                float* scratch, int row_begin, int row_end, bool goes_on) {
  if (c.points) return points_rows(path, c, packed, bias, in, out, scratch, row_begin, row_end, goes_on);
  const bool copy = needs_copy(c), together = c.groups == 1 && (c.dil_w == 1 || c.kw == 1);
  const size_t map_row = size_t(c.in_w) * c.in_c, scratch_row = size_t(padded_cols(c)) * c.in_c;
  const size_t panel_floats = size_t(c.kh) * c.kw * group_in(c) * kFConvPanel;
  const int tiles = (c.out_w + path.pixels - 1) / path.pixels;
  for (int y = row_begin; y < row_end; ++y, out += size_t(c.out_w) * c.out_c) {
    // Kernel rows [first, last) are inside the map.
    const int top = y * c.stride_h - c.pad_top;
    int first = 0, last = c.kh;
    while (first < last && top + first * c.dil_h < 0) ++first;
    while (last > first && top + (last - 1) * c.dil_h >= c.in_h) --last;
    for (int k = first; copy && k < last; ++k)
      copy_row(c, in + (top + k * c.dil_h) * map_row, scratch + (k - first) * scratch_row);
    const float* base = copy ? scratch : first < last ? in + (top + first * c.dil_h) * map_row : in;

    FTile tile;
    tile.step = size_t(c.stride_w) * c.in_c;
    tile.panel_step = panel_floats;
    tile.rows = last - first;
    tile.across = together ? 1 : c.kw;
    tile.length = together ? c.kw * c.in_c : group_in(c);
    tile.row_step = copy ? scratch_row : c.dil_h * map_row;
    tile.run_step = size_t(c.dil_w) * c.in_c;
    tile.hop = 1;
    for (int g = 0; g < c.groups; ++g)
      for (int panel = 0, some; panel < panels(c); panel += some) {
        some = panels(c) - panel < path.panels ? panels(c) - panel : path.panels;
        const int channel = g * group_out(c) + panel * kFConvPanel, left = group_out(c) - panel * kFConvPanel;
        const int wide = some * kFConvPanel, channels = left < wide ? left : wide;
        float some_bias[kFConvMostPanels * kFConvPanel] = {};
        float part[kFConvMostPixels * kFConvMostPanels * kFConvPanel];
        if (bias) std::memcpy(some_bias, bias + channel, sizeof(float) * channels);
        tile.bias = some_bias;
        tile.weights = packed + (size_t(g) * panels(c) + panel) * panel_floats +
                       size_t(first) * c.kw * group_in(c) * kFConvPanel;
        for (int i = 0; i < tiles; ++i) {  // tiles of almost equal width
          const int x = int(size_t(c.out_w) * i / tiles), pixels = int(size_t(c.out_w) * (i + 1) / tiles) - x;
          float* to = out + size_t(x) * c.out_c + channel;
          tile.pixels = base + x * tile.step + size_t(g) * group_in(c);
          tile.out = channels == wide ? to : part;
          tile.out_step = channels == wide ? c.out_c : wide;
          path.tile(tile, pixels, some);
          for (int p = 0; channels < wide && p < pixels; ++p)
            std::memcpy(to + size_t(p) * c.out_c, part + p * wide, sizeof(float) * channels);
        }
      }
  }
}

}  // namespace lcrbnn
