#include "sha256.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lcrbnn {
namespace {

alignas(16) const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t turn(uint32_t x, int n) { return x >> n | x << (32 - n); }

uint32_t big(const uint8_t* p) { return uint32_t(p[0]) << 24 | uint32_t(p[1]) << 16 | uint32_t(p[2]) << 8 | p[3]; }

void blocks_plain(uint32_t state[8], const uint8_t* data, size_t count) {
  for (; count; --count, data += 64) {
    uint32_t w[64];
    for (int i = 0; i < 16; ++i) w[i] = big(data + 4 * i);
    for (int i = 16; i < 64; ++i) {
      const uint32_t s0 = turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3;
      const uint32_t s1 = turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10;
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6],
             h = state[7];
    for (int i = 0; i < 64; ++i) {
      const uint32_t t1 = h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + w[i];
      const uint32_t t2 = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e, state[5] += f, state[6] += g,
        state[7] += h;
  }
}

#if defined(__x86_64__)
// Uses the SHA instructions of the CPU, which are about six times as fast. Large files are hashed at each load.
__attribute__((target("sha,sse4.1"))) void blocks_sha(uint32_t state[8], const uint8_t* data, size_t count) {
  const __m128i order = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  const __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i*)state), 0xB1);        // CDAB
  const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i*)(state + 4)), 0x1B);  // EFGH
  __m128i s0 = _mm_alignr_epi8(abcd, efgh, 8), s1 = _mm_blend_epi16(efgh, abcd, 0xF0);         // ABEF, CDGH
  for (; count; --count, data += 64) {
    const __m128i keep0 = s0, keep1 = s1;
    __m128i m[4];
    for (int i = 0; i < 4; ++i) m[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i*)(data + 16 * i)), order);
    for (int i = 0; i < 16; ++i) {
      const __m128i now = m[i & 3];
      const __m128i add = _mm_add_epi32(now, _mm_load_si128((const __m128i*)(K + 4 * i)));
      s1 = _mm_sha256rnds2_epu32(s1, s0, add);
      s0 = _mm_sha256rnds2_epu32(s0, s1, _mm_shuffle_epi32(add, 0x0E));
      const __m128i last = m[(i + 3) & 3];
      __m128i next = _mm_sha256msg1_epu32(now, m[(i + 1) & 3]);
      next = _mm_add_epi32(next, _mm_alignr_epi8(last, m[(i + 2) & 3], 4));
      m[i & 3] = _mm_sha256msg2_epu32(next, last);
    }
    s0 = _mm_add_epi32(s0, keep0);
    s1 = _mm_add_epi32(s1, keep1);
  }
  const __m128i t0 = _mm_shuffle_epi32(s0, 0x1B), t1 = _mm_shuffle_epi32(s1, 0xB1);  // FEBA, DCHG
  _mm_storeu_si128((__m128i*)state, _mm_blend_epi16(t0, t1, 0xF0));
  _mm_storeu_si128((__m128i*)(state + 4), _mm_alignr_epi8(t1, t0, 8));
}

bool has_sha() {
  uint32_t a = 7, b, c = 0, d;
  __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  return (b >> 29 & 1) && __builtin_cpu_supports("sse4.1");
}
#endif

}  // namespace

void sha256(const uint8_t* data, size_t size, uint8_t digest[32]) {
  uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  auto blocks = blocks_plain;
#if defined(__x86_64__)
  if (has_sha()) blocks = blocks_sha;
#endif
  blocks(state, data, size / 64);
  uint8_t tail[128] = {};
  const size_t rest = size % 64, end = rest < 56 ? 64 : 128;
  if (rest) memcpy(tail, data + size - rest, rest);
  tail[rest] = 0x80;
  for (int i = 0; i < 8; ++i) tail[end - 1 - i] = uint8_t(uint64_t(size) * 8 >> 8 * i);
  blocks(state, tail, end / 64);
  for (int i = 0; i < 32; ++i) digest[i] = uint8_t(state[i / 4] >> (24 - 8 * (i % 4)));
}

}  // namespace lcrbnn
