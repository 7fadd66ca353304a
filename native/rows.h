// Operations on a row of pixels after the counting: elementwise steps and sign bits. A row is `pixels` times `n`
// channels; `stride` is the distance between pixels in numbers. rows.cpp has one table entry per instruction set.
#pragma once
#include <cstddef>
#include <cstdint>

namespace lcrbnn {

// Converts the counts of a row to numbers: a * (spatial * acc) + b.
struct CountsRow {
  const uint16_t* counts;  // [pixels][panel]
  int panel, pixels, n, taps;
  const float* a;
  const float* b;
  const int32_t* correction;  // [column class][channels], or null
  const int32_t* column;      // class of each pixel
  size_t correction_stride;
  int plain;             // class without correction in this row, or -1
  const float* spatial;  // or null
  size_t spatial_stride;
  bool spatial_one;  // `spatial` has one number for all channels
  float* to;
  size_t to_stride;
};

struct Row {
  const float* from;
  size_t from_stride;
  float* to;
  size_t to_stride;
  int pixels, n;
};

// Output for channels [first, first + n) of a row as bits of a map [pixels][groups][words].
struct BitsRow {
  uint64_t* to;
  size_t words;  // per pixel, for all groups
  int group_in, group_words;
  int first, channels;  // channels of the whole value
};

// Computes bit = (count < limit) xor flip, with the limits of a border class.
struct LimitsRow {
  const uint16_t* counts;
  int panel, pixels, n;
  const uint16_t* limit;  // [column class][channels]
  const int32_t* column;  // or null: all pixels have the first class
  size_t limit_stride;
  const uint8_t* flip;  // one bit per channel, lowest first
};

// Maximum per channel over windows; NaN propagates. At most kPoolRows rows per call.
const int kPoolRows = 4;
struct PoolRow {
  const float* rows[kPoolRows];
  int count;              // number of rows
  bool more;              // `to` has results of other rows already
  int width, n;           // width of the rows; channels
  int pixels, kw, sx, left;  // pixels of `to`; kernel width, stride and left padding of the window
  float* to;
};

// Activation functions of version 2 (docs/format.md). clamp uses both limits, elu uses `low` as its alpha.
enum class Function : uint8_t { clamp, sigmoid, tanh, gelu, gelu_tanh, silu, hardsigmoid, hardswish, elu };
struct Activation {
  Function function;
  float low, high;
};

// One step on numbers in registers.
enum class MicroKind : uint8_t { affine, add, hardtanh, relu, prelu, shift, store, bits };
struct Micro {
  MicroKind kind;
  const float* a;  // a of affine, slope of prelu, thresholds of bits, second input of add
  const float* b;  // b of affine and shift
  float* to;       // store
  uint8_t* bits;   // output of bits for the first pixel
  size_t stride;   // distance between pixels, for add and store (numbers) and bits (bytes)
};
const int kMostMicros = 24;

struct RowOps {
  const char* name;
  bool (*supported)();
  void (*counts)(const CountsRow&);
  // Converts counts to numbers and runs all steps in registers. It needs n % 8 == 0 and no spatial; may be null.
  void (*finish)(const CountsRow&, const Micro*, int micros);
  void (*affine)(const Row&, const float* a, const float* b);
  void (*add)(const Row&, const float* other, size_t other_stride);
  void (*hardtanh)(const Row&);
  void (*relu)(const Row&);
  void (*prelu)(const Row&, const float* slope);
  void (*shift)(const Row&, const float* b);
  void (*multiply)(const Row&, const float* other, size_t other_stride);
  void (*activation)(const Row&, const Activation&);
  // Product of the matrices a [m][k] and b [k][n]. Each sum adds its terms in order.
  void (*matmul)(const float* a, const float* b, float* to, int m, int k, int n);
  void (*bits)(const Row&, const float* threshold, bool one, const BitsRow&);  // one: same threshold for all
  void (*limits)(const LimitsRow&, const BitsRow&);
  void (*pool)(const PoolRow&);
  void (*sum)(double* to, const float* from, size_t n);  // to += from
  void (*divide)(float* to, const double* from, double count, size_t n);
};

// Returns the fastest entry for this CPU, or that of the kernel that `forced` or else the environment variable
// LCRBNN_KERNEL names. All entries give the same bits.
const RowOps& choose_rows(const char* forced);

}  // namespace lcrbnn
