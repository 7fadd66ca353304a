// Compares every kernel that this CPU supports with a bitwise count, and every float path with sums in double
// precision.
//
//   g++ -std=c++17 -O3 -Wall -Wextra kernel_test.cpp bconv_*.cpp fconv*.cpp dispatch.cpp -o kernel_test
//   ./kernel_test [cases]      random geometries (default 3000) after the sweep of all channel counts
//   ./kernel_test --bench      billions of multiply-adds per second
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "dispatch.h"
#include "fconv_points.h"

using namespace lcrbnn;

namespace {

uint64_t state = 88172645463325252u;
uint64_t random_word() { return state ^= state << 13, state ^= state >> 7, state ^= state << 17; }
int pick(int low, int high) { return low + int(random_word() % uint64_t(high - low + 1)); }

// Memory aligned to 64 bytes, filled with random bytes, with a guard after the end.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes), raw_(bytes + 128, 0xA5) {}
  char* get() {
    char* raw = reinterpret_cast<char*>(raw_.data());
    return raw + (64 - reinterpret_cast<uintptr_t>(raw) % 64) % 64;
  }
  uint16_t* counts() { return reinterpret_cast<uint16_t*>(get()); }
  float* floats() { return reinterpret_cast<float*>(get()); }
  bool intact() {
    for (const unsigned char* p = reinterpret_cast<unsigned char*>(get()) + bytes_; p < raw_.data() + raw_.size(); ++p)
      if (*p != 0xA5) return false;
    return true;
  }

 private:
  size_t bytes_;
  std::vector<unsigned char> raw_;
};

int outputs(int size, int before, int after, int kernel, int stride, int dilation) {
  return (size + before + after - dilation * (kernel - 1) - 1) / stride + 1;
}

// kind: 0 = random bits, 1 = all bits 0, 2 = all bits 1
std::vector<uint64_t> random_bits(size_t rows, int bits, int kind) {
  std::vector<uint64_t> words;
  for (size_t i = 0; i < rows; ++i)
    for (int left = bits; left > 0; left -= 64) {
      const uint64_t word = kind == 0 ? random_word() : kind == 1 ? 0 : ~uint64_t(0);
      words.push_back(left >= 64 ? word : word & ((uint64_t(1) << left) - 1));
    }
  return words;
}

void describe(const BConv& c) {
  std::printf("  map %dx%dx%d out %dx%dx%d kernel %dx%d stride %dx%d dilation %dx%d pad %d,%d groups %d pad_bit %d\n",
              c.in_h, c.in_w, c.in_c, c.out_h, c.out_w, c.out_c, c.kh, c.kw, c.stride_h, c.stride_w, c.dil_h, c.dil_w,
              c.pad_top, c.pad_left, c.groups, c.pad_bit);
}

std::vector<int> naive(const BConv& c, const std::vector<uint64_t>& map, const std::vector<uint64_t>& weights) {
  std::vector<int> counts;
  const int words = c.words();
  for (int y = 0; y < c.out_h; ++y)
    for (int x = 0; x < c.out_w; ++x)
      for (int o = 0; o < c.out_c; ++o) {
        int differ = 0;
        for (int ky = 0; ky < c.kh; ++ky)
          for (int kx = 0; kx < c.kw; ++kx)
            for (int i = 0; i < c.group_in(); ++i) {
              const int iy = y * c.stride_h + ky * c.dil_h - c.pad_top, ix = x * c.stride_w + kx * c.dil_w - c.pad_left;
              const bool inside = iy >= 0 && iy < c.in_h && ix >= 0 && ix < c.in_w;
              const size_t pixel = (size_t(iy) * c.in_w + ix) * c.groups + o / c.group_out();
              const size_t tap = (size_t(o) * c.kh + ky) * c.kw + kx;
              const int a = inside ? int(map[pixel * words + i / 64] >> i % 64 & 1) : c.pad_bit;
              differ += a != int(weights[tap * words + i / 64] >> i % 64 & 1);
            }
        counts.push_back(differ);
      }
  return counts;
}

bool test_kernel(const BKernel& k, const BConv& c, const std::vector<uint64_t>& map,
                 const std::vector<uint64_t>& weights, const std::vector<int>& want) {
  Buffer packed(k.weight_bytes(c)), scratch(k.scratch_bytes(c)), counts(sizeof(uint16_t) * c.out_w * k.panel);
  k.pack(c, weights.data(), packed.get());
  const int cut = pick(0, c.in_h);  // prepare rows in two parts, the later one first
  if (cut < c.in_h) k.prepare(c, map.data(), scratch.get(), cut, c.in_h);
  if (cut > 0) k.prepare(c, map.data(), scratch.get(), 0, cut);
  const int panels = (c.group_out() + k.panel - 1) / k.panel;
  for (int y = 0; y < c.out_h; ++y)
    for (int p = 0; p < panels * c.groups; ++p) {
      k.row(c, packed.get(), scratch.get(), y, p, counts.counts());
      for (int x = 0; x < c.out_w; ++x)
        for (int i = p % panels * k.panel; i < c.group_out() && i < (p % panels + 1) * k.panel; ++i) {
          const int o = p / panels * c.group_out() + i, got = counts.counts()[x * k.panel + i % k.panel];
          const int right = want[(size_t(y) * c.out_w + x) * c.out_c + o];
          if (got == right) continue;
          std::printf("%s: %d differ, not %d, at y %d x %d channel %d of\n", k.name, got, right, y, x, o);
          return describe(c), false;
        }
    }
  if (packed.intact() && scratch.intact() && counts.intact()) return true;
  std::printf("%s: wrote past the end for\n", k.name);
  return describe(c), false;
}

BConv random_geometry(int group_in, int group_out) {
  for (;;) {
    BConv c = {};
    c.groups = pick(0, 3) ? 1 : pick(1, 4);
    c.in_h = pick(1, 9), c.in_w = pick(1, 13), c.in_c = c.groups * group_in, c.out_c = c.groups * group_out;
    c.kh = pick(1, 5), c.kw = pick(1, 5), c.stride_h = pick(1, 3), c.stride_w = pick(1, 3);
    c.dil_h = pick(0, 2) ? 1 : pick(1, 3), c.dil_w = pick(0, 2) ? 1 : pick(1, 3);
    c.pad_top = pick(0, 3), c.pad_left = pick(0, 3), c.pad_bit = pick(0, 1);
    const int bottom = pick(0, 3), right = pick(0, 3);
    if (c.in_h + c.pad_top + bottom <= c.dil_h * (c.kh - 1)) continue;
    if (c.in_w + c.pad_left + right <= c.dil_w * (c.kw - 1)) continue;
    c.out_h = outputs(c.in_h, c.pad_top, bottom, c.kh, c.stride_h, c.dil_h);
    c.out_w = outputs(c.in_w, c.pad_left, right, c.kw, c.stride_w, c.dil_w);
    return c;
  }
}

// Also tests sizes that are unlikely at random: the maximum number of taps, a ResNet layer, one channel per group.
const BConv kLarge[] = {
    {1, 2, 65535, 1, 2, 3, 1, 1, 1, 1, 1, 1, 0, 0, 1, 0},  {3, 3, 7281, 1, 1, 9, 3, 3, 1, 1, 1, 1, 0, 0, 1, 1},
    {7, 7, 512, 7, 7, 72, 3, 3, 1, 1, 1, 1, 1, 1, 1, 0},   {14, 14, 128, 7, 7, 256, 3, 3, 2, 2, 1, 1, 1, 1, 1, 1},
    {9, 11, 96, 9, 11, 96, 3, 3, 1, 1, 1, 1, 1, 1, 96, 0}, {5, 90, 20, 5, 90, 40, 5, 5, 1, 1, 1, 1, 2, 2, 1, 1},
};
constexpr int kLargeCount = sizeof(kLarge) / sizeof(kLarge[0]);

FConv fconv_of(const BConv& b) {
  return {b.in_h,     b.in_w,     b.in_c,  b.out_h, b.out_w,   b.out_c,    b.kh,    b.kw,
          b.stride_h, b.stride_w, b.dil_h, b.dil_w, b.pad_top, b.pad_left, b.groups};
}

bool test_bconv(int cases) {
  int done[8] = {};
  for (int n = 0; n < 2 * 130 + 2 * kLargeCount + cases; ++n) {
    const int in = n < 260 ? n % 130 + 1 : pick(0, 9) ? pick(1, 130) : pick(1, 600);
    const int out = n < 130 ? pick(1, 20) : n < 260 ? n % 130 + 1 : pick(1, 130);
    const bool large = n >= 260 && n < 260 + 2 * kLargeCount;
    const int fewer = n < 260 || !pick(0, 3) ? out : out % 24 + 1;
    const BConv c = large ? kLarge[(n - 260) / 2] : random_geometry(in, fewer);
    // Some maps and weights agree or differ everywhere.
    const bool extreme = large ? n % 2 : !pick(0, 7);
    const int map_kind = !extreme ? 0 : large ? 1 : pick(1, 2), weight_kind = !extreme ? 0 : large ? 2 : pick(1, 2);
    const auto map = random_bits(size_t(c.in_h) * c.in_w * c.groups, c.group_in(), map_kind);
    const auto weights = random_bits(size_t(c.out_c) * c.kh * c.kw, c.group_in(), weight_kind);
    const auto want = naive(c, map, weights);
    for (int i = 0; i < bconv_kernel_count; ++i) {
      const BKernel& k = *bconv_kernels[i];
      if (!k.supported() || !k.takes(c)) continue;
      if (!test_kernel(k, c, map, weights, want)) return false;
      ++done[i];
    }
  }
  for (int i = 0; i < bconv_kernel_count; ++i) {
    const BKernel& k = *bconv_kernels[i];
    if (!k.supported()) std::printf("bconv %-8s not supported by this CPU\n", k.name);
    if (!k.supported()) continue;
    const bool agrees = bconv_agrees(k);
    std::printf("bconv %-8s %d cases exact, self-test %s\n", k.name, done[i], agrees ? "agrees" : "FAILS");
    if (!agrees) return false;
  }
  unsetenv("LCRBNN_KERNEL");
  const BConv c = random_geometry(64, 64);
  return choose_bconv(c, nullptr) && choose_bconv(c, "scalar") == &bconv_scalar && !choose_bconv(c, "none");
}

// Returns the largest error of a float path relative to the sum of magnitudes; negative if the path is wrong.
double fconv_error(const FPath& path, const BConv& b, const std::vector<double>& want, const std::vector<double>& size,
                   const std::vector<float>& map, const std::vector<float>& weights, const float* bias, bool points) {
  FConv c = fconv_of(b);
  c.points = points;
  const size_t line = size_t(c.out_w) * c.out_c;
  Buffer packed(4 * fconv_weight_floats(c)), scratch(4 * fconv_scratch_floats(c)), out(4 * want.size());
  fconv_pack(c, weights.data(), packed.floats());
  const int cut = pick(0, c.out_h);
  for (int part = 0; part < 2; ++part) {
    const int begin = part ? 0 : cut, end = part ? cut : c.out_h, half = pick(begin, end);
    fconv_rows(path, c, packed.floats(), bias, map.data(), out.floats() + begin * line, scratch.floats(), begin, half);
    fconv_rows(path, c, packed.floats(), bias, map.data(), out.floats() + half * line, scratch.floats(), half, end,
               half > begin);
  }
  double worst = 0, row = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (i % line == 0) row = *std::max_element(&size[i], &size[i] + line);
    // In fconv_points, outputs share rounding errors. So the error is relative to the largest sum of the row.
    const double error = std::fabs(want[i] - out.floats()[i]) / (points ? row : size[i]);
    if (!(error < 2e-6))
      return std::printf("fconv %s: %g, not %g, for\n", path.name, out.floats()[i], want[i]), describe(b), -1;
    worst = error > worst ? error : worst;
  }
  if (packed.intact() && scratch.intact() && out.intact()) return worst;
  return std::printf("fconv %s: wrote past the end for\n", path.name), describe(b), -1;
}

bool test_fconv(int cases) {
  double worst[8] = {};
  int fits = 0;  // number of cases that fconv_points supports
  for (int n = 0; n < cases; ++n) {
    BConv b = random_geometry(pick(1, 40), pick(1, 70));
    if (!pick(0, 3)) b.in_w = pick(13, 40), b.out_w = outputs(b.in_w, b.pad_left, 0, b.kw, b.stride_w, b.dil_w);
    if (!pick(0, 3)) {  // a stem
      b = random_geometry(pick(1, 4), pick(1, 70));
      b.groups = b.dil_h = b.dil_w = 1, b.stride_w = pick(1, 3), b.kw = pick(3 * b.stride_w - 1, 4 * b.stride_w);
      b.in_h = pick(5, 9), b.in_w = pick(12, 99);
      b.out_h = outputs(b.in_h, b.pad_top, 0, b.kh, b.stride_h, 1);
      b.out_w = outputs(b.in_w, b.pad_left, 0, b.kw, b.stride_w, 1);
    }
    const FConv c = fconv_of(b);
    const int in = b.group_in();
    std::vector<float> map(size_t(c.in_h) * c.in_w * c.in_c), bias(c.out_c);
    std::vector<float> weights(size_t(c.out_c) * c.kh * c.kw * in);
    for (auto* v : {&map, &weights, &bias})
      for (float& f : *v) f = float(pick(-1000, 1000)) / 1000;
    const bool with_bias = pick(0, 1);
    std::vector<double> want, size;
    for (size_t i = 0; i < size_t(c.out_h) * c.out_w * c.out_c; ++i) {
      const int o = int(i % c.out_c), x = int(i / c.out_c % c.out_w), y = int(i / c.out_c / c.out_w);
      want.push_back(with_bias ? bias[o] : 0), size.push_back(1);
      for (int t = 0; t < c.kh * c.kw * in; ++t) {
        const int ky = t / in / c.kw, kx = t / in % c.kw;
        const int iy = y * c.stride_h + ky * c.dil_h - c.pad_top, ix = x * c.stride_w + kx * c.dil_w - c.pad_left;
        if (iy < 0 || iy >= c.in_h || ix < 0 || ix >= c.in_w) continue;
        const double term = double(map[(size_t(iy) * c.in_w + ix) * c.in_c + o / b.group_out() * in + t % in]) *
                            weights[size_t(o) * c.kh * c.kw * in + t];
        want.back() += term, size.back() += std::fabs(term);
      }
    }
    for (int i = 0; i < fconv_path_count; ++i) {
      if (!fconv_paths[i]->supported()) continue;
      for (int points = 0; points <= points_fit(c); ++points) {
        const double error =
            fconv_error(*fconv_paths[i], b, want, size, map, weights, with_bias ? bias.data() : nullptr, points);
        if (error < 0) return false;
        worst[i] = error > worst[i] ? error : worst[i];
        fits += points;
      }
    }
  }
  if (fits < cases / 10) return std::printf("too few cases at points\n"), false;
  for (int i = 0; i < fconv_path_count; ++i) {
    const FPath& path = *fconv_paths[i];
    if (!path.supported()) std::printf("fconv %-8s not supported by this CPU\n", path.name);
    else std::printf("fconv %-8s %d cases, error at most %.1e of the sum of sizes\n", path.name, cases, worst[i]);
    setenv("LCRBNN_KERNEL", path.name, 1);
    if (path.supported() && &choose_fconv() != &path) return std::printf("fconv %s is not chosen\n", path.name), false;
    unsetenv("LCRBNN_KERNEL");
  }
  return true;
}

// Returns billions of multiply-adds per second, the best of several runs.
template <class F>
double rate(double macs, F run) {
  double best = 0;
  const int repeat = int(2e8 / macs) + 1;
  for (int i = 0; i < 40; ++i) {
    const auto start = std::chrono::steady_clock::now();
    for (int r = 0; r < repeat; ++r) run();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const double now = macs * repeat / seconds * 1e-9;
    best = now > best ? now : best;
  }
  return best;
}

void bench_bconv(int channels, int size) {
  const BConv c = {size, size, channels, size, size, channels, 3, 3, 1, 1, 1, 1, 1, 1, 1, 0};
  const auto map = random_bits(size_t(size) * size, channels, 0);
  const auto weights = random_bits(size_t(channels) * 9, channels, 0);
  std::printf("bconv %4d ch %2dx%-2d", channels, size, size);
  for (int i = 0; i < bconv_kernel_count; ++i) {
    const BKernel& k = *bconv_kernels[i];
    if (!k.supported()) continue;
    Buffer packed(k.weight_bytes(c)), scratch(k.scratch_bytes(c)), counts(sizeof(uint16_t) * c.out_w * k.panel);
    k.pack(c, weights.data(), packed.get());
    const double macs = double(size) * size * channels * c.taps();
    const double best = rate(macs, [&] {
      k.prepare(c, map.data(), scratch.get(), 0, size);
      for (int p = 0; p < (channels + k.panel - 1) / k.panel; ++p)
        for (int y = 0; y < size; ++y) k.row(c, packed.get(), scratch.get(), y, p, counts.counts());
    });
    std::printf("  %s %.0f", k.name, best);
  }
  std::printf(" GMAC/s\n");
}

void bench_fconv(const char* name, FConv c, bool points = false) {
  c.points = points;
  Buffer map(4 * size_t(c.in_h) * c.in_w * c.in_c), packed(4 * fconv_weight_floats(c));
  Buffer scratch(4 * fconv_scratch_floats(c)), out(4 * size_t(c.out_h) * c.out_w * c.out_c);
  std::vector<float> weights(size_t(c.out_c) * c.kh * c.kw * c.in_c / c.groups, 0.5f);
  std::memset(map.get(), 0, 4 * size_t(c.in_h) * c.in_w * c.in_c);
  fconv_pack(c, weights.data(), packed.floats());
  const double macs = double(c.out_h) * c.out_w * weights.size();
  std::printf("fconv %-24s", name);
  for (int i = 0; i < fconv_path_count; ++i) {
    const FPath& path = *fconv_paths[i];
    if (!path.supported()) continue;
    const double best = rate(macs, [&] {
      fconv_rows(path, c, packed.floats(), nullptr, map.floats(), out.floats(), scratch.floats(), 0, c.out_h);
    });
    std::printf("  %s %.1f GMAC/s %.3f ms", path.name, best, macs / best * 1e-6);
  }
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--bench") == 0) {
    bench_bconv(64, 56), bench_bconv(128, 28), bench_bconv(256, 14), bench_bconv(512, 7);
    bench_bconv(16, 32), bench_bconv(32, 16), bench_bconv(64, 8), bench_bconv(80, 16), bench_bconv(96, 16);
    bench_fconv("7x7/2 3->64, 224 px", {224, 224, 3, 112, 112, 64, 7, 7, 2, 2, 1, 1, 3, 3, 1});
    bench_fconv("7x7/2 at points", {224, 224, 3, 112, 112, 64, 7, 7, 2, 2, 1, 1, 3, 3, 1}, true);
    bench_fconv("3x3 3->64, 32 px", {32, 32, 3, 32, 32, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1});
    bench_fconv("3x3 3->16, 32 px", {32, 32, 3, 32, 32, 16, 3, 3, 1, 1, 1, 1, 1, 1, 1});
    bench_fconv("1x1/2 64->128, 56 px", {56, 56, 64, 28, 28, 128, 1, 1, 2, 2, 1, 1, 0, 0, 1});
    bench_fconv("1x1/2 256->512, 14 px", {14, 14, 256, 7, 7, 512, 1, 1, 2, 2, 1, 1, 0, 0, 1});
    bench_fconv("classifier 512->1000", {1, 1, 512, 1, 1, 1000, 1, 1, 1, 1, 1, 1, 0, 0, 1});
    return 0;
  }
  const int cases = argc > 1 ? std::atoi(argv[1]) : 3000;
  const bool good = test_bconv(cases) && test_fconv(cases / 3);
  std::puts(good ? "all good" : "FAILED");
  return good ? 0 : 1;
}
