"""One extension: the C++ kernels. It links no MPI, so one build runs on every MPI."""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-fast-math", "-Wall", "-Wextra"]
NOISE = ["-Wno-maybe-uninitialized"]  # GCC 12 warns inside its own AVX-512 header
kernels = Extension(
    "gqallreduce._kernels",
    sources=[
        "gqallreduce/_kernels.pyx",
        "csrc/adaptive_doors.cpp",
        "csrc/dispatch.cpp",
        "csrc/doors.cpp",
        "csrc/integers_doors.cpp",
        "csrc/levels_doors.cpp",
        "csrc/onebit_doors.cpp",
        "csrc/plain_doors.cpp",
        "csrc/threads.cpp",
        "csrc/scalar.cpp",
        "csrc/avx2.cpp",
        "csrc/avx512.cpp",
    ],
    depends=sorted(map(str, [*Path("csrc/gq").glob("*.hpp"), *Path("gqallreduce").glob("**/*.px[di]")])),
    include_dirs=["csrc"],
    language="c++",
    extra_compile_args=FLAGS + NOISE,
    extra_link_args=["-pthread"],
)
directives = {"language_level": 3, "boundscheck": False, "wraparound": False, "cdivision": True}
setup(ext_modules=cythonize([kernels], compiler_directives=directives))
