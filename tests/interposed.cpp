// Counts calls of MPI_Isend and MPI_Irecv, as a profiler does that is loaded before the MPI. Handles are pointers in
// some MPIs and int in others: as numbers of a register's width they pass through here.
#include <dlfcn.h>

#include <atomic>

namespace {

using Number = unsigned long;
using Post = int (*)(const void*, int, Number, int, int, Number, void*);

std::atomic<long> sends{0}, receives{0};

Post next(const char* name) { return reinterpret_cast<Post>(dlsym(RTLD_NEXT, name)); }

}  // namespace

extern "C" {

int MPI_Isend(const void* data, int count, Number type, int to, int tag, Number comm, void* request) {
  static const Post original = next("MPI_Isend");
  ++sends;
  return original(data, count, type, to, tag, comm, request);
}

int MPI_Irecv(const void* data, int count, Number type, int source, int tag, Number comm, void* request) {
  static const Post original = next("MPI_Irecv");
  ++receives;
  return original(data, count, type, source, tag, comm, request);
}

long counted_sends() { return sends; }
long counted_receives() { return receives; }
}
