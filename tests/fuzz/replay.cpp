// Gives a target the inputs of a corpus without libFuzzer: a line of hexadecimal digits each, from a file.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int count, char** arguments) {
  if (count != 2) return std::fprintf(stderr, "usage: %s FILE\n", arguments[0]), 2;
  std::ifstream file(arguments[1]);
  std::string line;
  long inputs = 0;
  while (std::getline(file, line)) {
    std::vector<std::uint8_t> input;
    for (std::size_t at = 0; at + 1 < line.size(); at += 2)
      input.push_back(static_cast<std::uint8_t>(std::stoi(line.substr(at, 2), nullptr, 16)));
    std::printf("\rline %ld ", ++inputs);
    std::fflush(stdout);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("\r%ld inputs\n", inputs);
  return inputs > 0 ? 0 : 1;
}
