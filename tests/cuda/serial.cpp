// One family's kernels (FAMILY, a .cu file; KERNELS, a list of KERNEL(name)) as a library that Python calls as it would
// launch them on a device: the arguments as an array of pointers to them.
#include <cstring>
#include <tuple>
#include <utility>

#include FAMILY

namespace {

template <class Function>
struct Call;

template <class... Arguments>
struct Call<void(Arguments...)> {
  void (*kernel)(Arguments...);
  void** arguments;

  static void run(void* self) { static_cast<Call*>(self)->unpack(std::index_sequence_for<Arguments...>()); }

 private:
  template <std::size_t... k>
  void unpack(std::index_sequence<k...>) {
    kernel(*static_cast<Arguments*>(arguments[k])...);
  }
};

template <class... Arguments>
bool launch_kernel(void (*kernel)(Arguments...), std::size_t count, const std::size_t* sizes, void** arguments,
                   unsigned blocks, unsigned threads, bool descending) {
  const std::size_t expected[] = {sizeof(Arguments)...};
  if (count != sizeof...(Arguments) || std::memcmp(sizes, expected, sizeof expected) != 0) return false;
  Call<void(Arguments...)> call{kernel, arguments};
  gq::device::run_grid(blocks, threads, descending, call.run, &call);
  return true;
}

}  // namespace

// False if there is no such kernel, or if it takes other arguments.
extern "C" bool launch(const char* name, std::size_t count, const std::size_t* sizes, void** arguments, unsigned blocks,
                       unsigned threads, bool descending) {
#define KERNEL(kernel) \
  if (!std::strcmp(name, #kernel)) return launch_kernel(kernel, count, sizes, arguments, blocks, threads, descending);
  KERNELS
#undef KERNEL
  return false;
}
