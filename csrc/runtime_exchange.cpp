#include <algorithm>
#include <cstring>

#include "gq/runtime/exchange.hpp"
#include "gq/runtime/operation.hpp"

namespace gq::runtime {

namespace {

template <class Number>
void keep_largest(std::uint8_t* values, const std::uint8_t* came, std::size_t nbytes) {
  for (std::size_t at = 0; at + sizeof(Number) <= nbytes; at += sizeof(Number)) {
    Number mine, theirs;
    std::memcpy(&mine, values + at, sizeof mine);
    std::memcpy(&theirs, came + at, sizeof theirs);
    if (theirs > mine || theirs != theirs) std::memcpy(values + at, &theirs, sizeof theirs);
  }
}

}  // namespace

Rounds::Rounds(Kind kind, int rank, int size, std::uint8_t* values, std::size_t nbytes)
    : kind_(kind), rank_(rank), size_(size), values_(values), nbytes_(nbytes) {}

std::size_t Rounds::longest() const { return nbytes_ * (kind_ == Kind::kGather ? std::max(1, size_ / 2) : 1); }

bool Rounds::headers_alike() const {
  Header expected;
  std::uint8_t row[Header::kSize];
  if (nbytes_ != Header::kSize || !expected.read(values_, nbytes_)) return false;
  for (int k = 0; k < size_; ++k) {
    expected.rank = static_cast<std::uint32_t>((rank_ + size_ - k) % size_);
    expected.write(row);
    if (std::memcmp(row, values_ + static_cast<std::size_t>(k) * nbytes_, nbytes_) != 0) return false;
  }
  return expected.kind == Header::kData;
}

int Rounds::start(Transport& transport, int tag) {
  tag_ = tag;
  return step_ < size_ ? post_round(transport) : 0;
}

int Rounds::post_round(Transport& transport) {
  const std::size_t nbytes = sent_now();
  const int source = (rank_ + size_ - step_) % size_, to = (rank_ + step_) % size_;
  const int round = static_cast<int>(sent_.size());
  came_.resize(nbytes);
  sent_.emplace_back(values_, values_ + nbytes);
  if (const int code = transport.receive(came_.data(), nbytes, tag_, {nullptr, this, round, source, true})) return code;
  ++sends_under_way_;
  ++messages;
  bytes_sent += nbytes;
  return transport.send(sent_.back().data(), nbytes, tag_, {nullptr, this, round, to, false});
}

int Rounds::completed(Transport& transport, const Ticket& ticket, std::size_t nbytes) {
  if (!ticket.receives) {
    --sends_under_way_;
    return 0;
  }
  bytes_received += nbytes;
  take();
  step_ *= 2;
  return step_ < size_ ? post_round(transport) : 0;
}

// What came: as much as was sent in the round.
void Rounds::take() {
  if (kind_ == Kind::kGather)
    std::memcpy(values_ + static_cast<std::size_t>(step_) * nbytes_, came_.data(), came_.size());
  else if (kind_ == Kind::kLargestWords)
    keep_largest<std::uint64_t>(values_, came_.data(), came_.size());
  else
    keep_largest<double>(values_, came_.data(), came_.size());
}

int MpiSum::start(Transport& transport, int) { return post_part(transport); }

int MpiSum::post_part(Transport& transport) {
  if (left_ == 0) return 0;
  const std::size_t count = std::min(left_, most_);
  std::uint8_t* const part = values_;
  values_ += count * itemsize_;
  left_ -= count;
  under_way_ = true;
  return transport.sum(part, count, type_, {nullptr, this, 0, kAllPeers, true});
}

int MpiSum::completed(Transport& transport, const Ticket&, std::size_t) {
  under_way_ = false;
  return post_part(transport);
}

int Transport::sum(std::uint8_t*, std::size_t, Handle, const Ticket&) { return kNoSum; }

}  // namespace gq::runtime
