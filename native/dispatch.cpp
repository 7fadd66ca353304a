#include "dispatch.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace lcrbnn {

const BKernel* const bconv_kernels[] = {
#if defined(__x86_64__)
    &bconv_avx512, &bconv_avx2,
#elif defined(__aarch64__)
    &bconv_neon,
#elif defined(__wasm_simd128__)
    &bconv_wasm,
#endif
    &bconv_scalar};
const int bconv_kernel_count = sizeof(bconv_kernels) / sizeof(bconv_kernels[0]);

namespace {

// in_h, in_w, in_c, out_h, out_w, out_c, kh, kw, stride h and w, dilation h and w, pad top and left, groups, pad bit
const BConv kTrials[] = {
    {5, 9, 64, 5, 9, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1},    {6, 7, 192, 3, 4, 72, 3, 3, 2, 2, 1, 1, 1, 1, 1, 0},
    {3, 5, 37, 3, 5, 33, 1, 1, 1, 1, 1, 1, 0, 0, 1, 0},    {7, 6, 40, 7, 6, 20, 3, 3, 1, 1, 2, 2, 2, 2, 2, 1},
    {6, 9, 16, 3, 5, 20, 3, 3, 2, 2, 1, 1, 1, 1, 1, 1},    {5, 6, 58, 5, 6, 9, 3, 3, 1, 1, 1, 1, 1, 1, 2, 0},
    {1, 1, 1000, 1, 1, 10, 1, 1, 1, 1, 1, 1, 0, 0, 1, 0},  {3, 3, 2048, 3, 3, 8, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1},
};

// Memory aligned to 64 bytes, as kernels require.
class Aligned {
 public:
  explicit Aligned(size_t bytes) : raw_(static_cast<char*>(std::calloc(bytes + 64, 1))) {}
  ~Aligned() { std::free(raw_); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  explicit operator bool() const { return raw_; }
  void* get() const { return raw_ + (64 - reinterpret_cast<uintptr_t>(raw_) % 64) % 64; }
  uint64_t* words() const { return static_cast<uint64_t*>(get()); }
  uint16_t* counts() const { return static_cast<uint16_t*>(get()); }

 private:
  char* raw_;
};

// Words of `bits` bits each: random with a state, else all set.
void fill(uint64_t* to, size_t pixels, int bits, uint64_t* state) {
  for (size_t i = 0; i < pixels; ++i)
    for (int left = bits; left > 0; left -= 64) {
      if (state) *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
      const uint64_t word = state ? *state : ~uint64_t(0);
      *to++ = left >= 64 ? word : word & ((uint64_t(1) << left) - 1);
    }
}

// Returns the counts of a kernel as [out_h][out_w][out_c].
bool counts_of(const BKernel& k, const BConv& c, const uint64_t* weights, const uint64_t* map, uint16_t* to) {
  const Aligned packed(k.weight_bytes(c)), scratch(k.scratch_bytes(c)), row(sizeof(uint16_t) * c.out_w * k.panel);
  if (!packed || !scratch || !row) return false;
  k.pack(c, weights, packed.get());
  k.prepare(c, map, scratch.get(), 0, c.in_h);
  const int panels = (c.group_out() + k.panel - 1) / k.panel;
  for (int y = 0; y < c.out_h; ++y)
    for (int p = 0; p < panels * c.groups; ++p) {
      k.row(c, packed.get(), scratch.get(), y, p, row.counts());
      const int first = p % panels * k.panel, left = c.group_out() - first;
      for (int x = 0; x < c.out_w; ++x)
        std::memcpy(to + (size_t(y) * c.out_w + x) * c.out_c + p / panels * c.group_out() + first,
                    row.counts() + size_t(x) * k.panel, sizeof(uint16_t) * (left < k.panel ? left : k.panel));
    }
  return true;
}

bool usable(int index) {
  static std::atomic<int> known[sizeof(bconv_kernels) / sizeof(bconv_kernels[0])];  // 0 not tested, 1 good, 2 bad
  const BKernel& k = *bconv_kernels[index];
  if (!k.supported()) return false;
  if (known[index] == 0) {
    const bool good = &k == &bconv_scalar || bconv_agrees(k);
    if (!good) std::fprintf(stderr, "lcrbnn: kernel %s disagrees with the scalar one and is not used\n", k.name);
    known[index] = good ? 1 : 2;
  }
  return known[index] == 1;
}

// For words that are less than half full, popcount is slower than tables, which process four channels at a time.
bool wasteful(const BKernel& k, const BConv& c) {
#if defined(__x86_64__)
  return &k == &bconv_avx512 && c.group_in() < 32 && bconv_avx2.takes(c);
#else
  return (void)k, (void)c, false;
#endif
}

}  // namespace

bool bconv_agrees(const BKernel& kernel) {
  uint64_t state = 0x9E3779B97F4A7C15;
  for (const BConv& c : kTrials) {
    if (!kernel.takes(c)) continue;
    const size_t pixels = size_t(c.in_h) * c.in_w * c.groups, taps = size_t(c.out_c) * c.kh * c.kw;
    const size_t outputs = size_t(c.out_h) * c.out_w * c.out_c;
    const Aligned map(sizeof(uint64_t) * pixels * c.words()), weights(sizeof(uint64_t) * taps * c.words());
    const Aligned want(sizeof(uint16_t) * outputs), got(sizeof(uint16_t) * outputs);
    if (!map || !weights || !want || !got) return false;
    for (const bool random : {false, true}) {  // first weights of ones over a map of zeros, for the largest counts
      if (random) fill(map.words(), pixels, c.group_in(), &state);
      fill(weights.words(), taps, c.group_in(), random ? &state : nullptr);
      if (!counts_of(bconv_scalar, c, weights.words(), map.words(), want.counts()) ||
          !counts_of(kernel, c, weights.words(), map.words(), got.counts()) ||
          std::memcmp(want.get(), got.get(), sizeof(uint16_t) * outputs) != 0)
        return false;
    }
  }
  return true;
}

const char* kernel_name(const char* forced) {
  const char* name = forced && *forced ? forced : std::getenv("LCRBNN_KERNEL");
  return name && *name ? name : nullptr;
}

std::string kernels_here() {
  std::string names;
  for (int i = 0; i < bconv_kernel_count; ++i)
    if (bconv_kernels[i]->supported()) names += (names.empty() ? "" : ", ") + std::string(bconv_kernels[i]->name);
  return names;
}

const BKernel* choose_bconv(const BConv& c, const char* forced) {
  const char* name = kernel_name(forced);
  for (int i = 0; i < bconv_kernel_count; ++i) {
    const BKernel& k = *bconv_kernels[i];
    if (c.taps() > kMostTapsOf16Bits) {  // this CPU must have the kernel that is asked for, but it counts in 16 bits
      if (k.supported() && (!name || std::strcmp(name, k.name) == 0)) return &bconv_wide;
      continue;
    }
    const bool wanted = name ? std::strcmp(name, k.name) == 0 : !wasteful(k, c);
    if (wanted && k.takes(c) && usable(i)) return &k;
  }
  return nullptr;
}

}  // namespace lcrbnn
