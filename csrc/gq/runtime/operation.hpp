// One call on a Program: what it works on, and how far each of its lanes is.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "gq/runtime/coder.hpp"
#include "gq/runtime/exposure.hpp"
#include "gq/runtime/pool.hpp"
#include "gq/runtime/program.hpp"

namespace gq::runtime {

class Lane;
class OwnSelection;

// A tensor's memory as a vector: runs of `run` elements whose first ones are `stride` apart; without gaps run is 0.
struct Array {
  std::uint8_t* data = nullptr;
  int format = kFloat32;  // 0 float16, 1 bfloat16, 2 float64, 3 float32
  bool wide = false;      // of float64: are its values worked on as such? Then a value takes the place of two floats
  std::size_t run = 0, stride = 0;

  static constexpr int kFloat64 = 2, kFloat32 = 3;

  std::size_t itemsize() const { return format == kFloat32 ? 4 : format == kFloat64 ? 8 : 2; }
  std::size_t width() const { return wide ? 2 : 1; }
  // The vector itself, if its values are worked on as they are; else null.
  float* floats() const { return run == 0 && as_it_is() ? reinterpret_cast<float*>(data) : nullptr; }
  // y := elements [start, start + n) as they are worked on; as float32 one beyond its range becomes an infinity.
  void load(std::size_t start, std::size_t n, float* y) const;
  // Elements := y, rounded to nearest even; is a result not finite?
  bool store(std::size_t start, std::size_t n, const float* y) const;

 private:
  bool as_it_is() const { return format == (wide ? kFloat64 : kFloat32); }
  template <class Work>
  void by_run(std::size_t start, std::size_t n, Work work) const;
};

// residual, new_residual: before and after the call; null without feedback, the first also where it has none.
struct Tensor {
  Array source, target;
  std::size_t size = 0;
  const float* residual = nullptr;
  float* new_residual = nullptr;
  const Coder* coder = nullptr;
  std::uint32_t key0 = 0, key1 = 0, step = 0;  // of its random streams
  bool loses = true;                           // does the codec lose anything?
  bool narrow = false;                         // has the target 16 bits, so that rounding the result is one more error?

  bool direct() const { return target.floats() != nullptr; }  // may running values lie in the result's memory?
  // Are values read and written where they are, as float32 without gaps?
  bool plain() const { return size == 0 || (!source.wide && source.floats() && target.floats()); }
};

// The header of a frame, as gqallreduce/coding/frame.py has it.
struct Header {
  std::uint8_t kind;
  std::uint32_t step;
  std::uint64_t signature, word;
  std::uint32_t rank;
  std::uint16_t hop;
  std::uint8_t lane;

  static constexpr std::size_t kSize = 32;
  static constexpr std::uint8_t kData = 0, kNotFinite = 1, kExposed = 8;

  void write(std::uint8_t* buffer) const;
  // False if there is none, or of another version.
  bool read(const std::uint8_t* buffer, std::size_t nbytes);
};

// (rank or kNoRank, number of the element) of a value that is not finite; the least counts.
struct Flaw {
  std::uint32_t rank = 0;
  std::uint64_t number = 0;
  bool known = false;

  void note(std::uint32_t rank, std::uint64_t number);
};

// What a call has cost. Seconds.
struct Spent {
  double encode = 0, decode = 0;
  std::uint64_t messages = 0, bytes_sent = 0, bytes_received = 0, selected = 0, saturated = 0;
};

// What a lane did, from when to when: an instruction, a wait, or a send, until it has left; or choosing own values.
struct Span {
  enum class Kind : int { kInstruction, kWait, kSend, kSelect };
  Kind kind;
  Op op;
  double began, ended;
  int lane, chunk, peer;
  std::size_t nbytes;
};

// What a reader is told of exposed values in place of the bytes, and where its answer arrives.
struct Shown {
  Mark mark;
  Lane* lane;
  int slot, peer;
  bool awaited;  // does the owner wait for the answer?
  std::uint8_t frame[Header::kSize + Exposure::kSize];
  std::uint64_t answer = 0;  // the mark of what was read

  Shown(Lane* of_lane, int of_slot, int to, bool awaits) : lane(of_lane), slot(of_slot), peer(to), awaited(awaits) {}
};

class Operation {
 public:
  Operation(const Program& program, Pool& pool);
  ~Operation();

  // A call begins, on the tensors that it was given. signature, step: in headers.
  void begin(std::uint64_t signature, std::uint32_t step);
  // The call is done: what was lent to it goes back. Another one may begin.
  void rest();

  const Program& program;
  Pool& pool;
  std::vector<Tensor> tensors;
  std::uint64_t signature = 0;
  std::uint32_t step = 0;
  std::uint64_t number = 0;  // in the order in which calls were started, alike on all ranks
  int tag = 0;               // of lane 0; those of the others follow
  bool feeds_back = false;
  bool plain = true;  // are all tensors?
  Spent spent;
  bool traced = false;
  std::vector<Span> spans;  // if it is
  std::vector<Flaw> flaws;  // of each place: lane * chunks + chunk
  // Chooses what is encoded of own values, until it has done so; null where nothing is chosen, or the caller does it.
  std::unique_ptr<OwnSelection> selection;
  bool selecting = false;
  // Of each place: what of the extents of own values is encoded; empty for all, or where nothing is chosen.
  std::vector<std::vector<Kept>> own_kept;
  std::vector<std::unique_ptr<Lane>> lanes;
  std::deque<Shown> shown;            // in this call
  std::deque<std::uint64_t> answers;  // to owners of what was read here
  int live = 0, begun = 0, left = 0;
  bool done = false;

  std::size_t place(int lane, int chunk) const { return lane * program.lanes[0].size() + chunk; }
  Flaw& flaw(int lane, int chunk) { return flaws[place(lane, chunk)]; }
  // What of an extent of own values is encoded, null for all.
  const Kept* kept(int lane, int chunk, std::size_t extent) const {
    const std::vector<Kept>& found = own_kept[place(lane, chunk)];
    return found.empty() ? nullptr : &found[extent];
  }
  Flaw first_flaw() const;
  // An answer has come, to what was shown as the number-th.
  void answered(int number);
  // Nothing is exposed any more.
  void withdraw();
  // Of each tensor the scale of its own values (OwnScale), rotated or not; not finite if a value is not.
  std::vector<float> own_scales(double clip, bool rotated);
  // From now on it chooses what is encoded of own values, by `go_on_selecting`, before a lane may begin.
  void select_own();
  // Until a poll is due, or it is done.
  void go_on_selecting(double poll_at);
  // One of four arrays for an extent; its content is lost when another extent is worked on.
  float* scratch(int which);

  // --- the values of an extent; of a wide tensor they are float64, behind pointers to float ---

  struct Own {
    const float *x, *residual;
  };
  Own own(const Extent& extent);
  // Where the error of an encoding is written, null without feedback; then `keep` it. `known`: to be read too.
  float* errors(const Extent& extent, bool known);
  void keep(const Extent& extent, const float* errors);
  // Stores an extent of a finished sum; is a value not finite?
  bool store(const Extent& extent, const Chunk& chunk, int chunk_number, float* y);
  // The random streams of an encoding, one of each tensor.
  const Stream* streams(int hop, int author);
  // May each region of a batch be worked on where its tensor is, instead of in scratch memory?
  bool plain_batch(const Extent& extent) const { return plain && extent.tensor == Extent::kBatch; }
  // May running values of a tensor, not of a batch, lie in the result's memory?
  bool direct(int tensor) const { return tensor != Extent::kBatch && tensors[tensor].direct(); }
  const Coder& coder(const Extent& extent) const { return *tensors[extent.coded_as()].coder; }
  // Are values of a tensor, not of a batch, worked on as float64?
  bool wide(int tensor) const { return tensor != Extent::kBatch && tensors[tensor].source.wide; }
  // How many floats take the place of one.
  std::size_t width(int tensor) const { return wide(tensor) ? 2 : 1; }

 private:
  void keep_rounding(const Extent& extent, const Chunk& chunk, int chunk_number, const Region& region, const float* y,
                     float* rounded);

  Pool::Block scratch_[4];
  std::size_t value_size_ = sizeof(float);  // bytes of the widest value
  std::vector<Stream> streams_;
  std::pair<int, int> streams_of_ = {-1, -1};  // the hop and author that they are of
};

}  // namespace gq::runtime
