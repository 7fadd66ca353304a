// SHA-256 (FIPS 180-4).
#pragma once
#include <cstddef>
#include <cstdint>

namespace lcrbnn {

void sha256(const uint8_t* data, size_t size, uint8_t digest[32]);

}  // namespace lcrbnn
