// The portable kernel for every CPU and geometry, and the padded map that other kernels share.
#include <cstring>

#include "bconv_common.h"

namespace lcrbnn {

size_t padded_bytes(const BConv& c) {
  return sizeof(uint64_t) * padded_rows(c) * c.groups * padded_cols(c) * c.words();
}

namespace {
uint64_t* pad_pixels(const BConv& c, uint64_t* to, int count) {
  const int words = c.words();
  for (int i = 0; i < count; ++i)
    for (int j = 0; j < words; ++j) *to++ = pad_word(c, j);
  return to;
}
}  // namespace

void padded_prepare(const BConv& c, const uint64_t* map, void* scratch, int first, int last) {
  const int cols = padded_cols(c), words = c.words();
  const RowRange range = padded_range(c, first, last);
  const int before = c.pad_left < cols ? c.pad_left : cols, inside = c.in_w < cols - before ? c.in_w : cols - before;
  uint64_t* to = static_cast<uint64_t*>(scratch) + size_t(range.begin) * c.groups * cols * words;
  for (int r = range.begin; r < range.end; ++r)
    for (int g = 0; g < c.groups; ++g) {
      const int y = r - c.pad_top;
      if (y < 0 || y >= c.in_h) {
        to = pad_pixels(c, to, cols);
        continue;
      }
      const uint64_t* from = map + (size_t(y) * c.in_w * c.groups + g) * words;
      const int run = c.groups == 1 ? inside * words : words;  // contiguous words of this group
      to = pad_pixels(c, to, before);
      for (int n = inside * words; n > 0; n -= run, from += size_t(c.groups) * words, to += run)
        std::memcpy(to, from, sizeof(uint64_t) * run);
      to = pad_pixels(c, to, cols - before - inside);
    }
}

size_t panel_weight_bytes(const BConv& c, int panel) {
  return sizeof(uint64_t) * c.groups * panels_of_group(c, panel) * c.kh * c.kw * c.words() * panel;
}

void panel_pack(const BConv& c, int panel, const uint64_t* weights, void* packed) {
  uint64_t* to = static_cast<uint64_t*>(packed);
  const size_t per_channel = size_t(c.kh) * c.kw * c.words();
  for (int g = 0; g < c.groups; ++g)
    for (int p = 0; p < panels_of_group(c, panel); ++p)
      for (size_t k = 0; k < per_channel; ++k)
        for (int i = 0; i < panel; ++i) {
          const int o = p * panel + i;
          *to++ = o < c.group_out() ? weights[(size_t(g) * c.group_out() + o) * per_channel + k] : 0;
        }
}

namespace {

constexpr int kPanel = 8;

#if defined(__x86_64__) && !defined(__POPCNT__)
// Popcount without a function call; the compiler can vectorize it for two channels.
inline uint64_t ones(uint64_t v) {
  v -= v >> 1 & 0x5555555555555555;
  v = (v & 0x3333333333333333) + (v >> 2 & 0x3333333333333333);
  v = (v + (v >> 4)) & 0x0F0F0F0F0F0F0F0F;
  v += v >> 8, v += v >> 16, v += v >> 32;
  return v & 127;
}
#else
inline uint64_t ones(uint64_t v) { return uint64_t(__builtin_popcountll(v)); }
#endif

bool yes() { return true; }
bool any(const BConv&) { return true; }
size_t weight_bytes(const BConv& c) { return panel_weight_bytes(c, kPanel); }
void pack(const BConv& c, const uint64_t* weights, void* packed) { panel_pack(c, kPanel, weights, packed); }

template <class Count>
void row(const BConv& c, const void* packed, const void* scratch, int y, int index, Count* counts) {
  const PanelRow at = panel_row(c, kPanel, packed, scratch, y, index);
  const int words = c.words();
  for (int x = 0; x < c.out_w; ++x, counts += kPanel) {
    const uint64_t* w = at.weights;
    uint64_t differ[kPanel] = {};
    for (int ky = 0; ky < c.kh; ++ky)
      for (int kx = 0; kx < c.kw; ++kx) {
        const uint64_t* a = at.words + ky * c.dil_h * at.row_words + size_t(x * c.stride_w + kx * c.dil_w) * words;
        for (int j = 0; j < words; ++j, w += kPanel)
          for (int i = 0; i < kPanel; ++i) differ[i] += ones(a[j] ^ w[i]);
      }
    for (int i = 0; i < kPanel; ++i) counts[i] = Count(differ[i]);
  }
}

}  // namespace

const BKernel bconv_scalar = {"scalar",     yes,          any,           kPanel,         weight_bytes,
                              pack,         padded_bytes, padded_prepare, row<uint16_t>};
const BKernel bconv_wide = {"wide", yes, any, kPanel, weight_bytes, pack, padded_bytes, padded_prepare, nullptr, row<uint32_t>};

}  // namespace lcrbnn
