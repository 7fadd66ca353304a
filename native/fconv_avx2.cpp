// AVX2 and FMA: up to 6 pixels by 16 channels in registers.
#include "fconv_points.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define LCRBNN_AVX2 __attribute__((target("avx2,fma")))
#define LCRBNN_INLINE __attribute__((target("avx2,fma"), always_inline)) inline

namespace lcrbnn {
namespace {

typedef __m256 Pack;
#define TARGET LCRBNN_AVX2
#include "fconv_points_body.h"
#undef TARGET

// Sums of 16 channels at one pixel and, in `rest`, at the next pixels. Some compilers would keep an array in memory.
template <int kPixels>
struct Sums {
  __m256 low, high;
  Sums<kPixels - 1> rest;

  LCRBNN_INLINE void set(__m256 l, __m256 h) { low = l, high = h, rest.set(l, h); }
  LCRBNN_INLINE void multiply(const float* from, size_t step, __m256 w0, __m256 w1) {
    const __m256 v = _mm256_broadcast_ss(from);
    low = _mm256_fmadd_ps(v, w0, low);
    high = _mm256_fmadd_ps(v, w1, high);
    rest.multiply(from + step, step, w0, w1);
  }
  LCRBNN_INLINE void add(const Sums& other) {
    low = _mm256_add_ps(low, other.low);
    high = _mm256_add_ps(high, other.high);
    rest.add(other.rest);
  }
  LCRBNN_INLINE void store(float* to, size_t step) const {
    _mm256_storeu_ps(to, low);
    _mm256_storeu_ps(to + 8, high);
    rest.store(to + step, step);
  }
};
template <>
struct Sums<0> {
  LCRBNN_INLINE void set(__m256, __m256) {}
  LCRBNN_INLINE void multiply(const float*, size_t, __m256, __m256) {}
  LCRBNN_INLINE void add(const Sums&) {}
  LCRBNN_INLINE void store(float*, size_t) const {}
};

// With few pixels, taps are added to several sums in turn, so that additions do not wait for each other.
template <int kPixels, int kTurns>
struct Turns {
  Sums<kPixels> sums;
  Turns<kPixels, kTurns - 1> rest;

  LCRBNN_INLINE void clear() { sums.set(_mm256_setzero_ps(), _mm256_setzero_ps()), rest.clear(); }
  LCRBNN_INLINE void multiply(const float* from, size_t hop, size_t step, const float* w) {
    sums.multiply(from, step, _mm256_loadu_ps(w), _mm256_loadu_ps(w + 8));
    rest.multiply(from + hop, hop, step, w + kFConvPanel);
  }
  LCRBNN_INLINE void gather() { rest.gather(), rest.give(sums); }
  LCRBNN_INLINE void give(Sums<kPixels>& to) const { to.add(sums); }
};
template <int kPixels>
struct Turns<kPixels, 0> {
  LCRBNN_INLINE void clear() {}
  LCRBNN_INLINE void multiply(const float*, size_t, size_t, const float*) {}
  LCRBNN_INLINE void gather() {}
  LCRBNN_INLINE void give(Sums<kPixels>&) const {}
};

template <int kPixels, int kTurns>
LCRBNN_AVX2 void tile(const FTile& t) {
  Turns<kPixels, kTurns> turns;
  turns.clear();
  turns.sums.set(_mm256_loadu_ps(t.bias), _mm256_loadu_ps(t.bias + 8));
  const float* w = t.weights;
  const size_t step = t.step, hop = t.hop;
  for (int r = 0; r < t.rows; ++r)
    for (int a = 0; a < t.across; ++a) {
      const float* from = t.pixels + r * t.row_step + a * t.run_step;
      int k = t.length;
      for (; k >= kTurns; k -= kTurns, from += kTurns * hop, w += kTurns * kFConvPanel)
        turns.multiply(from, hop, step, w);
      for (; k > 0; --k, from += hop, w += kFConvPanel)
        turns.sums.multiply(from, step, _mm256_loadu_ps(w), _mm256_loadu_ps(w + 8));
    }
  turns.gather();
  turns.sums.store(t.out, t.out_step);
}

bool supported() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

void any_tile(const FTile& t, int pixels, int) {
  switch (pixels) {
    case 1: return tile<1, 4>(t);
    case 2: return tile<2, 2>(t);
    case 3: return tile<3, 2>(t);
    case 4: return tile<4, 1>(t);
    case 5: return tile<5, 1>(t);
    default: return tile<6, 1>(t);
  }
}

}  // namespace

const FPath fconv_avx2 = {"avx2", supported, 6, 1, any_tile, spread, gather};

}  // namespace lcrbnn
#endif
