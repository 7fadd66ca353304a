#include "rows.h"

#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
#endif

#if defined(__clang__)
#define LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define LOOP _Pragma("GCC ivdep")
#endif

namespace lcrbnn {
namespace {

namespace scalar {
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
typedef float Pack __attribute__((vector_size(16)));
const size_t kLanes = 4;
inline Pack load(const float* from) {
  Pack v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}
inline void store(float* to, Pack v) { __builtin_memcpy(to, &v, sizeof(v)); }
inline Pack larger(Pack x, Pack y) { return ((x > y) | (x != x)) ? x : y; }  // NaN if one is NaN
#include "rows_body.h"
#undef TARGET
bool supported() { return true; }
}  // namespace scalar

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

typedef __m256 Pack;
const size_t kLanes = 8;
TARGET inline Pack load(const float* from) { return _mm256_loadu_ps(from); }
TARGET inline void store(float* to, Pack v) { _mm256_storeu_ps(to, v); }
TARGET inline Pack one(float v) { return _mm256_set1_ps(v); }
TARGET inline Pack add(Pack x, Pack y) { return _mm256_add_ps(x, y); }
TARGET inline Pack multiply(Pack x, Pack y) { return _mm256_mul_ps(x, y); }
TARGET inline Pack min(Pack x, Pack y) { return _mm256_min_ps(x, y); }  // y if one is NaN
TARGET inline Pack max(Pack x, Pack y) { return _mm256_max_ps(x, y); }  // y if one is NaN
TARGET inline Pack larger(Pack x, Pack y) {                             // NaN if one is NaN
  return _mm256_blendv_ps(_mm256_max_ps(x, y), x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
TARGET inline Pack where_below(Pack v, Pack low) {  // low if v is below zero or NaN
  return _mm256_blendv_ps(low, v, _mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_GE_OQ));
}
TARGET inline uint64_t sign_bits(Pack v, Pack t) {
  return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(v, t, _CMP_NLT_UQ)));
}
// Returns taps - 2 * count + more.
TARGET inline Pack sum_of(const uint16_t* count, int taps, const int32_t* more) {
  __m256i sum = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)count));
  sum = _mm256_sub_epi32(_mm256_set1_epi32(taps), _mm256_add_epi32(sum, sum));
  if (more) sum = _mm256_add_epi32(sum, _mm256_loadu_si256((const __m256i*)more));
  return _mm256_cvtepi32_ps(sum);
}
#include "rows_finish.h"
#include "rows_body.h"
#undef TARGET
bool supported() { return __builtin_cpu_supports("avx2"); }
}  // namespace avx2

namespace avx512 {
#define TARGET __attribute__((target("avx512f,avx512bw")))
TARGET inline unsigned signs(const float* x, const float* t) { return avx2::signs(x, t); }
TARGET inline unsigned signs_one(const float* x, float t) { return avx2::signs_one(x, t); }
TARGET inline unsigned below(const uint16_t* count, const uint16_t* limit) { return avx2::below(count, limit); }
TARGET inline uint32_t below32(const uint16_t* count, const uint16_t* limit) {
  return _mm512_cmplt_epu16_mask(_mm512_loadu_si512(count), _mm512_loadu_si512(limit));
}
typedef __m512 Pack;
const size_t kLanes = 16;
const __mmask16 kAll = 0xFFFF;  // for masked intrinsics: GCC warns in its header about the others
TARGET inline Pack load(const float* from) { return _mm512_loadu_ps(from); }
TARGET inline void store(float* to, Pack v) { _mm512_storeu_ps(to, v); }
TARGET inline Pack one(float v) { return _mm512_set1_ps(v); }
TARGET inline Pack add(Pack x, Pack y) { return _mm512_add_ps(x, y); }
TARGET inline Pack multiply(Pack x, Pack y) { return _mm512_mul_ps(x, y); }
TARGET inline Pack min(Pack x, Pack y) { return _mm512_maskz_min_ps(kAll, x, y); }
TARGET inline Pack max(Pack x, Pack y) { return _mm512_maskz_max_ps(kAll, x, y); }
TARGET inline Pack larger(Pack x, Pack y) {
  return _mm512_mask_mov_ps(max(x, y), _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}
TARGET inline Pack where_below(Pack v, Pack low) {
  return _mm512_mask_mov_ps(low, _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_GE_OQ), v);
}
TARGET inline uint64_t sign_bits(Pack v, Pack t) { return _mm512_cmp_ps_mask(v, t, _CMP_NLT_UQ); }
TARGET inline Pack sum_of(const uint16_t* count, int taps, const int32_t* more) {
  __m512i sum = _mm512_maskz_cvtepu16_epi32(kAll, _mm256_loadu_si256((const __m256i*)count));
  sum = _mm512_sub_epi32(_mm512_set1_epi32(taps), _mm512_add_epi32(sum, sum));
  if (more) sum = _mm512_add_epi32(sum, _mm512_loadu_si512(more));
  return _mm512_maskz_cvtepi32_ps(kAll, sum);
}
#define REST avx2::finish_some<1>  // n is a multiple of 8
#include "rows_finish.h"
#undef REST
#include "rows_body.h"
#undef TARGET
bool supported() { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"); }
}  // namespace avx512

#elif defined(__aarch64__) || defined(__wasm_simd128__)
typedef float Four __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));
typedef uint16_t Eight __attribute__((vector_size(16)));
typedef uint16_t HalfEight __attribute__((vector_size(8)));
#define TARGET
#if defined(__aarch64__)
namespace neon {
inline Eight narrow(Ints low, Ints high) {
  return Eight(vcombine_u16(vmovn_u32(uint32x4_t(low)), vmovn_u32(uint32x4_t(high))));
}
inline unsigned mask_bits(Eight mask) {
  const Eight places = {1, 2, 4, 8, 16, 32, 64, 128};
  return vaddvq_u16(uint16x8_t(mask & places));
}
#else
namespace simd128 {
inline Eight narrow(Ints low, Ints high) { return Eight(wasm_i16x8_narrow_i32x4(v128_t(low), v128_t(high))); }
inline unsigned mask_bits(Eight mask) { return unsigned(wasm_i16x8_bitmask(v128_t(mask))); }
#endif
#include "rows_eight.h"
#include "rows_finish.h"
#include "rows_body.h"
#undef TARGET
bool supported() { return true; }
}  // namespace neon or simd128
#endif

#define ROW(space, finish)                                                                       \
  {#space,          space::supported,    space::counts_row, finish,           space::affine_row, \
   space::add_row,  space::hardtanh_row, space::relu_row,   space::prelu_row, space::shift_row,  \
   space::multiply_row, space::activation_row, space::matmul_rows,                               \
   space::bits_row, space::limits_row,   space::pool_row,   space::sum_row,   space::divide_row}

// The fastest first; the last one runs everywhere.
const RowOps kRows[] = {
#if defined(__x86_64__)
    ROW(avx512, avx512::finish_row), ROW(avx2, avx2::finish_row),
#elif defined(__aarch64__)
    ROW(neon, neon::finish_row),
#elif defined(__wasm_simd128__)
    ROW(simd128, simd128::finish_row),
#endif
    ROW(scalar, nullptr)};

}  // namespace

const RowOps& choose_rows(const char* forced) {
  const char* name = forced && *forced ? forced : std::getenv("LCRBNN_KERNEL");
  const RowOps* best = nullptr;
  for (const RowOps& rows : kRows) {
    if (!rows.supported()) continue;
    if (name && std::strcmp(name, rows.name) == 0) return rows;
    if (!best) best = &rows;
  }
  return *best;
}

}  // namespace lcrbnn
