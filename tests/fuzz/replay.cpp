// Gives a target the inputs of a corpus without libFuzzer: a line of hexadecimal digits each, from a file.
#include <sanitizer/common_interface_defs.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

static long line_number = 0;

static void tell_line() { std::fprintf(stderr, "line %ld of the corpus\n", line_number); }

int main(int count, char** arguments) {
  if (count != 2) return std::fprintf(stderr, "usage: %s FILE\n", arguments[0]), 2;
  __sanitizer_set_death_callback(tell_line);
  std::signal(SIGABRT, [](int) { tell_line(); });
  std::ifstream file(arguments[1]);
  std::string line;
  while (std::getline(file, line)) {
    ++line_number;
    std::vector<std::uint8_t> input;
    for (std::size_t at = 0; at + 1 < line.size(); at += 2)
      input.push_back(static_cast<std::uint8_t>(std::stoi(line.substr(at, 2), nullptr, 16)));
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%s: %ld inputs\n", arguments[1], line_number);
  return line_number > 0 ? 0 : 1;
}
