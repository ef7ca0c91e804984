#!/usr/bin/env bash
# Builds the extension for aarch64 and runs in an emulator: golden messages, made and decoded, golden sums, and the tests
# of the kernels, without what is marked slow, and few of Hypothesis' examples, as all is slow there. `make test-aarch64`.
#
# Takes Debian's g++-aarch64-linux-gnu and qemu-user-static; in CI it installs them. Python for aarch64 comes from Debian
# packages, NumPy and pytest from wheels, all unpacked in build/aarch64. Where any of this cannot be had it says so, and
# ends well.
set -euo pipefail
cd "$(dirname "$0")/../.."

python=${PYTHON:-python3}
place=$PWD/build/aarch64
packages="numpy scipy ml_dtypes pytest hypothesis"
# Files are dealt to processes in turn: the longest first, so that two of them take as long as each other.
tests=(tests/kernels/test_levels.py tests/whole/test_golden_sums.py tests/kernels/test_adaptive.py tests/kernels/test_onebit.py
  tests/codecs/test_forgotten.py::test_the_wire_format_is_the_one_on_file
  tests/codecs/test_isgq.py::test_the_message_is_the_one_on_file tests/test_frame.py)
for each in tests/kernels/test_*.py; do
  # test_few_threads compiles what it runs.
  [[ " ${tests[*]} " == *" $each "* || $each == *few_threads* ]] || tests+=("$each")
done
[ $# -eq 0 ] || tests=("$@")

skip() {
  echo "skipped: $*"
  exit 0
}

compiler=aarch64-linux-gnu-g++
emulator=qemu-aarch64-static
if ! command -v $compiler >/dev/null || ! command -v $emulator >/dev/null; then
  [ "${CI:-}" = true ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
    skip "needs $compiler and $emulator (Debian: apt-get install g++-aarch64-linux-gnu qemu-user-static)"
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends g++-aarch64-linux-gnu qemu-user-static; } \
    >/dev/null 2>&1 || skip "apt-get cannot install g++-aarch64-linux-gnu and qemu-user-static"
fi
root=$place/root site=$place/site tree=$place/tree
if [ "$(sed -n 2p "$place/.complete" 2>/dev/null)" != "$packages" ]; then
  rm -rf "$place"
  mkdir -p "$place/apt/lists/partial" "$place/apt/cache/archives/partial" "$root"
  touch "$place/apt/status"
  cat >"$place/apt/conf" <<CONF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Install-Recommends "false";
APT::Sandbox::User "";
Dir::State "$place/apt";
Dir::State::lists "$place/apt/lists";
Dir::State::status "$place/apt/status";
Dir::Cache "$place/apt/cache";
CONF
  export APT_CONFIG=$place/apt/conf
  apt-get update -qq >"$place/apt/log" 2>&1 || skip "Debian's package lists for arm64 cannot be had"
  version=$(apt-cache show python3-minimal | sed -n 's/.*python3\.\([0-9]*\)-minimal.*/3.\1/p' | head -1)
  apt-get install -y -qq --download-only "libpython$version-dev" "python$version-minimal" libstdc++6 \
    >>"$place/apt/log" 2>&1 || skip "Debian's packages for arm64 cannot be had"
  unset APT_CONFIG
  for package in "$place"/apt/cache/archives/*.deb; do dpkg -x "$package" "$root"; done
  platforms=()
  for each in manylinux_2_28 manylinux_2_17 manylinux2014; do platforms+=(--platform "${each}_aarch64"); done
  "$python" -m pip install --quiet --target "$site" "${platforms[@]}" --python-version "$version" --only-binary=:all: \
    $packages >"$place/pip.log" 2>&1 || skip "wheels for aarch64 cannot be had"
  "$python" -m pip install --quiet --no-deps --target "$site" pytest-mpi >>"$place/pip.log" 2>&1
  printf '%s\n' "$version" "$packages" >"$place/.complete"
fi
version=$(head -n 1 "$place/.complete")

rm -rf "$tree"
mkdir -p "$tree" "$place/objects"
cp -rL csrc docs gqallreduce tests pyproject.toml "$tree"
rm -f "$tree"/gqallreduce/*.so
include=("-I$root/usr/include/python$version" "-I$root/usr/include" "-I$root/usr/include/aarch64-linux-gnu" -Icsrc
  "-I$site/numpy/_core/include")
flags="-std=c++17 -ffp-contract=off -fno-fast-math -fPIC -Wall -Wextra -Wno-type-limits -Werror ${include[*]}"
echo "compiling for aarch64"
# What Cython wrote is long, and holds no arithmetic; it comes first, beside the kernels.
(cd "$tree" && { echo "-O1 gqallreduce/_kernels.cpp" && printf -- '-O3 %s\n' csrc/*.cpp; } |
  xargs -P "$(nproc)" -L 1 sh -c "$compiler $flags \$0 -c \$1 -o $place/objects/\$(basename \$1).o")
$compiler -shared -pthread -o "$tree/gqallreduce/_kernels.cpython-${version/./}-aarch64-linux-gnu.so" "$place"/objects/*.o

libraries=$root/usr/lib/aarch64-linux-gnu:$root/lib/aarch64-linux-gnu
emulated() {
  (cd "$tree" && $emulator -L "$root" -E PYTHONHOME="$root/usr" -E PYTHONPATH="$site:$tree" -E LD_LIBRARY_PATH="$libraries" \
    -E OPENBLAS_NUM_THREADS=1 -E PYTHONDONTWRITEBYTECODE=1 "$root/usr/bin/python$version" "$@")
}
emulated -c 'import platform, gqallreduce; print("Python on", platform.machine())'

# As many processes as cores, each with its part of the files.
status=0 waiting=()
for number in $(seq 0 $(($(nproc) - 1))); do
  mine=()
  for at in "${!tests[@]}"; do [ $((at % $(nproc))) -ne "$number" ] || mine+=("${tests[at]}"); done
  [ ${#mine[@]} -gt 0 ] || continue
  emulated -m pytest -p no:cacheprovider --few --examples 3 "${mine[@]}" >"$place/log.$number" 2>&1 &
  waiting+=($!)
done
for each in "${waiting[@]}"; do wait "$each" || status=1; done
if [ $status -eq 0 ]; then tail -qn 1 "$place"/log.*; else cat "$place"/log.*; fi
exit $status
