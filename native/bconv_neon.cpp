// NEON: two channels of one word a register, counted by bytes (eor, cnt, add); four pixels by eight channels a tile.
// A byte holds 31 words, then it is added to the 16-bit counts.
#if defined(__aarch64__)
#include <arm_neon.h>

#include <cstring>

#include "bconv_common.h"

namespace lcrbnn {
namespace {

constexpr int kPanel = 8, kWords = 31;

bool supported() { return true; }
bool takes(const BConv&) { return true; }
size_t weight_bytes(const BConv& c) { return panel_weight_bytes(c, kPanel); }
void pack(const BConv& c, const uint64_t* weights, void* packed) { panel_pack(c, kPanel, weights, packed); }

inline uint8x16_t count(uint8x16_t bytes, uint8x16_t word, const uint64_t* weights) {
  return vaddq_u8(bytes, vcntq_u8(veorq_u8(word, vreinterpretq_u8_u64(vld1q_u64(weights)))));
}

// Sums of one pixel and, in `rest`, of those after it. Arrays instead would not stay in registers with every compiler.
template <int kPixels>
struct Sums {
  uint8x16_t a, b, c, d;  // two channels each
  Sums<kPixels - 1> rest;

  inline void clear() { a = b = c = d = vdupq_n_u8(0), rest.clear(); }
  inline void add(const uint64_t* word, size_t step, const uint64_t* w) {
    const uint8x16_t v = vreinterpretq_u8_u64(vld1q_dup_u64(word));
    a = count(a, v, w), b = count(b, v, w + 2), c = count(c, v, w + 4), d = count(d, v, w + 6);
    asm volatile("" : "+w"(a), "+w"(b), "+w"(c), "+w"(d));  // one pixel after the other, or registers run out
    rest.add(word + step, step, w);
  }
  inline void widen(uint16_t* counts) const {
    const uint16x8_t low = vpaddq_u16(vpaddlq_u8(a), vpaddlq_u8(b)), high = vpaddq_u16(vpaddlq_u8(c), vpaddlq_u8(d));
    vst1q_u16(counts, vaddq_u16(vld1q_u16(counts), vpaddq_u16(low, high)));
    rest.widen(counts + kPanel);
  }
};
template <>
struct Sums<0> {
  inline void clear() {}
  inline void add(const uint64_t*, size_t, const uint64_t*) {}
  inline void widen(uint16_t*) const {}
};

template <int kPixels>
void tile(const BConv& c, const PanelRow& at, int x, uint16_t* counts) {
  const int words = c.words();
  const bool together = c.dil_w == 1 || c.kw == 1;  // the taps of a kernel row lie side by side
  const int across = together ? 1 : c.kw, length = together ? c.kw * words : words;
  const size_t step = size_t(c.stride_w) * words;
  const uint64_t* w = at.weights;
  Sums<kPixels> sums;
  sums.clear();
  std::memset(counts, 0, sizeof(uint16_t) * kPixels * kPanel);
  int room = kWords;
  for (int ky = 0; ky < c.kh; ++ky)
    for (int kx = 0; kx < across; ++kx) {
      const uint64_t* word = at.words + ky * c.dil_h * at.row_words + x * step + size_t(kx) * c.dil_w * words;
      for (int left = length; left > 0;) {
        const int now = left < room ? left : room;
        for (int j = 0; j < now; ++j, ++word, w += kPanel) sums.add(word, step, w);
        left -= now, room -= now;
        if (room == 0) sums.widen(counts), sums.clear(), room = kWords;
      }
    }
  sums.widen(counts);
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

const BKernel bconv_neon = {"neon", supported, takes, kPanel, weight_bytes, pack, padded_bytes, padded_prepare, row};

}  // namespace lcrbnn
#endif
