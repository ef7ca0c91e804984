// Counts calls of MPI_Isend, MPI_Irecv and MPI_Testsome, as a profiler does that is loaded before the MPI, and lets
// each of the last take a while. Handles are pointers in some MPIs and int in others: as numbers of a register's width
// they pass through here.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>

namespace {

using Number = unsigned long;
using Post = int (*)(const void*, int, Number, int, int, Number, void*);
using Poll = int (*)(int, void*, int*, int*, void*);

std::atomic<long> sends{0}, receives{0}, polls{0};
std::atomic<int> kept_for{0};  // microseconds

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int MPI_Isend(const void* data, int count, Number type, int to, int tag, Number comm, void* request) {
  static const Post original = next<Post>("MPI_Isend");
  ++sends;
  return original(data, count, type, to, tag, comm, request);
}

int MPI_Irecv(const void* data, int count, Number type, int source, int tag, Number comm, void* request) {
  static const Post original = next<Post>("MPI_Irecv");
  ++receives;
  return original(data, count, type, source, tag, comm, request);
}

int MPI_Testsome(int count, void* requests, int* completed, int* indices, void* statuses) {
  static const Poll original = next<Poll>("MPI_Testsome");
  ++polls;
  if (kept_for != 0) usleep(kept_for);
  return original(count, requests, completed, indices, statuses);
}

void keep_polls(int microseconds) { kept_for = microseconds; }

long counted_polls() { return polls; }
long counted_sends() { return sends; }
long counted_receives() { return receives; }
}
