#include "rows.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__clang__)
#define LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define LOOP _Pragma("GCC ivdep")
#endif

namespace lcrbnn {
namespace {

namespace plain {
#define TARGET
inline unsigned signs(const float* x, const float* t) {
  unsigned bits = 0;
  for (int i = 0; i < 8; ++i) bits |= unsigned(!(x[i] < t[i])) << i;
  return bits;
}
inline unsigned signs_one(const float* x, float t) {
  unsigned bits = 0;
  for (int i = 0; i < 8; ++i) bits |= unsigned(!(x[i] < t)) << i;
  return bits;
}
inline unsigned below(const uint16_t* count, const uint16_t* limit) {
  unsigned bits = 0;
  for (int i = 0; i < 8; ++i) bits |= unsigned(count[i] < limit[i]) << i;
  return bits;
}
inline uint32_t below32(const uint16_t* count, const uint16_t* limit) {
  uint32_t bits = 0;
  for (int i = 0; i < 32; ++i) bits |= uint32_t(count[i] < limit[i]) << i;
  return bits;
}
#include "rows_body.h"
#undef TARGET
bool supported() { return true; }
}  // namespace plain

#if defined(__x86_64__)
namespace avx2 {
#define TARGET __attribute__((target("avx2")))
TARGET inline unsigned signs(const float* x, const float* t) {
  return unsigned(_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x), _mm256_loadu_ps(t), _CMP_NLT_UQ)));
}
TARGET inline unsigned signs_one(const float* x, float t) {
  return unsigned(_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x), _mm256_set1_ps(t), _CMP_NLT_UQ)));
}
TARGET inline unsigned below(const uint16_t* count, const uint16_t* limit) {
  const __m128i left = _mm_subs_epu16(_mm_loadu_si128((const __m128i*)limit), _mm_loadu_si128((const __m128i*)count));
  const __m128i none = _mm_cmpeq_epi16(left, _mm_setzero_si128());
  return ~unsigned(_mm_movemask_epi8(_mm_packs_epi16(none, none))) & 255u;
}
TARGET inline __m256i none_left(const uint16_t* count, const uint16_t* limit) {
  const __m256i left =
      _mm256_subs_epu16(_mm256_loadu_si256((const __m256i*)limit), _mm256_loadu_si256((const __m256i*)count));
  return _mm256_cmpeq_epi16(left, _mm256_setzero_si256());
}
TARGET inline uint32_t below32(const uint16_t* count, const uint16_t* limit) {
  const __m256i both = _mm256_packs_epi16(none_left(count, limit), none_left(count + 16, limit + 16));
  return ~uint32_t(_mm256_movemask_epi8(_mm256_permute4x64_epi64(both, 0xD8)));
}

// 8 * kWide channels of one pixel, which stay in registers from the counts to the bits: hence four names, no array.
#define EACH(DO)            \
  {                         \
    DO(v0, 0)               \
    if (kWide > 1) {        \
      DO(v1, 8)             \
    }                       \
    if (kWide > 2) {        \
      DO(v2, 16) DO(v3, 24) \
    }                       \
  }
#define LOAD(p, i) _mm256_loadu_ps((p) + c + (i))
#define COUNT(v, i) v = scaled(r, count + (i), more ? more + (i) : nullptr, c + (i));
#define AFFINE(v, i) v = _mm256_add_ps(_mm256_mul_ps(LOAD(m->a, i), v), LOAD(m->b, i));
#define ADD(v, i) v = _mm256_add_ps(v, _mm256_loadu_ps(from + (i)));
#define HARDTANH(v, i) v = _mm256_min_ps(_mm256_set1_ps(1.0f), _mm256_max_ps(_mm256_set1_ps(-1.0f), v));
#define RELU(v, i) v = _mm256_max_ps(_mm256_setzero_ps(), v);
#define PRELU(v, i) \
  v = _mm256_blendv_ps(_mm256_mul_ps(LOAD(m->a, i), v), v, _mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_GE_OQ));
#define SHIFT(v, i) v = _mm256_add_ps(v, LOAD(m->b, i));
#define STORE(v, i) _mm256_storeu_ps(to + (i), v);
#define BITS(v, i) word |= uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(v, LOAD(m->a, i), _CMP_NLT_UQ))) << (i);

TARGET inline __m256 scaled(const CountsRow& r, const uint16_t* count, const int32_t* more, size_t c) {
  __m256i sum = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)count));
  sum = _mm256_sub_epi32(_mm256_set1_epi32(r.taps), _mm256_add_epi32(sum, sum));
  if (more) sum = _mm256_add_epi32(sum, _mm256_loadu_si256((const __m256i*)more));
  return _mm256_add_ps(_mm256_mul_ps(LOAD(r.a, 0), _mm256_cvtepi32_ps(sum)), LOAD(r.b, 0));
}

template <int kWide>
TARGET inline void finish_some(const CountsRow& r, const int32_t* more, const Micro* m, const Micro* end, size_t x,
                               size_t c) {
  __m256 v0 = _mm256_setzero_ps(), v1 = v0, v2 = v0, v3 = v0;
  const uint16_t* count = r.counts + x * size_t(r.panel) + c;
  if (more) more += c;
  EACH(COUNT)
  for (; m < end; ++m) {
    switch (m->kind) {
      case MicroKind::affine: EACH(AFFINE) break;
      case MicroKind::add: {
        const float* from = m->a + x * m->stride + c;
        EACH(ADD)
        break;
      }
      case MicroKind::hardtanh: EACH(HARDTANH) break;  // the second operand is the answer where one is NaN
      case MicroKind::relu: EACH(RELU) break;
      case MicroKind::prelu: EACH(PRELU) break;
      case MicroKind::shift: EACH(SHIFT) break;
      case MicroKind::store: {
        float* to = m->to + x * m->stride + c;  // once: the compiler must think that a store may change what m has
        EACH(STORE)
        break;
      }
      case MicroKind::bits: {
        uint32_t word = 0;
        EACH(BITS)
        __builtin_memcpy(m->bits + x * m->stride + c / 8, &word, kWide);
        break;
      }
    }
  }
}

TARGET void finish_row(const CountsRow& row, const Micro* micros, int count) {
  const CountsRow r = row;
  for (int x = 0; x < r.pixels; ++x) {
    const bool plain = !r.correction || r.column[x] == r.plain;
    const int32_t* more = plain ? nullptr : r.correction + size_t(r.column[x]) * r.correction_stride;
    const Micro* end = micros + count;
    size_t c = 0;
    const size_t n = size_t(r.n);
    for (; c + 32 <= n; c += 32) finish_some<4>(r, more, micros, end, size_t(x), c);
    for (; c + 16 <= n; c += 16) finish_some<2>(r, more, micros, end, size_t(x), c);
    for (; c < n; c += 8) finish_some<1>(r, more, micros, end, size_t(x), c);
  }
}
#include "rows_body.h"
#undef TARGET
bool supported() { return __builtin_cpu_supports("avx2"); }
}  // namespace avx2
#endif

#define ROW(space, finish)                                                                       \
  {#space,          space::supported,    space::counts_row, finish,           space::affine_row, \
   space::add_row,  space::hardtanh_row, space::relu_row,   space::prelu_row, space::shift_row,  \
   space::bits_row, space::limits_row,   space::max_row,    space::sum_row}

// The best first; the last one runs everywhere.
const RowOps kRows[] = {
#if defined(__x86_64__)
    ROW(avx2, avx2::finish_row),
#endif
    ROW(plain, nullptr)};

}  // namespace

const RowOps& choose_rows() {
  const RowOps* rows = kRows;
  while (!rows->supported()) ++rows;
  return *rows;
}

}  // namespace lcrbnn
