// All ranks in one process: messages are copied through mailboxes.
#pragma once
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <tuple>
#include <vector>

#include "gq/runtime/transport.hpp"

namespace gq::runtime {

// Of all ranks. They may work in threads of their own.
class Mailboxes {
 public:
  using Message = std::vector<std::uint8_t>;

  // Sees each message on its way, and may change it.
  using Tap = void (*)(void* context, int source, int to, int tag, Message& message);
  void set_tap(Tap tap, void* context) { tap_ = tap, context_ = context; }

  void put(int source, int to, int tag, const std::uint8_t* data, std::size_t nbytes);
  // Copies as much of the first message there into `data` as fits; false if there is none. nbytes: its length.
  bool take(int source, int to, int tag, std::uint8_t* data, std::size_t room, std::size_t& nbytes);
  bool empty();

 private:
  Tap tap_ = nullptr;
  void* context_ = nullptr;
  std::mutex mutex_;
  std::map<std::tuple<int, int, int>, std::deque<Message>> boxes_;
};

// Of one rank. Its one error, of code 1, is a message that is longer than its room.
class Loopback final : public Transport {
 public:
  // seed: in which order what has come is told; 0 for that in which it was asked for. exposed_from: as a Transport has
  // it.
  Loopback(Mailboxes& mailboxes, int rank, std::size_t limit, std::uint32_t seed, std::size_t exposed_from)
      : mailboxes_(mailboxes), rank_(rank), limit_(limit), seed_(seed), random_(seed), exposed_from_(exposed_from) {}

  int send(const std::uint8_t* data, std::size_t nbytes, int tag, const Ticket& ticket) override;
  int receive(std::uint8_t* data, std::size_t nbytes, int tag, const Ticket& ticket) override;
  int poll(std::vector<Completion>& completed) override;
  std::size_t limit(int) const override { return limit_; }
  std::size_t least_limit() const override { return limit_; }
  int process_of(int) const override;
  std::size_t exposed_from() const override { return exposed_from_; }
  const std::vector<Ticket>& pending() const override { return tickets_; }

 private:
  struct Room {
    std::uint8_t* data;
    std::size_t nbytes;
    int tag;
  };

  Mailboxes& mailboxes_;
  int rank_;
  std::size_t limit_;
  std::uint32_t seed_;
  std::mt19937 random_;
  std::size_t exposed_from_;
  std::vector<Completion> sent_;
  std::vector<Room> rooms_;  // what is due, and whose it is
  std::vector<Ticket> tickets_;
};

}  // namespace gq::runtime
