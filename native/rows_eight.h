// Eight numbers as two 128-bit vectors of the compiler, with the operations for rows_body.h and rows_finish.h; rows.cpp
// includes this file for instruction sets without wider vectors. The including file defines `narrow` (two masks of four
// numbers to one of eight) and `mask_bits` (this mask to eight bits), which depend on the instruction set.
// No header may be included here. Products are rounded before sums (-ffp-contract=off).

struct Pack {
  Four low, high;
};
const size_t kLanes = 8;
inline Four four(const float* from) {
  Four v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}
inline Pack load(const float* from) { return {four(from), four(from + 4)}; }
inline void store(float* to, const Pack& v) {
  __builtin_memcpy(to, &v.low, sizeof(v.low));
  __builtin_memcpy(to + 4, &v.high, sizeof(v.high));
}
inline Pack one(float v) { return {Four{v, v, v, v}, Four{v, v, v, v}}; }
inline Pack add(const Pack& x, const Pack& y) { return {x.low + y.low, x.high + y.high}; }
inline Pack multiply(const Pack& x, const Pack& y) { return {x.low * y.low, x.high * y.high}; }
inline Pack min(const Pack& x, const Pack& y) {  // y if one is NaN
  return {x.low < y.low ? x.low : y.low, x.high < y.high ? x.high : y.high};
}
inline Pack max(const Pack& x, const Pack& y) {  // y if one is NaN
  return {x.low > y.low ? x.low : y.low, x.high > y.high ? x.high : y.high};
}
inline Four larger(Four x, Four y) { return ((x > y) | (x != x)) ? x : y; }  // NaN if one is NaN
inline Pack larger(const Pack& x, const Pack& y) { return {larger(x.low, y.low), larger(x.high, y.high)}; }
inline Pack where_below(const Pack& v, const Pack& low) {  // low if v is below zero or NaN
  const Four zero = {0.0f, 0.0f, 0.0f, 0.0f};
  return {v.low >= zero ? v.low : low.low, v.high >= zero ? v.high : low.high};
}
inline uint64_t sign_bits(const Pack& v, const Pack& t) {
  return mask_bits(narrow(v.low < t.low, v.high < t.high)) ^ 255u;
}
inline unsigned signs(const float* x, const float* t) { return unsigned(sign_bits(load(x), load(t))); }
inline unsigned signs_one(const float* x, float t) { return unsigned(sign_bits(load(x), one(t))); }

inline unsigned below(const uint16_t* count, const uint16_t* limit) {
  Eight c, l;
  __builtin_memcpy(&c, count, sizeof(c));
  __builtin_memcpy(&l, limit, sizeof(l));
  return mask_bits(Eight(c < l));
}
inline uint32_t below32(const uint16_t* count, const uint16_t* limit) {
  return below(count, limit) | below(count + 8, limit + 8) << 8 | below(count + 16, limit + 16) << 16 |
         uint32_t(below(count + 24, limit + 24)) << 24;
}

// Returns taps - 2 * count + more.
inline Four sum_of_four(const uint16_t* count, int taps, const int32_t* more) {
  HalfEight c;
  __builtin_memcpy(&c, count, sizeof(c));
  const Ints wide = __builtin_convertvector(c, Ints);
  Ints sum = Ints{taps, taps, taps, taps} - (wide + wide);
  if (more) {
    Ints corrected;
    __builtin_memcpy(&corrected, more, sizeof(corrected));
    sum += corrected;
  }
  return __builtin_convertvector(sum, Four);
}
inline Pack sum_of(const uint16_t* count, int taps, const int32_t* more) {
  return {sum_of_four(count, taps, more), sum_of_four(count + 4, taps, more ? more + 4 : nullptr)};
}
