// One lane of an operation: a program counter, its messages, and what the instruction under way remembers.
//
// The one rule: what you send is what you keep. A value that was encoded is replaced by what its bytes decode to, here
// as on all other ranks, and the difference is added to residuals: by a single holder all of it, by each of several a
// slice. The same instructions, clearer and slower: gqallreduce/runtime/interpreter.py.
#pragma once
#include <vector>

#include "gq/runtime/event.hpp"
#include "gq/runtime/operation.hpp"
#include "gq/runtime/selection.hpp"
#include "gq/runtime/transport.hpp"

namespace gq::runtime {

class Lane {
 public:
  Lane(Operation& operation, int number);

  // Goes on until it must wait, is finished, something must be told (event), or a poll is due.
  void advance(Transport* transport, double poll_at, Event& event);
  // Is there what it waits for?
  bool ready() const;
  bool finished() const { return at_ == program_.instructions.size(); }
  // Finished, and all its messages out?
  bool done() const {
    return finished() && sends_under_way_ == 0 && to_send_.empty() && answers_due_ == 0 && answers_under_way_ == 0;
  }

  // It is done: what was lent to it goes back, and it is as before its first instruction.
  void rest();

  // A part of a message has been received, or has left. A code of the transport's, or 0.
  int received(Transport& transport, int slot, std::size_t nbytes);
  int sent(Transport& transport, int sending);
  // A reader of what is exposed from a slot has told that it has read it.
  void answered(int slot);

  Operation& operation;
  const int number;
  int share = 1;       // requests that it may have outstanding, sends and receives each
  bool begun = false;  // has the engine let it begin, and not end yet?

 private:
  struct Slot {
    Pool::Block block;
    std::size_t nbytes = 0, bound = 0;
    std::size_t received = 0;
    int uses = 0;  // by the program, and by each send under way
    int parts_left = 0;
    const Instruction* post = nullptr;  // of a message that is received
    bool ready = false;
    bool opened = false;    // have its headers been read?
    std::size_t heads = 0;  // where those of its wires begin
    // Made here: where its values lie if they are exposed rather than sent, and what readers are told.
    const std::uint8_t* exposed = nullptr;
    std::uint64_t flags = 0;
    // Received: do its values lie in another rank's memory?
    bool remote = false;
    Exposure exposure = {};
  };

  // Where a wire begins in its slot, and what its header says.
  struct Head {
    std::size_t at;
    Header header;
  };

  // A part of a message that waits until a request is free.
  struct Part {
    std::uint8_t* data;
    std::size_t nbytes;
    int peer, message;
  };

  // First in, first out, without an allocation once it has grown.
  class Queue {
   public:
    bool empty() const { return first_ == parts_.size(); }
    void push(const Part& part) { parts_.push_back(part); }
    Part pop() {
      const Part part = parts_[first_++];
      if (empty()) parts_.clear(), first_ = 0;
      return part;
    }

   private:
    std::vector<Part> parts_;
    std::size_t first_ = 0;
  };

  struct Sending {
    int slot, parts_left, peer;
    double began;  // if it is traced
  };

  // Bytes that are read at once from another rank: the copy and what it is added to stay in a core's cache.
  static constexpr std::size_t kReadAtOnce = 1 << 17;
  static constexpr std::int64_t kGone = -4;  // where bytes read are counted: it is not exposed any more

  // What of a running value becomes this rank's slice of an error.
  struct Slice {
    int tensor;
    std::size_t begin, stop;
    float *now, *before;
  };

  enum class Waits { kNot, kForSlot, kForAny };
  static constexpr std::size_t kBetweenPolls = 1 << 15;  // elements of small extents or pieces, if there are several

  const Chunk& chunk(const Instruction& instruction) const { return chunks_[instruction.chunk]; }
  Flaw& flaw(const Instruction& instruction) { return operation.flaw(number, instruction.chunk); }
  void next() { ++at_, extent_ = 0; }
  // Works on extents from the one under way on, by work(extent), up to an event or so many elements that a poll may be
  // due.
  template <class Work>
  void on_extents(const Chunk& chunk, const Event& event, Work work) {
    std::size_t elements = 0;
    do {
      elements += chunk.extents[extent_].size;
      work(chunk.extents[extent_]);
      ++extent_;
    } while (!event && extent_ < chunk.extents.size() && elements < kBetweenPolls);
  }

  void trace(const Instruction& instruction, double began);

  // Each carries out one instruction, or a part of it.
  void carry_out(const Instruction& instruction, Event& event);
  void post(const Instruction& instruction, Event& event);
  void encode(const Instruction& instruction, Event& event);
  void join(const Instruction& instruction, Event& event);
  void transmit(const Instruction& instruction, Event& event);
  void wait(const Instruction& instruction, Event& event);
  void wait_any(const Instruction& instruction, Event& event);
  void begin_sum(const Instruction& instruction, Event& event);
  void decode(const Instruction& instruction, Event& event);
  void share_error(const Instruction& instruction, Event& event);
  void finish(const Instruction& instruction, Event& event);
  void finish_extent(const Instruction& instruction, const Extent& extent, Event& event);

  void tell(Event& event, Kind kind, int chunk, const void* data, std::size_t nbytes = 0) const;
  bool select(const Instruction& instruction);
  bool too_large(const Extent& extent, const float* x) const;  // for shared errors
  const Kept* kept_of(const Instruction& instruction, const Extent& extent, const Operation::Own& own, float* errors);
  void encode_extent(const Instruction& instruction, const Extent& extent, Slot& made, Event& event);
  bool by_region(const Instruction& instruction, const Extent& extent) const {
    const Coder& coder = coder_of(instruction, extent);
    return coder.by_region && coder.options.selects != Selects::kOfColumns && operation.plain_batch(extent);
  }
  std::int64_t encode_regions(const Instruction& instruction, const Extent& extent, const float* x, std::uint8_t* wire);
  bool begin_extent(const Instruction& instruction, const Extent& extent, float* y);
  bool begin_regions(const Extent& extent, bool clears, float* y);
  std::int64_t decode_regions(const Coder& coder, const Extent& extent, const std::uint8_t* wire, std::size_t nbytes,
                              double scale);
  void seal(const Instruction& instruction, Slot& made);
  bool open(Slot& slot, Event& event);
  bool open_payload(const Instruction& instruction);
  void close_payload(Event& event);
  bool decode_extents(const Instruction& instruction, double scale, Event& event);
  bool decode_extent(const Instruction& instruction, const Extent& extent, double scale, Event& event);
  std::int64_t decode_values(const Instruction& instruction, const Extent& extent, float* y, double scale,
                             Event& event);
  bool refused(const Instruction& instruction, const Extent& extent, std::int64_t why, Event& event);
  const Coder& coder_of(bool exact, const Extent& extent) const {
    return exact && !operation.wide(extent.tensor) ? *program_.exact : operation.coder(extent);
  }
  const Coder& coder_of(const Instruction& instruction, const Extent& extent) const {
    return coder_of(instruction.exact, extent);
  }
  void keep_slices(const Instruction& instruction);
  void end_slices();
  const std::uint8_t* wire_of(int slot, int number, std::size_t& nbytes) const;

  // Running values of a chunk: in the memory of the new residual (may_sum_in_residual) or of the result, else lent.
  bool has_running(int chunk) const { return running_[chunk].known; }
  float* running(int chunk, const Extent& extent) {
    return running(chunk, extent.piece) + extent.at * operation.width(extent.tensor);
  }
  float* running(int chunk, int piece);
  bool may_sum_in_residual(const Instruction& instruction) const;
  void make_room(int chunk);
  Touched& touched(int chunk);
  std::int64_t encode_values(const Instruction& instruction, const Extent& extent, const Operation::Own& own,
                             float* errors, std::uint8_t* wire);
  void drop(int chunk);

  // --- what is exposed (runtime_lane_exposing.cpp) ---

  std::size_t verbatim_nbytes(const Chunk& chunk, bool exact) const;
  const std::uint8_t* expose(const Instruction& instruction, Slot& made, std::size_t& nbytes);
  const std::uint8_t* values_in_place(const Instruction& instruction, std::size_t nbytes);
  bool keep_in_place(const Extent& extent, int chunk, Event& event);
  std::uint8_t* show(Slot& slot, const Instruction& instruction, Event& event);
  bool open_exposed(Slot& slot, const Wire& wire, Header& header);
  bool take_whole(int slot, Event& event);
  bool fetch_here(int slot, std::size_t from, void* to, std::size_t nbytes, Event& event);
  std::size_t nbytes_of(const Extent& extent) const {
    return extent.size * operation.width(extent.tensor) * sizeof(float);
  }
  const std::uint8_t* fetch_extent(int slot, const Extent& extent, Event& event);
  bool skip_remote(const Instruction& instruction, const Extent& extent, Event& event);
  void check(const Slot& slot, const Extent& extent, int chunk, const float* values, Event& event);
  std::int64_t decode_remote(const Instruction& instruction, const Extent& extent, float* y, double scale,
                             Event& event);
  void answer(const Slot& slot, Event& event);

  void unused(Slot& slot);
  int post_parts(Queue& queue, bool receives);
  template <class Give>
  int cut(std::uint8_t* data, std::size_t nbytes, std::size_t bound, int peer, Give give);

  const Program& program_;
  const std::vector<Chunk>& chunks_;
  Transport* transport_ = nullptr;
  std::size_t at_ = 0, extent_ = 0;
  Waits waits_ = Waits::kNot;
  double stopped_ = 0;  // when it began to wait, if it is traced
  int waits_for_ = -1;

  std::vector<Slot> slots_;
  std::vector<Head> heads_;
  std::vector<int> arrived_;   // slots in the order in which they came
  std::size_t looked_at_ = 0;  // how many of these a kWaitAny has looked at
  int chosen_ = 0;
  std::vector<int> target_of_;  // of the kWaitAny under way: where the program goes on for a slot, -1 for none
  std::size_t targets_for_ = SIZE_MAX;

  bool encoding_ = false;
  std::vector<Selection> selections_;  // of each piece of running values
  std::vector<Selection::Part> parts_;
  std::size_t piece_ = 0;  // that is selected from
  bool selecting_ = false, selected_ = false;
  Kept kept_;                         // of an extent
  std::vector<std::int64_t> counts_;  // of its regions
  Pool::Block index_block_, value_block_;
  EncodingState state_;           // of the message
  std::vector<Vectors> vectors_;  // of the regions of a batch, and where their results are
  std::vector<float*> targets_;
  std::size_t offset_ = 0;  // bytes written, or read
  const std::uint8_t* payload_ = nullptr;
  std::size_t payload_nbytes_ = 0;

  struct Running {
    bool known = false;
    bool in_residual = false;  // does it lie in the new residual?
    Pool::Block block;
    std::vector<std::size_t> lent;  // of each piece, where in the block its values begin
    std::vector<Touched> touched;   // of each extent, with exact sums
  };
  std::vector<Running> running_;
  std::vector<Slice> slices_;
  Pool::Block before_;  // of the slices

  Queue to_send_, to_receive_;
  std::vector<Sending> sendings_;
  int sends_under_way_ = 0, receives_under_way_ = 0;
  int answers_due_ = 0, answers_under_way_ = 0;
};

}  // namespace gq::runtime
