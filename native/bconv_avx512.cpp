// AVX-512 with VPOPCNTDQ: a register has one word of eight channels; a tile is four pixels by 32 channels.
#if defined(__x86_64__)
#include <immintrin.h>

#include "bconv_common.h"

#define LCRBNN_AVX512 __attribute__((target("avx512f,avx512vpopcntdq")))
#define LCRBNN_INLINE __attribute__((target("avx512f,avx512vpopcntdq"), always_inline)) inline

namespace lcrbnn {
namespace {

constexpr int kPanel = 32;

bool supported() { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vpopcntdq"); }
bool takes(const BConv&) { return true; }
size_t weight_bytes(const BConv& c) { return panel_weight_bytes(c, kPanel); }
void pack(const BConv& c, const uint64_t* weights, void* packed) { panel_pack(c, kPanel, weights, packed); }

LCRBNN_INLINE __m512i count(__m512i sum, __m512i word, const uint64_t* weights) {
  const __m512i differ = _mm512_xor_si512(word, _mm512_loadu_si512(weights));
  return _mm512_add_epi64(sum, _mm512_popcnt_epi64(differ));
}

// Sums of one pixel and, in `rest`, of the next pixels. Some compilers would keep an array in memory.
template <int kPixels>
struct Sums {
  __m512i a, b, c, d;
  Sums<kPixels - 1> rest;

  LCRBNN_INLINE void clear() { a = b = c = d = _mm512_setzero_si512(), rest.clear(); }
  LCRBNN_INLINE void add(const uint64_t* word, size_t step, const uint64_t* w) {
    const __m512i v = _mm512_set1_epi64(int64_t(*word));
    a = count(a, v, w), b = count(b, v, w + 8), c = count(c, v, w + 16), d = count(d, v, w + 24);
    rest.add(word + step, step, w);
  }
  LCRBNN_INLINE void store(uint16_t* to) const {
    _mm512_mask_cvtepi64_storeu_epi16(to, 0xFF, a);
    _mm512_mask_cvtepi64_storeu_epi16(to + 8, 0xFF, b);
    _mm512_mask_cvtepi64_storeu_epi16(to + 16, 0xFF, c);
    _mm512_mask_cvtepi64_storeu_epi16(to + 24, 0xFF, d);
    rest.store(to + kPanel);
  }
};
template <>
struct Sums<0> {
  LCRBNN_INLINE void clear() {}
  LCRBNN_INLINE void add(const uint64_t*, size_t, const uint64_t*) {}
  LCRBNN_INLINE void store(uint16_t*) const {}
};

template <int kPixels>
LCRBNN_AVX512 void tile(const BConv& c, const PanelRow& at, int x, uint16_t* counts) {
  const int words = c.words();
  const bool together = c.dil_w == 1 || c.kw == 1;  // the taps of a kernel row are contiguous
  const int across = together ? 1 : c.kw, length = together ? c.kw * words : words;
  const size_t step = size_t(c.stride_w) * words;
  const uint64_t* w = at.weights;
  Sums<kPixels> sums;
  sums.clear();
  for (int ky = 0; ky < c.kh; ++ky)
    for (int kx = 0; kx < across; ++kx) {
      const uint64_t* word = at.words + ky * c.dil_h * at.row_words + x * step + size_t(kx) * c.dil_w * words;
      for (int j = 0; j < length; ++j, ++word, w += kPanel) sums.add(word, step, w);
    }
  sums.store(counts);
}

void row(const BConv& c, const void* packed, const void* scratch, int y, int index, uint16_t* counts) {
  const PanelRow at = panel_row(c, kPanel, packed, scratch, y, index);
  int x = 0;
  for (; x + 4 <= c.out_w; x += 4) tile<4>(c, at, x, counts + size_t(x) * kPanel);
  const int left = c.out_w - x;
  if (left == 3) tile<3>(c, at, x, counts + size_t(x) * kPanel);
  if (left == 2) tile<2>(c, at, x, counts + size_t(x) * kPanel);
  if (left == 1) tile<1>(c, at, x, counts + size_t(x) * kPanel);
}

}  // namespace

const BKernel bconv_avx512 = {"avx512", supported,    takes,          kPanel, weight_bytes,
                              pack,     padded_bytes, padded_prepare, row};

}  // namespace lcrbnn
#endif
