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
    include_dirs=["csrc"], language="c++",
    extra_compile_args=[*FLAGS, *NOISE, *os.environ.get("GQALLREDUCE_CFLAGS", "").split()],
    extra_link_args=["-pthread"],
)


class BuildOnAllCores(build_ext):
    """setuptools compiles one file after the other. What Cython wrote is long, and may have flags of its own."""

    def build_extension(self, extension):
        compile_some, of_cython = self.compiler.compile, os.environ.get("GQALLREDUCE_CYTHON_CFLAGS", "").split()

        def compile_all(sources, extra_postargs, **options):
            flags = {source: [*extra_postargs, *("_kernels" in source) * of_cython] for source in sources}
            with ThreadPool(os.cpu_count()) as pool:
                made = pool.map(lambda each: compile_some([each], extra_postargs=flags[each], **options), sources, 1)
            return [each for objects in made for each in objects]

        self.compiler.compile = compile_all
        super().build_extension(extension)


modules = [] if os.environ.get("GQALLREDUCE_BUILT") else cythonize([kernels])  # make: where it is built for another MPI
setup(ext_modules=modules, cmdclass={"build_ext": BuildOnAllCores})
