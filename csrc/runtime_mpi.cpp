#include <dlfcn.h>

#include <algorithm>
#include <cstring>

#include "gq/runtime/mpi.hpp"

namespace gq::runtime {

namespace {

template <class Function>
bool find(void* library, const char* name, Function& function) {
  void* found = dlsym(RTLD_DEFAULT, name);
  if (!found && library) found = dlsym(library, name);
  static_assert(sizeof found == sizeof function);
  std::memcpy(&function, &found, sizeof found);
  return found != nullptr;
}

// Does Open MPI lend the core where it finds nothing? Asked of its tools interface, once in a process, which is not
// finalized: others may use it. No other MPI has the parameter.
bool asks_for_yields(void* library) {
  const void* comm_world;
  int (*init)(int, int*), (*index_of)(const char*, int*), (*take)(int, void*, void**, int*), (*read)(void*, void*);
  int (*give)(void**), (*query)(int*);
  if (!find(library, "ompi_mpi_comm_world", comm_world) || !find(library, "MPI_T_init_thread", init) ||
      !find(library, "MPI_T_cvar_get_index", index_of) || !find(library, "MPI_T_cvar_handle_alloc", take) ||
      !find(library, "MPI_T_cvar_read", read) || !find(library, "MPI_T_cvar_handle_free", give) ||
      !find(library, "MPI_Query_thread", query))
    return false;
  int level = 0, provided = 0, index = 0, count = 0;
  void* handle = nullptr;
  std::uint64_t value[16] = {};  // a number, or a truth value, of any length
  // What is asked for here becomes the level of threads of the whole process: the one that it has.
  if (query(&level) || init(level, &provided) || index_of("mpi_yield_when_idle", &index) ||
      take(index, nullptr, &handle, &count))
    return false;
  const bool good = count == 1 && read(handle, value) == 0;
  give(&handle);
  return good && value[0] != 0;
}

}  // namespace

bool MpiFunctions::look_up(const char* library) {
  void* const loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);  // never closed: it stays loaded
  find(loaded, "MPI_Iallreduce", iallreduce);
  static const bool asked = asks_for_yields(loaded);
  yields = asked;
  return find(loaded, "MPI_Isend", isend) && find(loaded, "MPI_Irecv", irecv) &&
         find(loaded, "MPI_Testsome", testsome) && find(loaded, "MPI_Get_count", get_count);
}

MpiTransport::MpiTransport(const MpiFunctions& functions, const MpiHandles& handles, Handle communicator)
    : mpi_(functions), handles_(handles), communicator_(communicator) {}

void MpiTransport::set_topology(std::vector<char> near, std::size_t most, std::size_t most_far) {
  near_ = std::move(near);
  all_near_ = std::find(near_.begin(), near_.end(), 0) == near_.end();
  most_ = most;
  most_far_ = most_far;
}

void MpiTransport::set_processes(std::vector<int> processes, std::size_t exposed_from) {
  processes_ = std::move(processes);
  exposed_from_ = exposed_from;
}

std::uint8_t* MpiTransport::new_request(const Ticket& ticket) {
  tickets_.push_back(ticket);
  requests_.resize(tickets_.size() * handles_.request_size);
  std::uint8_t* const at = &requests_[requests_.size() - handles_.request_size];
  std::memcpy(at, &handles_.null_request, handles_.request_size);  // of a number the low bytes: little-endian
  return at;
}

int MpiTransport::send(const std::uint8_t* data, std::size_t nbytes, int tag, const Ticket& ticket) {
  return mpi_.isend(data, static_cast<int>(nbytes), handles_.byte, ticket.peer, tag, communicator_,
                    new_request(ticket));
}

int MpiTransport::receive(std::uint8_t* data, std::size_t nbytes, int tag, const Ticket& ticket) {
  return mpi_.irecv(data, static_cast<int>(nbytes), handles_.byte, ticket.peer, tag, communicator_,
                    new_request(ticket));
}

int MpiTransport::sum(std::uint8_t* values, std::size_t count, Handle type, const Ticket& ticket) {
  if (!sums()) return kNoSum;
  const void* const in_place = reinterpret_cast<const void*>(handles_.in_place);
  return mpi_.iallreduce(in_place, values, static_cast<int>(count), type, handles_.sum, communicator_,
                         new_request(ticket));
}

int MpiTransport::poll(std::vector<Completion>& completed) {
  if (tickets_.empty()) return 0;
  const int count = static_cast<int>(tickets_.size());
  if (done_.size() < tickets_.size()) {
    done_.resize(tickets_.size());
    statuses_.resize(tickets_.size() * handles_.status_size);
  }
  int found = 0;
  if (const int code = mpi_.testsome(count, requests_.data(), &found, done_.data(), statuses_.data())) return code;
  if (found <= 0) return 0;  // also MPI_UNDEFINED
  for (int at = 0; at < found; ++at) {
    const Ticket& ticket = tickets_[done_[at]];
    int nbytes = 0;
    if (ticket.receives && ticket.peer != kAllPeers)
      if (const int code = mpi_.get_count(&statuses_[at * handles_.status_size], handles_.byte, &nbytes)) return code;
    completed.push_back({ticket, static_cast<std::size_t>(nbytes)});
  }
  // In their order: MPIs look at the oldest request first.
  std::sort(done_.begin(), done_.begin() + found);
  std::size_t left = done_[0];
  const std::size_t size = handles_.request_size;
  for (int at = done_[0], next = 0; at < count; ++at) {
    if (next < found && done_[next] == at) {
      ++next;
      continue;
    }
    tickets_[left] = tickets_[at];
    std::memmove(&requests_[left * size], &requests_[at * size], size);
    ++left;
  }
  tickets_.resize(left);
  requests_.resize(left * size);
  return 0;
}

Handle MpiTransport::request(std::size_t at) const {
  Handle handle = 0;
  std::memcpy(&handle, &requests_[at * handles_.request_size], handles_.request_size);
  return handle;
}

void MpiTransport::forget() {
  tickets_.clear();
  requests_.clear();
}

}  // namespace gq::runtime
