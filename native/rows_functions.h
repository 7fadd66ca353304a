// Activation functions of version 2 from a fixed sequence of float32 operations; rows_body.h includes this file.
// lcrbnn/deploy/engine/reference_functions.py has the same operations in the same order, so that all bits are equal.
// No header may be included here. Products are rounded before sums (-ffp-contract=off).

TARGET inline uint32_t bits_of(float v) {
  uint32_t bits;
  __builtin_memcpy(&bits, &v, 4);
  return bits;
}
TARGET inline float float_of(uint32_t bits) {
  float v;
  __builtin_memcpy(&v, &bits, 4);
  return v;
}
TARGET inline float absolute(float v) { return float_of(bits_of(v) & 0x7FFFFFFF); }

// Returns exp(x) - 1 for |x| <= ln(2) / 2.
TARGET inline float expm1_polynomial(float x) {
  float p = 0.00019918373f;
  p = p * x + 0.0013946105f;
  p = p * x + 0.008333264f;
  p = p * x + 0.04166627f;
  p = p * x + 0.16666667f;
  p = p * x + 0.5f;
  return (x * x) * p + x;
}

// Returns exp(x) for x <= 0. Adding 1.5 * 2^23 rounds x / ln(2) to an integer in the lowest bits.
TARGET inline float exp32(float x) {
  const float limited = x < -87.0f ? -87.0f : x;
  const float shifted = limited * 1.44269504f + 12582912.0f, power = shifted - 12582912.0f;
  const float rest = (limited - power * 0.693359375f) - power * -2.12194440e-4f;
  const float fraction = expm1_polynomial(rest) + 1.0f;
  const float result = float_of(bits_of(fraction) + (bits_of(shifted) << 23));
  return x < -87.0f ? 0.0f : result;
}

TARGET inline float sigmoid32(float x) {
  const float e = exp32(-absolute(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

TARGET inline float tanh32(float x) {
  const float square = x * x, size = absolute(x);
  float p = -0.0061222669f;
  p = p * square + 0.020967646f;
  p = p * square + -0.0538281f;
  p = p * square + 0.13332368f;
  p = p * square + -0.3333331f;
  const float near_zero = x + (x * square) * p;
  const float e = exp32(size * -2.0f), quotient = (1.0f - e) / (1.0f + e);
  return size < 0.5625f ? near_zero : x < 0.0f ? -quotient : quotient;
}

TARGET inline float gelu32(float x) {
  const float t = 1.0f / (1.0f + 0.3f * absolute(x));
  float p = 0.036088876f;
  p = p * t + -0.15893388f;
  p = p * t + 0.20934664f;
  p = p * t + -0.056450319f;
  p = p * t + 0.13003273f;
  p = p * t + 0.09946503f;
  p = p * t + 0.12082632f;
  p = p * t + 0.11962454f;
  const float tail = x * ((p * t) * exp32((x * x) * -0.5f));
  return x < -5.5143f ? 0.0f : x < 0.0f ? tail : x - tail;  // 0 where 1 + erf rounds to 0, as in torch
}

TARGET inline float gelu_tanh32(float x) {
  const float y = x * sigmoid32(1.5957691f * (x + 0.044715f * ((x * x) * x)));
  return x < -5.0614f ? 0.0f : y;
}

TARGET inline float clamp32(float x, float low, float high) {
  const float raised = x < low ? low : x;
  return raised > high ? high : raised;
}

TARGET inline float hardsigmoid32(float x) { return clamp32(x + 3.0f, 0.0f, 6.0f) / 6.0f; }

TARGET inline float elu32(float x, float alpha) {
  const float small = expm1_polynomial(x), large = exp32(x) - 1.0f;
  const float negative = alpha * (x > -0.34375f ? small : large);
  return x > 0.0f ? x : negative;
}

#define APPLY(...)                                             \
  for (int x = 0; x < r.pixels; ++x) {                         \
    const float* from = r.from + size_t(x) * r.from_stride;    \
    float* to = r.to + size_t(x) * r.to_stride;                \
    LOOP for (int c = 0; c < r.n; ++c) {                       \
      const float v = from[c];                                 \
      to[c] = __VA_ARGS__;                                     \
    }                                                          \
  }                                                            \
  break

TARGET void activation_row(const Row& row, const Activation& activation) {
  const Row r = joined(row, size_t(row.n));
  const float low = activation.low, high = activation.high;
  switch (activation.function) {
    case Function::clamp: APPLY(clamp32(v, low, high));
    case Function::sigmoid: APPLY(sigmoid32(v));
    case Function::tanh: APPLY(tanh32(v));
    case Function::gelu: APPLY(gelu32(v));
    case Function::gelu_tanh: APPLY(gelu_tanh32(v));
    case Function::silu: APPLY(v * sigmoid32(v));
    case Function::hardsigmoid: APPLY(hardsigmoid32(v));
    case Function::hardswish: APPLY(v * hardsigmoid32(v));
    case Function::elu: APPLY(elu32(v, low));
  }
}

#undef APPLY
