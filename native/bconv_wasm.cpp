// WebAssembly SIMD kernel: counts the bits of bytes (xor, popcnt, add).
#if defined(__wasm_simd128__)
#include <wasm_simd128.h>

#include <cstddef>
#include <cstdint>

namespace lcrbnn {
namespace {

using Bytes = v128_t;

inline Bytes none() { return wasm_i64x2_const_splat(0); }
inline Bytes twice(const uint64_t* word) { return wasm_v128_load64_splat(word); }
inline Bytes count(Bytes bytes, Bytes word, const uint64_t* weights) {
  return wasm_i8x16_add(bytes, wasm_i8x16_popcnt(wasm_v128_xor(word, wasm_v128_load(weights))));
}
inline v128_t pairs(v128_t a, v128_t b) {  // sums of adjacent 16-bit numbers
  return wasm_i16x8_add(wasm_i16x8_shuffle(a, b, 0, 2, 4, 6, 8, 10, 12, 14),
                        wasm_i16x8_shuffle(a, b, 1, 3, 5, 7, 9, 11, 13, 15));
}
typedef uint16_t Counts __attribute__((vector_size(16)));
inline Counts widened(Bytes a, Bytes b, Bytes c, Bytes d) {
  const v128_t low = pairs(wasm_u16x8_extadd_pairwise_u8x16(a), wasm_u16x8_extadd_pairwise_u8x16(b)),
               high = pairs(wasm_u16x8_extadd_pairwise_u8x16(c), wasm_u16x8_extadd_pairwise_u8x16(d));
  return Counts(pairs(low, high));
}
inline void hold(Bytes&, Bytes&, Bytes&, Bytes&) {}

}  // namespace
}  // namespace lcrbnn

#include "bconv_bytes_body.h"

namespace lcrbnn {
const BKernel bconv_wasm = {"simd128", supported, takes, kPanel, weight_bytes, pack, folded_bytes, folded_prepare, row};
}  // namespace lcrbnn
#endif
