// A family's kernels as a program of their own, so that the thread sanitizer watches them and nothing else: it reads
// launches from its input and answers each. Memory is a file that both sides map.
#include <sys/mman.h>

#include <iostream>
#include <string>
#include <vector>

#include "serial.cpp"

// races FILE NBYTES, the number of an open file and its size. It says where it has mapped it. A launch is the kernel's
// name, blocks, threads, 1 for the descending order or 0, how many arguments, and the size and bits of each.
int main(int, char** words) {
  void* const memory = mmap(nullptr, std::stoull(words[2]), PROT_READ | PROT_WRITE, MAP_SHARED, std::stoi(words[1]), 0);
  if (memory == MAP_FAILED) return 1;
  std::cout << reinterpret_cast<std::uintptr_t>(memory) << std::endl;

  std::string name;
  unsigned blocks, threads;
  bool descending;
  std::size_t count;
  while (std::cin >> name >> blocks >> threads >> descending >> count) {
    std::vector<std::size_t> sizes(count);
    std::vector<std::uint64_t> bits(count);
    std::vector<void*> arguments(count);
    for (std::size_t k = 0; k < count; ++k) {
      std::cin >> sizes[k] >> bits[k];
      arguments[k] = &bits[k];
    }
    const bool done = launch(name.c_str(), count, sizes.data(), arguments.data(), blocks, threads, descending);
    std::cout << (done ? "done" : "no such kernel") << std::endl;
  }
}
