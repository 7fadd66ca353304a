// AVX-512: up to 14 pixels by 32 channels in registers.
#include "fconv_points.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define LCRBNN_AVX512 __attribute__((target("avx512f")))
#define LCRBNN_INLINE __attribute__((target("avx512f"), always_inline)) inline

namespace lcrbnn {
namespace {

typedef __m512 Pack;
#define TARGET LCRBNN_AVX512
#include "fconv_points_body.h"
#undef TARGET

// One or two panels of 16 channels.
template <int kPanels>
struct Wide {
  __m512 low, high;

  LCRBNN_INLINE void clear() { low = high = _mm512_setzero_ps(); }
  LCRBNN_INLINE void load(const float* from, size_t step) {
    low = _mm512_loadu_ps(from);
    if (kPanels > 1) high = _mm512_loadu_ps(from + step);
  }
  LCRBNN_INLINE void multiply(__m512 v, const Wide& w) {
    low = _mm512_fmadd_ps(v, w.low, low);
    if (kPanels > 1) high = _mm512_fmadd_ps(v, w.high, high);
  }
  LCRBNN_INLINE void add(const Wide& other) {
    low = _mm512_add_ps(low, other.low);
    if (kPanels > 1) high = _mm512_add_ps(high, other.high);
  }
  LCRBNN_INLINE void store(float* to) const {
    _mm512_storeu_ps(to, low);
    if (kPanels > 1) _mm512_storeu_ps(to + kFConvPanel, high);
  }
};

// Sums at one pixel and, in `rest`, at the next pixels: see fconv_avx2.cpp.
template <int kPixels, int kPanels>
struct Sums {
  Wide<kPanels> sum;
  Sums<kPixels - 1, kPanels> rest;

  LCRBNN_INLINE void set(const Wide<kPanels>& v) { sum = v, rest.set(v); }
  LCRBNN_INLINE void multiply(const float* from, size_t step, const Wide<kPanels>& w) {
    sum.multiply(_mm512_set1_ps(*from), w);
    rest.multiply(from + step, step, w);
  }
  LCRBNN_INLINE void add(const Sums& other) { sum.add(other.sum), rest.add(other.rest); }
  LCRBNN_INLINE void store(float* to, size_t step) const { sum.store(to), rest.store(to + step, step); }
};
template <int kPanels>
struct Sums<0, kPanels> {
  LCRBNN_INLINE void set(const Wide<kPanels>&) {}
  LCRBNN_INLINE void multiply(const float*, size_t, const Wide<kPanels>&) {}
  LCRBNN_INLINE void add(const Sums&) {}
  LCRBNN_INLINE void store(float*, size_t) const {}
};

// With few pixels, two taps are added to separate sums, so that additions do not wait for each other.
template <int kPixels, int kPanels>
LCRBNN_AVX512 void tile(const FTile& t) {
  constexpr bool kTwo = kPixels * kPanels < 8;
  Wide<kPanels> first, w;
  Sums<kPixels, kPanels> sums;
  Sums<kTwo ? kPixels : 0, kPanels> odd;
  first.clear();
  odd.set(first);
  first.load(t.bias, kFConvPanel);
  sums.set(first);
  const float* weight = t.weights;
  const size_t step = t.step, hop = t.hop, panel_step = t.panel_step;
  for (int r = 0; r < t.rows; ++r)
    for (int a = 0; a < t.across; ++a) {
      const float* from = t.pixels + r * t.row_step + a * t.run_step;
      int k = t.length;
      for (; kTwo && k >= 2; k -= 2, from += 2 * hop, weight += 2 * kFConvPanel) {
        w.load(weight, panel_step);
        sums.multiply(from, step, w);
        w.load(weight + kFConvPanel, panel_step);
        odd.multiply(from + hop, step, w);
      }
      for (; k > 0; --k, from += hop, weight += kFConvPanel) {
        w.load(weight, panel_step);
        sums.multiply(from, step, w);
      }
    }
  if constexpr (kTwo) sums.add(odd);
  sums.store(t.out, t.out_step);
}

template <int kPanels>
void any_pixels(const FTile& t, int pixels) {
  switch (pixels) {
    case 1: return tile<1, kPanels>(t);
    case 2: return tile<2, kPanels>(t);
    case 3: return tile<3, kPanels>(t);
    case 4: return tile<4, kPanels>(t);
    case 5: return tile<5, kPanels>(t);
    case 6: return tile<6, kPanels>(t);
    case 7: return tile<7, kPanels>(t);
    case 8: return tile<8, kPanels>(t);
    case 9: return tile<9, kPanels>(t);
    case 10: return tile<10, kPanels>(t);
    case 11: return tile<11, kPanels>(t);
    case 12: return tile<12, kPanels>(t);
    case 13: return tile<13, kPanels>(t);
    default: return tile<14, kPanels>(t);
  }
}

bool supported() { return __builtin_cpu_supports("avx512f"); }

void any_tile(const FTile& t, int pixels, int panels) {
  return panels > 1 ? any_pixels<2>(t, pixels) : any_pixels<1>(t, pixels);
}

}  // namespace

const FPath fconv_avx512 = {"avx512", supported, 14, 2, any_tile, spread, gather};

}  // namespace lcrbnn
#endif
