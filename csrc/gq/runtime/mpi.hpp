// Messages and sums of an MPI that is not known when this is built: its functions are looked up in the library
// that is loaded, its handles come from outside. Handles are numbers of 4 bytes or pointers of 8; passed by value both
// travel in one register, and arrays of them are arrays of bytes here.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gq/runtime/transport.hpp"

namespace gq::runtime {

struct MpiFunctions {
  int (*isend)(const void*, int, Handle, int, int, Handle, void*);
  int (*irecv)(void*, int, Handle, int, int, Handle, void*);
  int (*testsome)(int, void*, int*, int*, void*);
  int (*get_count)(const void*, Handle, int*);
  int (*iallreduce)(const void*, void*, int, Handle, Handle, Handle, void*);  // null if it is missing

  bool yields = false;  // Open MPI's parameter mpi_yield_when_idle

  // Looks them up: first where a profiler's would be found, then in this library and those that it uses. False if one
  // of the others is missing.
  bool look_up(const char* library);
};

// What an MPI's handles are.
struct MpiHandles {
  Handle byte, null_request, sum, in_place;
  std::size_t request_size, status_size;
};

class MpiTransport final : public Transport {
 public:
  MpiTransport(const MpiFunctions& functions, const MpiHandles& handles, Handle communicator);

  // The ranks on this rank's host, and the most bytes of a message to them, and to others.
  void set_topology(std::vector<char> near, std::size_t most, std::size_t most_far);

  // The processes of the ranks on this rank's host, 0 for others and this one; empty where nothing is exposed.
  void set_processes(std::vector<int> processes, std::size_t exposed_from);

  int send(const std::uint8_t* data, std::size_t nbytes, int tag, const Ticket& ticket) override;
  int receive(std::uint8_t* data, std::size_t nbytes, int tag, const Ticket& ticket) override;
  int sum(std::uint8_t* values, std::size_t count, Handle type, const Ticket& ticket) override;
  bool yields() const override { return mpi_.yields && !tickets_.empty(); }
  bool sums() const { return mpi_.iallreduce != nullptr; }
  int poll(std::vector<Completion>& completed) override;
  std::size_t limit(int peer) const override { return near_[peer] ? most_ : most_far_; }
  std::size_t least_limit() const override { return all_near_ ? most_ : most_far_; }
  int process_of(int peer) const override { return processes_.empty() ? 0 : processes_[peer]; }
  std::size_t exposed_from() const override { return exposed_from_; }
  const std::vector<Ticket>& pending() const override { return tickets_; }

  // The handle of the request of a pending ticket.
  Handle request(std::size_t at) const;
  // After an error of poll: as many statuses as were given to MPI.
  const std::vector<std::uint8_t>& statuses() const { return statuses_; }
  // Forget what is pending: someone else holds the requests now.
  void forget();

 private:
  std::uint8_t* new_request(const Ticket& ticket);

  MpiFunctions mpi_;
  MpiHandles handles_;
  Handle communicator_;
  std::vector<char> near_;
  bool all_near_ = true;
  std::size_t most_ = 0, most_far_ = 0;
  std::vector<int> processes_;
  std::size_t exposed_from_ = 0;
  std::vector<std::uint8_t> requests_, statuses_;
  std::vector<Ticket> tickets_;
  std::vector<int> done_;
};

}  // namespace gq::runtime
