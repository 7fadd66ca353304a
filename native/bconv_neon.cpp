// NEON kernel: counts the bits of bytes (eor, cnt, add).
#if defined(__aarch64__)
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

namespace lcrbnn {
namespace {

using Bytes = uint8x16_t;

inline Bytes none() { return vdupq_n_u8(0); }
inline Bytes twice(const uint64_t* word) { return vreinterpretq_u8_u64(vld1q_dup_u64(word)); }
inline Bytes count(Bytes bytes, Bytes word, const uint64_t* weights) {
  return vaddq_u8(bytes, vcntq_u8(veorq_u8(word, vreinterpretq_u8_u64(vld1q_u64(weights)))));
}
typedef uint16x8_t Counts;
inline Counts widened(Bytes a, Bytes b, Bytes c, Bytes d) {
  const uint16x8_t low = vpaddq_u16(vpaddlq_u8(a), vpaddlq_u8(b)), high = vpaddq_u16(vpaddlq_u8(c), vpaddlq_u8(d));
  return vpaddq_u16(low, high);
}
inline void hold(Bytes& a, Bytes& b, Bytes& c, Bytes& d) {
  asm volatile("" : "+w"(a), "+w"(b), "+w"(c), "+w"(d));
}

}  // namespace
}  // namespace lcrbnn

#include "bconv_bytes_body.h"

namespace lcrbnn {
const BKernel bconv_neon = {"neon", supported, takes, kPanel, weight_bytes, pack, folded_bytes, folded_prepare, row};
}  // namespace lcrbnn
#endif
