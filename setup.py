"""One extension: the C++ kernels. It links no MPI, so one build runs on every MPI."""

import os
from multiprocessing.pool import ThreadPool
from pathlib import Path
from shutil import copyfile

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

# A level of optimization in CFLAGS is taken: the checks of `make sanitize` compile three times as fast with -O1.
OPTIMIZED = [] if "-O" in os.environ.get("CFLAGS", "") else ["-O3"]
FLAGS = ["-std=c++17", *OPTIMIZED, "-ffp-contract=off", "-fno-fast-math", "-Wall", "-Wextra"]
NOISE = ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]  # GCC 12 warns inside its own AVX-512 headers
kernels = Extension(
    "gqallreduce._kernels",
    sources=["gqallreduce/_kernels.pyx", *sorted(map(str, Path("csrc").glob("*.cpp")))],
    depends=sorted(map(str, [*Path("csrc/gq").rglob("*.hpp"), *Path("gqallreduce").glob("**/*.px[di]")])),
    include_dirs=["csrc"],
    language="c++",
    extra_compile_args=FLAGS + NOISE,
    extra_link_args=["-pthread"],
)
directives = {"language_level": 3, "boundscheck": False, "wraparound": False, "cdivision": True}


class BuildOnAllCores(build_ext):
    """setuptools compiles the files of one extension one after the other."""

    def build_extension(self, extension):
        """An editable install takes what lies in the tree, where no source is newer: `pip` compiles anew each time."""
        built, target = self.get_ext_filename(extension.name), self.get_ext_fullpath(extension.name)
        if self.editable_mode and not newer_group([*extension.sources, *extension.depends, "setup.py"], built):
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            copyfile(built, target)
            return
        compile_some = self.compiler.compile

        def compile_all(sources, **options):
            with ThreadPool(os.cpu_count()) as pool:
                made = pool.map(lambda source: compile_some([source], **options), sources, chunksize=1)
            return [each for objects in made for each in objects]

        self.compiler.compile = compile_all
        super().build_extension(extension)


setup(ext_modules=cythonize([kernels], compiler_directives=directives), cmdclass={"build_ext": BuildOnAllCores})
