"""One extension: the C++ kernels. It links no MPI, so one build runs on every MPI."""

import os
from multiprocessing.pool import ThreadPool
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FLAGS = ["-std=c++17", "-O3", "-g1", "-ffp-contract=off", "-fno-fast-math", "-fvisibility=hidden", "-Wall", "-Wextra"]
NOISE = ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]  # GCC 12 warns inside its own AVX-512 headers
kernels = Extension(
    "gqallreduce._kernels",
    sources=["gqallreduce/_kernels.pyx", *sorted(map(str, Path("csrc").glob("*.cpp")))],
    depends=sorted(map(str, [*Path("csrc/gq").rglob("*.hpp"), *Path("gqallreduce").glob("**/*.px[di]")])),
    include_dirs=["csrc"],
    language="c++",
    extra_compile_args=[*FLAGS, *NOISE, *os.environ.get("GQALLREDUCE_CFLAGS", "").split()],
    extra_link_args=["-pthread"],
)


class BuildOnAllCores(build_ext):
    """setuptools compiles the files of one extension one after the other."""

    def build_extension(self, extension):
        compile_some = self.compiler.compile

        def compile_all(sources, **options):
            with ThreadPool(os.cpu_count()) as pool:
                made = pool.map(lambda source: compile_some([source], **options), sources, chunksize=1)
            return [each for objects in made for each in objects]

        self.compiler.compile = compile_all
        super().build_extension(extension)


modules = [] if os.environ.get("GQALLREDUCE_BUILT") else cythonize([kernels])  # make: where it is built for another MPI
setup(ext_modules=modules, cmdclass={"build_ext": BuildOnAllCores})
