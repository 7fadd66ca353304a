// The function `finish` of rows.h for an instruction set whose Pack has kLanes numbers; rows.cpp includes this file. If
// kLanes is more than 8, REST is the same function with 8 lanes, for the remaining channels.
// No header may be included here. Products are rounded before sums (-ffp-contract=off).

// kWide packs of channels of one pixel stay in registers from counts to bits. They are four variables, because
// compilers may keep an array in memory.
#define EACH(DO)                            \
  {                                         \
    DO(v0, 0)                               \
    if (kWide > 1) {                        \
      DO(v1, kLanes)                        \
    }                                       \
    if (kWide > 2) {                        \
      DO(v2, 2 * kLanes) DO(v3, 3 * kLanes) \
    }                                       \
  }
#define LOAD(p, i) load((p) + c + (i))
#define SUM(i) sum_of(count + (i), r.taps, more ? more + (i) : nullptr)
#define COUNT(v, i) v = add(multiply(LOAD(r.a, i), SUM(i)), LOAD(r.b, i));
#define AFFINE(v, i) v = add(multiply(LOAD(m->a, i), v), LOAD(m->b, i));
#define ADD(v, i) v = add(v, load(from + (i)));
#define HARDTANH(v, i) v = min(one(1.0f), max(one(-1.0f), v));
#define RELU(v, i) v = max(one(0.0f), v);
#define PRELU(v, i) v = where_below(v, multiply(LOAD(m->a, i), v));
#define SHIFT(v, i) v = add(v, LOAD(m->b, i));
#define STORE(v, i) store(to + (i), v);
#define BITS(v, i) word |= sign_bits(v, LOAD(m->a, i)) << (i);

template <int kWide>
TARGET inline void finish_some(const CountsRow& r, const int32_t* more, const Micro* m, const Micro* end, size_t x,
                               size_t c) {
  Pack v0 = one(0.0f), v1 = v0, v2 = v0, v3 = v0;
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
      case MicroKind::hardtanh: EACH(HARDTANH) break;  // min and max return the second operand if one is NaN
      case MicroKind::relu: EACH(RELU) break;
      case MicroKind::prelu: EACH(PRELU) break;
      case MicroKind::shift: EACH(SHIFT) break;
      case MicroKind::store: {
        float* to = m->to + x * m->stride + c;  // read once: the compiler must assume that a store changes *m
        EACH(STORE)
        break;
      }
      case MicroKind::bits: {
        uint64_t word = 0;
        EACH(BITS)
        __builtin_memcpy(m->bits + x * m->stride + c / 8, &word, kWide * kLanes / 8);
        break;
      }
    }
  }
}

TARGET void finish_row(const CountsRow& row, const Micro* micros, int count) {
  const CountsRow r = row;
  const Micro* end = micros + count;
  const size_t n = size_t(r.n);
  for (size_t x = 0; x < size_t(r.pixels); ++x) {
    const bool plain = !r.correction || r.column[x] == r.plain;
    const int32_t* more = plain ? nullptr : r.correction + size_t(r.column[x]) * r.correction_stride;
    size_t c = 0;
    for (; c + 4 * kLanes <= n; c += 4 * kLanes) finish_some<4>(r, more, micros, end, x, c);
    for (; c + 2 * kLanes <= n; c += 2 * kLanes) finish_some<2>(r, more, micros, end, x, c);
    for (; c + kLanes <= n; c += kLanes) finish_some<1>(r, more, micros, end, x, c);
#ifdef REST
    if (c < n) REST(r, more, micros, end, x, c);
#endif
  }
}

#undef EACH
#undef LOAD
#undef SUM
#undef COUNT
#undef AFFINE
#undef ADD
#undef HARDTANH
#undef RELU
#undef PRELU
#undef SHIFT
#undef STORE
#undef BITS
