// The end of every message: its header, its way to where MPI takes it, and what the kernels before found.
#include "block.hpp"
#include "fours.hpp"

using namespace gq;
using namespace gq::device;

namespace gq {
namespace device {

constexpr std::size_t kHeader = 32;  // bytes; the third word says how many follow

struct Outcome {
  std::uint64_t status, nbytes;
};

}  // namespace device
}  // namespace gq

// `length`, where given, says how many bytes the message has, at most `most`; else it has `most`. target may be null.
GQ_KERNEL frame_ship(std::uint64_t word0, std::uint64_t word1, std::uint64_t word2, std::uint64_t word3,
                     const std::uint8_t* wire, const std::uint64_t* length, std::uint64_t most, std::uint8_t* target,
                     std::uint32_t* status, Outcome* outcome) {
  const std::uint64_t n = length && *length < most ? *length : most;
  const std::size_t thread = std::size_t(block_index()) * threads_per_block() + thread_index();
  if (target && target + kHeader != wire) {
    const std::size_t stride = 16 * std::size_t(blocks_per_grid()) * threads_per_block();
    for (std::size_t i = 16 * thread; i + 16 <= n; i += stride)
      store_four(target + kHeader + i, load_four<std::uint32_t>(wire + i, 4), 4);
    const std::size_t rest = n - n % 16 + thread;
    if (rest < n) target[kHeader + rest] = wire[rest];
  }
  if (thread > 0) return;
  if (target) {
    const std::uint64_t word[4] = {word0, word1, word2 + n, word3};
    for (unsigned k = 0; k < 4; ++k) store(target + 8 * k, word[k]);
  }
  *outcome = {*status, n};
  *status = 0;
}
