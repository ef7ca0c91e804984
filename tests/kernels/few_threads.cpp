// Preloaded: a process in which pthread_create fails from the FEW_THREADS-th call on, as at the limit of a system.
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                              void* argument) noexcept {
  static std::atomic<int> created{0};
  static const auto next = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  if (created >= std::atoi(std::getenv("FEW_THREADS"))) return EAGAIN;
  ++created;
  return next(thread, attributes, start, argument);
}
