#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "gq/runtime/loopback.hpp"

namespace gq::runtime {

void Mailboxes::put(int source, int to, int tag, const std::uint8_t* data, std::size_t nbytes) {
  Message message(data, data + nbytes);
  if (tap_) tap_(context_, source, to, tag, message);
  const std::lock_guard<std::mutex> lock(mutex_);
  boxes_[{source, to, tag}].push_back(std::move(message));
}

bool Mailboxes::take(int source, int to, int tag, std::uint8_t* data, std::size_t room, std::size_t& nbytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = boxes_.find({source, to, tag});
  if (found == boxes_.end()) return false;
  const Message& message = found->second.front();
  nbytes = message.size();
  if (std::min(nbytes, room) > 0) std::memcpy(data, message.data(), std::min(nbytes, room));
  found->second.pop_front();
  if (found->second.empty()) boxes_.erase(found);
  return true;
}

bool Mailboxes::empty() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return boxes_.empty();
}

int Loopback::send(const std::uint8_t* data, std::size_t nbytes, int tag, const Ticket& ticket) {
  mailboxes_.put(rank_, ticket.peer, tag, data, nbytes);
  sent_.push_back({ticket, nbytes});
  return 0;
}

int Loopback::process_of(int) const { return exposed_from_ ? getpid() : 0; }

int Loopback::receive(std::uint8_t* data, std::size_t nbytes, int tag, const Ticket& ticket) {
  rooms_.push_back({data, nbytes, tag});
  tickets_.push_back(ticket);
  return 0;
}

int Loopback::poll(std::vector<Completion>& completed) {
  const std::size_t before = completed.size();
  completed.insert(completed.end(), sent_.begin(), sent_.end());
  sent_.clear();
  std::size_t left = 0;
  for (std::size_t at = 0; at < rooms_.size(); ++at) {
    const Room room = rooms_[at];
    const Ticket ticket = tickets_[at];
    std::size_t nbytes = 0;
    if (mailboxes_.take(ticket.peer, rank_, room.tag, room.data, room.nbytes, nbytes)) {
      if (nbytes > room.nbytes) return 1;
      completed.push_back({ticket, nbytes});
    } else {
      rooms_[left] = room;
      tickets_[left++] = ticket;
    }
  }
  rooms_.resize(left);
  tickets_.resize(left);
  if (seed_) std::shuffle(completed.begin() + static_cast<std::ptrdiff_t>(before), completed.end(), random_);
  return 0;
}

}  // namespace gq::runtime
