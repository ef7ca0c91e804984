// What a Plan says, as data: the instructions of a rank (gqallreduce/scheduling/instructions.py has what each means),
// and how its tensors are cut into chunks, pieces and extents (coding/layout.py), and into lanes (coding/lanes.py).
// Never changed once it is made.
#pragma once
#include <cstdint>
#include <vector>

#include "gq/regions.hpp"
#include "gq/runtime/coder.hpp"

namespace gq::runtime {

// Lanes that may be under way together, each with its own tag; where there are more, they run one by one.
constexpr int kLanesTogether = 8;

enum class Op : int {
  kPost,
  kEncode,
  kJoin,
  kTransmit,
  kWait,
  kWaitAny,
  kJump,
  kBeginSum,
  kDecode,
  kShare,
  kDrop,
  kRelease,
  kFinish
};

// Whether values that are encoded as they are may be exposed where they lie, and until when
// (gqallreduce/runtime/exposing.py).
enum class Exposes : int { kNot, kUntilRead, kUntilResult };

struct Instruction {
  Op op;
  int slot = -1, chunk = -1;
  int peer = -1;                      // kPost: source, kTransmit: to
  int part = 0;                       // kDecode, kShare: which of the wires in the slot
  int hop = 0, author = 0;            // kEncode
  int index = 0, of = 1;              // kShare
  int first = 0, count = 0;           // kPost: of `wires`; kJoin: of `wires` and `parts`; kWaitAny: of `choices`
  int target = 0;                     // kJump; kWaitAny: where it goes on when all have been chosen
  bool own = false, alone = false;    // kEncode
  bool adds = false, result = false;  // kDecode
  bool clears = false;                // kBeginSum: the new residual becomes zero
  bool in_residual = false;           // kBeginSum: may the sum be formed in the new residual?
  bool exact = false;                 // kEncode, kDecode: without loss, and not by the codec
  Exposes exposes = Exposes::kNot;    // kEncode
  bool forwarded = false;             // kPost: does what comes go on to other ranks?
};

struct Wire {
  int chunk, author;
  bool exact;
};

struct Part {
  int slot, number;
};

struct Choice {
  int slot, target;
};

// What is encoded at once: regions of one tensor, or of a batch of small ones, which are put end to end.
struct Extent {
  std::vector<Region> regions;
  int tensor;         // kBatch for a batch
  std::size_t start;  // in the tensor
  std::size_t size;
  std::size_t total;  // elements of the tensor
  int piece;          // of the chunk
  std::size_t at;     // in the piece
  bool streams;       // is the tensor so long that what is written has left the caches when it is read?

  static constexpr int kBatch = -1;

  Regions table() const { return {regions.data(), regions.size()}; }
  // The tensor whose codec it is encoded by.
  int coded_as() const { return tensor == kBatch ? static_cast<int>(regions.front().segment) : tensor; }
};

// Elements [start, stop) of a tensor, within a piece from element `at` on.
struct Stretch {
  int tensor;
  std::size_t start, stop, at;
};

struct Piece {
  int tensor;  // Extent::kBatch for a batch
  std::size_t size;
  std::vector<Stretch> parts;
};

struct Chunk {
  std::size_t bound;        // of a message's payload, in bytes
  std::size_t exact_bound;  // of one that is encoded without loss
  std::vector<Piece> pieces;
  std::vector<Extent> extents;
};

struct Program {
  int rank, size, slots = 0;
  std::vector<Instruction> instructions;
  std::vector<Wire> wires;
  std::vector<Part> parts;
  std::vector<Choice> choices;
  std::vector<std::vector<Chunk>> lanes;  // lanes[lane][chunk]
  std::size_t widest = 0;                 // elements of the largest extent
  double scale = 1;                       // of a sum to the result
  int lanes_at_once = 1;
  int messages = 1;         // the most that a lane has under way at once in one direction
  std::size_t longest = 0;  // bytes of the longest

  const Coder* exact = nullptr;  // of what is encoded without loss

  // Bytes of the longest message of the wires of a kPost or kJoin.
  std::size_t bound_of(int lane, const Instruction& instruction) const;
  // Of each chunk: which of so many slices of what rounding it loses this rank keeps; none if negative.
  std::vector<std::pair<int, int>> error_holders;
};

}  // namespace gq::runtime
