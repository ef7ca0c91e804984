"""Coverage-guided fuzzing of all decoders and of the frame reader: `make fuzz`; options by `--help`.

Targets: decoders.cpp and frames.cpp, with libFuzzer, under address and undefined-behaviour sanitizers;
fuzz_messages.py, with Atheris. GCC compiles the code in C++, whose kernels Clang cannot compile, and counts basic
blocks for libFuzzer, which is Clang's (coverage.cpp). A campaign begins with the inputs in corpus/ and with a good
message of every codec (seeds.cpp). At the end inputs that together reach the same code are kept in corpus/, which
`make sanitize` tries again (replay.cpp). An input that fails lies in build/fuzz; `build/fuzz/decoders FILE` runs it
again.
"""

import argparse
import glob
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gqallreduce.cli import machine
from gqallreduce.cli.report import Report

HERE = Path(__file__).resolve().parent
TREE = HERE.parents[1]
BUILD = TREE / "build" / "fuzz"
OBJECTS = BUILD / "objects"
TARGETS = ("decoders", "frames", "messages")
LONGEST = 400  # bytes of an input
MOST_KEPT, MOST_BYTES = 600, 60_000  # inputs of a corpus, and all their bytes
WARNINGS = "-Wall -Wextra -Wno-uninitialized -Wno-maybe-uninitialized -Werror"
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
FLAGS = f"-std=c++17 -O2 -g1 -ffp-contract=off -fno-fast-math {WARNINGS} {SANITIZERS} -I{TREE}/csrc".split()
COUNTED = "-fsanitize-coverage=trace-pc"


def libfuzzer() -> str:
    """The path of its archive, which Clang's packages have."""
    found = glob.glob(f"/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-{platform.machine()}.a")
    if not found:
        sys.exit("libFuzzer: got none in /usr/lib/llvm-*, expected that of Clang (Debian: libclang-rt-16-dev)")
    return found[0]


# --- build ---


def compile_one(source: Path, *flags: str) -> Path:
    made = OBJECTS / f"{source.stem}.o"
    headers = [*(TREE / "csrc").rglob("*.hpp"), *HERE.glob("*.hpp")]
    if not made.exists() or made.stat().st_mtime < max(each.stat().st_mtime for each in (source, *headers)):
        subprocess.run(["g++", *FLAGS, *flags, "-c", source, "-o", made], check=True)
    return made


def build() -> None:
    """The targets in C++, and what makes their first inputs."""
    archive = libfuzzer()
    OBJECTS.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = list(pool.map(lambda source: compile_one(source, COUNTED), sorted((TREE / "csrc").glob("*.cpp"))))
        targets = list(
            pool.map(lambda name: compile_one(HERE / f"{name}.cpp", COUNTED), ("decoders", "frames", "seeds"))
        )
    coverage = compile_one(HERE / "coverage.cpp", "-fno-sanitize=all")  # called for every basic block
    for made in targets:
        # libFuzzer has a function of its own for GCC's blocks, which keeps no counters; ours comes first.
        link = ["g++", *SANITIZERS.split(), made, coverage, *compiled, "-pthread", "-Wl,--allow-multiple-definition"]
        fuzzer = [] if made.stem == "seeds" else [archive]
        subprocess.run([*link, *fuzzer, "-o", BUILD / made.stem], check=True)


def command(target: str) -> str:
    return str(HERE / "fuzz_messages.py" if target == "messages" else BUILD / target)


def environment() -> dict:
    """With this Python first in PATH, since fuzz_messages.py is started by its `#!` line."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "ASAN_OPTIONS": "quarantine_size_mb=8", "OPENBLAS_NUM_THREADS": "1"}


# --- inputs ---


def lines_of(target: str) -> list[str]:
    """The corpus of a target, and messages to begin with."""
    path = HERE / "corpus" / f"{target}.txt"
    seeds = [command(target), "--seeds"] if target == "messages" else [str(BUILD / "seeds"), target]
    made = subprocess.run(seeds, check=True, capture_output=True, text=True, env=environment()).stdout
    return (path.read_text() if path.exists() else "").split() + made.split()


def fill_folder(target: str) -> Path:
    """The folder of inputs that libFuzzer works on; it keeps those of earlier campaigns."""
    folder = BUILD / f"{target}.inputs"
    folder.mkdir(exist_ok=True)
    for number, line in enumerate(lines_of(target)):
        (folder / f"begin{number}").write_bytes(bytes.fromhex(line))
    return folder


def keep(target: str, folder: Path) -> int:
    """Writes the corpus: of the inputs that reach all that the folder's do, the shortest. How many they are."""
    merged = BUILD / f"{target}.merged"
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir()
    merge = [command(target), "-merge=1", str(merged), str(folder)]
    done = subprocess.run(merge, capture_output=True, text=True, env=environment())
    if done.returncode:
        sys.exit(f"merging the inputs of {target} failed:\n{done.stderr[-2000:]}")
    inputs = sorted((each.read_bytes() for each in merged.iterdir()), key=lambda data: (len(data), data))[:MOST_KEPT]
    while sum(map(len, inputs)) > MOST_BYTES:
        inputs.pop()
    (HERE / "corpus").mkdir(exist_ok=True)
    (HERE / "corpus" / f"{target}.txt").write_text("".join(f"{each.hex()}\n" for each in inputs))
    return len(inputs)


# --- run ---


def start(target: str, folder: Path, number: int, seconds: float) -> tuple[subprocess.Popen, Path]:
    log = BUILD / f"{target}.{number}.log"
    options = f"-max_total_time={int(seconds)} -max_len={LONGEST} -entropic=0 -reload=1 -print_final_stats=1".split()
    options += [f"-artifact_prefix={BUILD}/{target}-", "-rss_limit_mb=4096"]
    with open(log, "w") as file:
        given = [command(target), *options, str(folder)]
        return subprocess.Popen(given, stdout=file, stderr=file, env=environment()), log


def inputs_of(log: Path) -> int:
    """How many a process has tried: at its end, or at the last line that says so."""
    found = re.findall(r"^(?:stat::number_of_executed_units: |#)(\d+)", log.read_text(errors="replace"), re.MULTILINE)
    return int(found[-1]) if found else 0


def run(arguments: argparse.Namespace) -> int:
    build()
    report = Report(f"{arguments.output}.jsonl" if arguments.output else None)
    report.write("machine", machine.describe())
    seconds = 60 * arguments.minutes
    folders = {target: fill_folder(target) for target in arguments.targets}
    under_way = [
        (target, *start(target, folders[target], number, seconds))
        for target in arguments.targets
        for number in range(arguments.processes)
    ]
    began = time.monotonic()
    with report.progress(100) as progress:
        for _ in range(100):
            progress.show(f"{sum(inputs_of(log) for *_, log in under_way)} inputs")
            time.sleep(seconds / 100)
            if any(process.poll() for _, process, _ in under_way):
                break
            progress.step()
    failed = [log for _, process, log in under_way if process.poll()]
    for _, process, _ in under_way:
        if failed:
            process.terminate()
        process.wait()
    failed = failed or [log for _, process, log in under_way if process.returncode]
    for target in arguments.targets:
        tried = sum(inputs_of(log) for name, _, log in under_way if name == target)
        kept = keep(target, folders[target]) if not failed else 0
        row = {"target": target, "inputs": tried, "seconds": time.monotonic() - began, "kept": kept}
        sanitizers = "none" if target == "messages" else "address, undefined behaviour"
        report.write("fuzz", row | {"processes": arguments.processes, "sanitizers": sanitizers})
        report.say(f"{target:10} {tried:12} inputs, {kept:5} kept in tests/fuzz/corpus")
    for log in failed:
        report.say(f"{log}\n{log.read_text(errors='replace')[-3000:]}")
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long (5)")
    parser.add_argument("--processes", type=int, default=1, help="of each target (1)")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=TARGETS, help="all")
    parser.add_argument("--output", metavar="NAME", help="writes NAME.jsonl")
    sys.exit(run(parser.parse_args()))
