// AVX2: lookup tables instead of popcounts. Four channels of two neighbouring output pixels form one byte, which
// selects a table of 16 bytes. Byte w of the table has the number of bits of each pixel that differ from the four
// weight bits w: the left pixel in the low half, the right pixel in the high half. One shuffle looks up 32 output
// channels.
//
// Three lookups sum to at most 12 per half. Their sum x is added to `all` (modulo 256) and its high half to `high`; the
// low halves are all - 16 * high. A byte can hold 63 lookups, then it is added to the 16-bit counts.
//
// scratch: [padded_rows][groups] planes of [padded_cols][nibbles] 16-bit offsets into the tables. Each column is
//   combined with the column one stride to the right, so a tap row of the kernel is contiguous for every stride.
// packed: a plan (which offsets form a chunk of at most 63 lookups), then the weights per panel, one byte per nibble.
#if defined(__x86_64__)
#include <immintrin.h>

#include "bconv_common.h"

#define LCRBNN_AVX2 __attribute__((target("avx2,fma")))
#define LCRBNN_INLINE __attribute__((target("avx2,fma"), always_inline)) inline

namespace lcrbnn {
namespace {

constexpr int kPanel = 64, kLanes = 32;
constexpr int kTriples = 21;        // number of triples of lookups per chunk
constexpr uint8_t kNothing = 0x80;  // shuffle index with the result 0, for weights past the end of a run
constexpr int kSlack = 16;          // zero offsets after each plane, because the last triple may read past its end

struct Tables {
  alignas(64) uint8_t at[256][16];
  constexpr Tables() : at() {
    for (int pair = 0; pair < 256; ++pair)
      for (int w = 0; w < 16; ++w) at[pair][w] = uint8_t(ones((pair & 15) ^ w) | ones((pair >> 4) ^ w) << 4);
  }
  static constexpr int ones(int v) { return (v & 1) + (v >> 1 & 1) + (v >> 2 & 1) + (v >> 3 & 1); }
};
constexpr Tables kTables;

int nibbles(const BConv& c) { return (c.group_in() + 3) / 4; }
size_t plane(const BConv& c) { return (size_t(padded_cols(c)) * nibbles(c) + kSlack + 31) / 32 * 32; }

// Contiguous runs of offsets: the taps of a kernel row, or single taps if the kernel is dilated.
struct Runs { int count, across, length, triples; };
Runs runs(const BConv& c) {
  const bool together = c.dil_w == 1 || c.kw == 1;
  const int length = together ? c.kw * nibbles(c) : nibbles(c), across = together ? 1 : c.kw;
  return {c.kh * across, across, length, (length + 2) / 3};
}

// The plan: constants of a row, then the chunks. Each chunk is {parts, then for each part {offset from the first tap of
// the output pixel, triples}}.
struct Plan {
  size_t weights;              // number of bytes from the start of the plan to the weights
  size_t group, panel, plane;  // bytes of weights per group and per panel; number of offsets per plane
  int32_t panels, last_lanes;  // number of panels per group, and lanes of the last panel
  int32_t pair_step, chunks;   // number of offsets between pairs of pixels; number of chunks
};
size_t plan_bytes(const BConv& c) {
  const Runs r = runs(c);
  const size_t chunks = (size_t(r.count) * r.triples + kTriples - 1) / kTriples;
  return (sizeof(Plan) + sizeof(int32_t) * (chunks + 2 * (chunks + r.count)) + 63) / 64 * 64;
}

// Weight bytes per triple of a panel with this many channels: 3 nibbles for 64 channels, or for 32 if that is enough.
int panel_lanes(int channels) { return channels > kLanes ? kPanel : kLanes; }
size_t panel_bytes(const BConv& c, int channels) {
  return size_t(runs(c).count) * runs(c).triples * 3 * panel_lanes(channels);
}
size_t group_bytes(const BConv& c) {
  const int full = c.group_out() / kPanel, rest = c.group_out() % kPanel;
  return full * panel_bytes(c, kPanel) + (rest ? panel_bytes(c, rest) : 0);
}

void make_plan(const BConv& c, void* to) {
  const Runs r = runs(c);
  const int total = r.count * r.triples, chunks = (total + kTriples - 1) / kTriples;
  const int size = (total + chunks - 1) / chunks;  // the chunks get almost equal sizes
  const int panels = panels_of_group(c, kPanel);
  Plan* plan = static_cast<Plan*>(to);
  *plan = {plan_bytes(c), group_bytes(c), panel_bytes(c, kPanel), plane(c), panels,
           panel_lanes(c.group_out() - (panels - 1) * kPanel), 2 * c.stride_w * nibbles(c), 0};
  int32_t *at = reinterpret_cast<int32_t*>(plan + 1), *parts = nullptr;
  int room = 0;
  for (int run = 0; run < r.count; ++run) {
    const size_t first = run / r.across * c.dil_h * plan->plane * c.groups + run % r.across * c.dil_w * nibbles(c);
    for (int done = 0; done < r.triples;) {
      if (room == 0) parts = at++, *parts = 0, room = size, ++plan->chunks;
      const int now = r.triples - done < room ? r.triples - done : room;
      *at++ = int32_t(first + 3 * done);
      *at++ = now;
      ++*parts, done += now, room -= now;
    }
  }
}

bool supported() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
// The offsets in a plan have 32 bits, so they must not exceed this limit.
bool takes(const BConv& c) { return plane(c) * c.groups * padded_rows(c) < size_t(1) << 31; }

size_t weight_bytes(const BConv& c) { return plan_bytes(c) + group_bytes(c) * c.groups; }

// Returns the position of a channel in 32 bytes, so that unpacking to 16 bits gives channels in order.
int place(int channel) { return (channel & 7) | (channel & 8) << 1 | (channel & 16) >> 1; }

void pack(const BConv& c, const uint64_t* weights, void* packed) {
  make_plan(c, packed);
  uint8_t* to = static_cast<uint8_t*>(packed) + plan_bytes(c);
  const Runs r = runs(c);
  const int each = nibbles(c), words = c.words();
  for (int g = 0; g < c.groups; ++g)
    for (int first = 0; first < c.group_out(); first += kPanel) {
      const int left = c.group_out() - first, lanes = panel_lanes(left);
      for (int run = 0; run < r.count; ++run)
        for (int k = 0; k < 3 * r.triples; ++k, to += lanes)
          for (int i = 0; i < lanes; ++i) {
            const int tap = r.across == 1 ? run * c.kw + k / each : run, nibble = k % each;
            uint8_t v = k < r.length ? 0 : kNothing;
            if (i < left && k < r.length)
              v = weights[((size_t(g) * c.group_out() + first + i) * c.kh * c.kw + tap) * words + nibble / 16] >>
                      (nibble % 16 * 4) & 15;
            to[i / kLanes * kLanes + place(i % kLanes)] = v;
          }
    }
}

size_t scratch_bytes(const BConv& c) { return sizeof(uint16_t) * plane(c) * c.groups * padded_rows(c); }

// Converts 16 pair bytes to 16 table offsets.
LCRBNN_INLINE void store_offsets(uint16_t* to, __m128i pairs) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_slli_epi16(_mm256_cvtepu8_epi16(pairs), 4));
}

// Combines a word of a column with the word one stride further: bytes of the even and of the odd nibbles.
LCRBNN_INLINE void store_word(uint16_t* to, uint64_t left, uint64_t right) {
  const uint64_t low = 0x0F0F0F0F0F0F0F0F;
  const uint64_t even = (left & low) | (right & low) << 4, odd = (left >> 4 & low) | (right & ~low);
  store_offsets(to, _mm_unpacklo_epi8(_mm_cvtsi64_si128(int64_t(even)), _mm_cvtsi64_si128(int64_t(odd))));
}

// The same for 4 words in a row, with `used` offsets each. Each store overwrites the unused rest of the previous one.
LCRBNN_INLINE void store_words(uint16_t* to, const uint64_t* left, const uint64_t* right, int used) {
  const __m256i low = _mm256_set1_epi8(15);
  const __m256i l = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(left));
  const __m256i r = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(right));
  const __m256i even = _mm256_or_si256(_mm256_and_si256(l, low), _mm256_slli_epi16(_mm256_and_si256(r, low), 4));
  const __m256i odd = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(l, 4), low), _mm256_andnot_si256(low, r));
  const __m256i a = _mm256_unpacklo_epi8(even, odd), b = _mm256_unpackhi_epi8(even, odd);
  store_offsets(to, _mm256_castsi256_si128(a));
  store_offsets(to + used, _mm256_castsi256_si128(b));
  store_offsets(to + 2 * used, _mm256_extracti128_si256(a, 1));
  store_offsets(to + 3 * used, _mm256_extracti128_si256(b, 1));
}

// Constants of all planes of a map. A pixel of a group has `words` words; the last word has `last` offsets.
struct Line {
  const BConv& c;
  int cols, words, last, step;  // step: number of words between pixels
  size_t plane;
};

// Prepares columns [begin, end) one by one, each with the column one stride further; `from` is null outside the map.
LCRBNN_AVX2 uint16_t* border(const Line& line, const uint64_t* from, uint16_t* to, int begin, int end) {
  const BConv& c = line.c;
  for (int x = begin - c.pad_left; x < end - c.pad_left; ++x) {
    const int x2 = x + c.stride_w;
    const uint64_t* left = from && x >= 0 && x < c.in_w ? from + size_t(x) * line.step : nullptr;
    const uint64_t* right = from && x2 >= 0 && x2 < c.in_w ? from + size_t(x2) * line.step : nullptr;
    for (int j = 0; j < line.words; ++j, to += j < line.words ? 16 : line.last)
      store_word(to, left ? left[j] : pad_word(c, j), right ? right[j] : pad_word(c, j));
  }
  return to;
}

// Prepares `count` columns from `left` on; they and the columns one stride further are inside the map.
LCRBNN_AVX2 uint16_t* interior(const Line& line, const uint64_t* left, uint16_t* to, int count) {
  const uint64_t* right = left + size_t(line.c.stride_w) * line.step;
  const bool even = line.words == 1 || line.last == 16;  // all words have the same number of offsets
  if (even && line.step == line.words) {
    int n = count * line.words;
    for (; n >= 4; n -= 4, left += 4, right += 4, to += 4 * line.last) store_words(to, left, right, line.last);
    for (; n > 0; --n, ++left, ++right, to += line.last) store_word(to, *left, *right);
    return to;
  }
  for (; count > 0; --count, left += line.step, right += line.step)
    for (int j = 0; j < line.words; ++j, to += j < line.words ? 16 : line.last) store_word(to, left[j], right[j]);
  return to;
}

LCRBNN_AVX2 void prepare_plane(const Line& line, const uint64_t* from, uint16_t* to) {
  const int first = line.c.pad_left, past = first + line.c.in_w - line.c.stride_w;
  const int begin = from && first < line.cols ? first : line.cols, end = past < line.cols ? past : line.cols;
  to = border(line, from, to, 0, begin);
  if (begin < end) to = interior(line, from, to, end - begin);
  to = border(line, from, to, begin < end ? end : begin, line.cols);
  store_word(to, 0, 0);
}

void prepare(const BConv& c, const uint64_t* map, void* scratch, int first, int last) {
  const RowRange range = padded_range(c, first, last);
  const int words = c.words();
  const Line line = {c, padded_cols(c), words, nibbles(c) - 16 * (words - 1), c.groups * words, plane(c)};
  uint16_t* to = static_cast<uint16_t*>(scratch) + size_t(range.begin) * c.groups * line.plane;
  for (int r = range.begin; r < range.end; ++r)
    for (int g = 0; g < c.groups; ++g, to += line.plane) {
      const int y = r - c.pad_top;
      const bool inside = y >= 0 && y < c.in_h;
      prepare_plane(line, inside ? map + size_t(y) * c.in_w * line.step + size_t(g) * words : nullptr, to);
    }
}

LCRBNN_INLINE __m256i table(const uint16_t* offset) {
  const uint8_t* at = &kTables.at[0][0] + *offset;
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(at)));
}

LCRBNN_INLINE void put(uint16_t* to, __m256i v, bool first) {
  __m256i* at = reinterpret_cast<__m256i*>(to);
  _mm256_store_si256(at, first ? v : _mm256_add_epi16(v, _mm256_load_si256(at)));
}

// Byte sums of 32 channels of a pair of pixels in a chunk: the sum of both halves, and that of the high halves. High
// halves are shifted as 16-bit words, so the low half of an odd byte stays in the even byte before it until the end.
// This is written as instructions, because compilers move the sums between registers otherwise.
struct Sums {
  __m256i all, high;

  LCRBNN_INLINE void clear() { all = high = _mm256_setzero_si256(); }
  LCRBNN_INLINE void add(__m256i x) {
    asm("vpaddb %1, %0, %0" : "+x"(all) : "x"(x));
    x = _mm256_srli_epi16(x, 4);
    asm("vpaddb %1, %0, %0" : "+x"(high) : "x"(x));
  }
  // Adds the sums to the counts of both pixels.
  LCRBNN_INLINE void flush(uint16_t* left, uint16_t* right, bool first) const {
    const __m256i zero = _mm256_setzero_si256();
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(lower(high), 4), _mm256_set1_epi16(0x00F0));
    const __m256i upper = _mm256_sub_epi8(high, odd), low = lower(upper);
    put(left, _mm256_unpacklo_epi8(low, zero), first);
    put(left + 16, _mm256_unpackhi_epi8(low, zero), first);
    put(right, _mm256_unpacklo_epi8(upper, zero), first);
    put(right + 16, _mm256_unpackhi_epi8(upper, zero), first);
  }
  LCRBNN_INLINE __m256i lower(__m256i upper) const {
    const __m256i shifted = _mm256_and_si256(_mm256_slli_epi16(upper, 4), _mm256_set1_epi8(char(0xF0)));
    return _mm256_sub_epi8(all, shifted);
  }
};

// Looks up one nibble of a pair in 32 or 64 channels and adds to the sums of earlier nibbles. The empty asm keeps the
// order of instructions, so that all values fit into the registers.
template <int kWidth, bool kFirst>
LCRBNN_INLINE void look_up(const uint16_t* offset, __m256i w0, __m256i w1, __m256i& x0, __m256i& x1) {
  __m256i t = table(offset), found = _mm256_shuffle_epi8(t, w0);
  x0 = kFirst ? found : _mm256_add_epi8(x0, found);
  asm("" : "+x"(x0), "+x"(t));
  if (kWidth > kLanes) {
    found = _mm256_shuffle_epi8(t, w1);
    x1 = kFirst ? found : _mm256_add_epi8(x1, found);
    asm("" : "+x"(x1));
  }
}

template <int kPairs, int kWidth, bool kFirst>
LCRBNN_INLINE void nibble(const uint16_t* at, size_t pair_step, const uint8_t* w, __m256i (&x)[4]) {
  const __m256i* weights = reinterpret_cast<const __m256i*>(w);
  __m256i w0 = _mm256_load_si256(weights), w1 = kWidth > kLanes ? _mm256_load_si256(weights + 1) : w0;
  asm("" : "+x"(w0), "+x"(w1));
  look_up<kWidth, kFirst>(at, w0, w1, x[0], x[1]);
  at += pair_step;
  asm("" : "+r"(at) : "x"(x[kWidth > kLanes]));
  if (kPairs > 1) look_up<kWidth, kFirst>(at, w0, w1, x[2], x[3]);
}

// The inner loop: one chunk for one or two pairs of pixels. The sums of three nibbles fit into a half byte.
template <int kPairs, int kWidth>
LCRBNN_INLINE void tile(const uint16_t* pixel, size_t pair_step, const int32_t* chunk, const uint8_t* w,
                        uint16_t* counts, uint16_t* last, bool first) {
  Sums a, b, c, d;
  a.clear(), b.clear(), c.clear(), d.clear();
  const int32_t* const end = chunk + 1 + 2 * chunk[0];
  for (++chunk; chunk < end; chunk += 2) {
    const uint16_t *at = pixel + chunk[0], *const stop = at + 3 * chunk[1];
    for (; at < stop; at += 3, w += 3 * kWidth) {
      __m256i x[4];
      nibble<kPairs, kWidth, true>(at, pair_step, w, x);
      nibble<kPairs, kWidth, false>(at + 1, pair_step, w + kWidth, x);
      nibble<kPairs, kWidth, false>(at + 2, pair_step, w + 2 * kWidth, x);
      a.add(x[0]);
      if (kWidth > kLanes) b.add(x[1]);
      if (kPairs > 1) c.add(x[2]);
      if (kPairs > 1 && kWidth > kLanes) d.add(x[3]);
    }
  }
  uint16_t* right = kPairs > 1 ? counts + kPanel : last;
  a.flush(counts, right, first);
  if (kWidth > kLanes) b.flush(counts + kLanes, right + kLanes, first);
  if (kPairs > 1) c.flush(counts + 2 * kPanel, last, first);
  if (kPairs > 1 && kWidth > kLanes) d.flush(counts + 2 * kPanel + kLanes, last + kLanes, first);
}

template <int kWidth>
LCRBNN_AVX2 void row_of_chunk(int out_w, int pair_step, const int32_t* chunk, const uint8_t* w, const uint16_t* pixels,
                              uint16_t* counts, uint16_t* unused, bool first) {
  int x = 0;
  for (; x + 2 < out_w; x += 4, pixels += 2 * pair_step, counts += 4 * kPanel)
    tile<2, kWidth>(pixels, size_t(pair_step), chunk, w, counts, x + 3 < out_w ? counts + 3 * kPanel : unused, first);
  if (x < out_w) tile<1, kWidth>(pixels, 0, chunk, w, counts, x + 1 < out_w ? counts + kPanel : unused, first);
}

// Processes the row chunk by chunk, so that the weights of a chunk stay in the L1 cache.
template <int kWidth>
void row_of(int out_w, const Plan& plan, const uint8_t* w, const uint16_t* pixels, uint16_t* counts) {
  const int32_t* chunk = reinterpret_cast<const int32_t*>(&plan + 1);
  alignas(64) uint16_t unused[kPanel];  // the right pixel of the last pair of an odd row
  for (int i = 0; i < plan.chunks; ++i) {
    row_of_chunk<kWidth>(out_w, plan.pair_step, chunk, w, pixels, counts, unused, i == 0);
    const int32_t parts = *chunk++;
    for (int part = 0; part < parts; ++part, chunk += 2) w += size_t(chunk[1]) * 3 * kWidth;
  }
}

void row(const BConv& c, const void* packed, const void* scratch, int y, int index, uint16_t* counts) {
  const Plan& plan = *static_cast<const Plan*>(packed);
  const int group = c.groups == 1 ? 0 : index / plan.panels, panel = index - group * plan.panels;
  const uint8_t* w = static_cast<const uint8_t*>(packed) + plan.weights + group * plan.group + panel * plan.panel;
  const size_t plane = (size_t(y) * c.stride_h * c.groups + group) * plan.plane;
  const uint16_t* pixels = static_cast<const uint16_t*>(scratch) + plane;
  const bool narrow = panel + 1 == plan.panels && plan.last_lanes == kLanes;
  (narrow ? row_of<kLanes> : row_of<kPanel>)(c.out_w, plan, w, pixels, counts);
}

}  // namespace

const BKernel bconv_avx2 = {"avx2", supported, takes, kPanel, weight_bytes, pack, scratch_bytes, prepare, row};

}  // namespace lcrbnn
#endif
