// What is done to a row of pixels after the counting: pointwise steps and bits. A row is `pixels` times `n` channels;
// from one pixel to the next it is `stride` numbers. One table entry an instruction set (rows.cpp).
#pragma once
#include <cstddef>
#include <cstdint>

namespace lcrbnn {

// The counts of a row become numbers: a * (spatial * acc) + b.
struct CountsRow {
  const uint16_t* counts;  // [pixels][panel]
  int panel, pixels, n, taps;
  const float* a;
  const float* b;
  const int32_t* correction;  // [class of a column][channels], or null
  const int32_t* column;      // the class of each pixel
  size_t correction_stride;
  int plain;             // the class that needs no correction in this row, or -1
  const float* spatial;  // or null
  size_t spatial_stride;
  bool spatial_one;  // one number for all channels
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

// Channels [first, first + n) of a row as bits of a map [pixels][groups][words].
struct BitsRow {
  uint64_t* to;
  size_t words;  // a pixel, of all groups
  int group_in, group_words;
  int first, channels;  // channels: of the whole value
};

// bit = (count < limit) xor flip; limits are those of a class of border.
struct LimitsRow {
  const uint16_t* counts;
  int panel, pixels, n;
  const uint16_t* limit;  // [class of a column][channels]
  const int32_t* column;  // or null: all pixels are of the first class
  size_t limit_stride;
  const uint8_t* flip;  // bits, lowest first, of all channels
};

// The largest numbers under a window, a channel at a time; NaN stays. Windows lie on at most kPoolRows rows at once.
const int kPoolRows = 4;
struct PoolRow {
  const float* rows[kPoolRows];
  int count;              // of rows
  bool more;              // `to` has numbers of other rows already
  int width, n;           // of the rows; channels
  int pixels, kw, sx, left;  // of `to`; the window
  float* to;
};

// One step on numbers that are still in registers.
enum class MicroKind : uint8_t { affine, add, hardtanh, relu, prelu, shift, store, bits };
struct Micro {
  MicroKind kind;
  const float* a;  // affine; slope of prelu; thresholds of bits; the other map of add
  const float* b;  // affine, shift
  float* to;       // store
  uint8_t* bits;   // of the first pixel
  size_t stride;   // from one pixel to the next: of add, store (numbers) and bits (bytes)
};
const int kMostMicros = 24;

struct RowOps {
  const char* name;
  bool (*supported)();
  void (*counts)(const CountsRow&);
  // Counts to numbers and all steps on them at once, for n a multiple of 8 and no spatial; null where there is none.
  void (*finish)(const CountsRow&, const Micro*, int micros);
  void (*affine)(const Row&, const float* a, const float* b);
  void (*add)(const Row&, const float* other, size_t other_stride);
  void (*hardtanh)(const Row&);
  void (*relu)(const Row&);
  void (*prelu)(const Row&, const float* slope);
  void (*shift)(const Row&, const float* b);
  void (*bits)(const Row&, const float* threshold, bool one, const BitsRow&);  // one: a single threshold for all
  void (*limits)(const LimitsRow&, const BitsRow&);
  void (*pool)(const PoolRow&);
  void (*sum)(double* to, const float* from, size_t n);  // to += from
  void (*divide)(float* to, const double* from, double count, size_t n);
};

// The best for this CPU, or the one of the kernel that `forced` or else the environment variable LCRBNN_KERNEL names.
// All give the same bits.
const RowOps& choose_rows(const char* forced);

}  // namespace lcrbnn
