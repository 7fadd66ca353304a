// Memory of a model: blocks aligned to 64 bytes, freed together, with a limit that no file can exceed.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace lcrbnn {

const uint64_t kMemoryLimit = uint64_t(1) << (sizeof(size_t) > 4 ? 33 : 30);
// the limit per model is floor + times * (size of the file)
const uint64_t kMemoryFloor = uint64_t(1) << 28, kMemoryTimes = 64;

inline void* aligned_new(size_t bytes) {
  void* block = nullptr;
  if (bytes > kMemoryLimit || posix_memalign(&block, 64, bytes + 64) != 0)
    return nullptr;  // 64 additional bytes, because kernels may read past the end
  return block;
}

class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    for (void* block : blocks_) free(block);
  }
  // Sets the limit, so that a small file that uses one tensor a thousand times cannot allocate without bound.
  void allow(uint64_t file_bytes) { limit_ = std::min(kMemoryLimit, kMemoryFloor + kMemoryTimes * file_bytes); }
  void* take(uint64_t bytes) {
    if (bytes > limit_ - total_) return nullptr;
    if (blocks_.size() == blocks_.capacity()) blocks_.reserve(2 * blocks_.size() + 16);
    void* block = aligned_new(size_t(bytes));
    if (!block) return nullptr;
    blocks_.push_back(block);
    total_ += bytes;
    return block;
  }
  // Counts memory that is allocated elsewhere.
  bool charge(uint64_t bytes) {
    if (bytes > limit_ - total_) return false;
    total_ += bytes;
    return true;
  }
  uint64_t total() const { return total_; }

 private:
  std::vector<void*> blocks_;
  uint64_t total_ = 0, limit_ = kMemoryLimit;
};

}  // namespace lcrbnn
