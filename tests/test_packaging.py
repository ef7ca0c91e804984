"""What is built and shipped: one extension that knows no MPI, and a source archive that builds without make."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from setuptools import find_packages

import gqallreduce._kernels

ROOT = Path(__file__).parents[1]
EXTENSION = Path(gqallreduce._kernels.__file__)
WITHOUT_MPI = "import sys; sys.modules['mpi4py'] = None; "


def python(code, *, folder, path=""):
    """Run `code` in a fresh interpreter that finds packages in `path` only, besides the environment."""
    environment = {"PYTHONPATH": str(path), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(shutil.which("ldd") is None, reason="no ldd on this system")
def test_the_extension_links_no_mpi():
    libraries = subprocess.run(["ldd", EXTENSION], capture_output=True, text=True, check=True).stdout
    assert "libc.so" in libraries
    assert not re.search(r"mpi|pmix|prrte", re.sub(r"\(0x.*|=>.*", "", libraries), re.IGNORECASE)


def test_the_extension_imports_where_there_is_no_mpi4py(tmp_path):
    level = python(WITHOUT_MPI + "from gqallreduce import _kernels; print(_kernels.simd_level())", folder=tmp_path)
    assert level == gqallreduce._kernels.simd_level()


def test_importing_the_package_starts_no_mpi(tmp_path):
    assert python("import sys, gqallreduce; print('mpi4py.MPI' in sys.modules)", folder=tmp_path) == "False"


def test_dir_shows_what_is_exported_and_nothing_else():
    """Whatever modules have been imported."""
    assert "_kernels" in vars(gqallreduce)
    assert [name for name in dir(gqallreduce) if not name.startswith("__")] == sorted(gqallreduce.__all__)
    assert "__version__" in dir(gqallreduce)


def test_every_name_that_is_exported_is_there(tmp_path):
    code = "import mpi4py; mpi4py.rc.initialize = False; import gqallreduce as gq; "
    code += "print([name for name in gq.__all__ if not hasattr(gq, name)], sorted(gq.__all__) == gq.__all__)"
    assert python(code, folder=tmp_path, path=EXTENSION.parents[1]) == "[] True"


def test_setup_py_is_one_extension_in_a_few_lines():
    lines = [line for line in (ROOT / "setup.py").read_text().splitlines() if line.strip()]
    assert len(lines) <= 30
    assert sum("Extension(" in line for line in lines) == 1


def kernel_sources():
    """What NVRTC needs at run time: the kernels for GPUs and, through a link, the headers of csrc."""
    folder = ROOT / "gqallreduce" / "backends" / "cuda"
    return [*folder.glob("*.cu"), *folder.glob("*.hpp"), *(folder / "gq").glob("*.hpp")]


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """The source archive, made by the build backend as pip would."""
    folder = tmp_path_factory.mktemp("source")
    return folder / build("sdist", ROOT, folder)


@pytest.fixture(scope="module")
def wheel(archive, tmp_path_factory):
    """The wheel, built from the unpacked archive alone: what the archive lacks is missed here."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (tree,) = (entry for entry in folder.iterdir() if entry.is_dir())
    return folder / build("wheel", tree, folder)


def build(kind, tree, target):
    """Call the backend in `tree` and return the name of the file that it made in `target`."""
    code = f"from setuptools import build_meta; print(); print(build_meta.build_{kind}({str(target)!r}))"
    environment = {**os.environ, "GQALLREDUCE_CFLAGS": "-O0 -g0 -DGQ_SCALAR_ALONE"}  # compiled soon
    done = subprocess.run([sys.executable, "-c", code], cwd=tree, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_the_source_archive_holds_the_sources_and_the_license_but_nothing_generated(archive):
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    sources = [*ROOT.glob("csrc/*.cpp"), *ROOT.glob("csrc/**/*.hpp"), *ROOT.glob("gqallreduce/**/*.py")]
    sources += [*kernel_sources(), *ROOT.glob("gqallreduce/**/*.px[di]")]
    assert {str(path.relative_to(ROOT)) for path in sources} | {"gqallreduce/_kernels.pyx", "LICENSE"} <= names
    assert not [name for name in names if name.endswith(".so") or name == "gqallreduce/_kernels.cpp"]


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_imports_without_mpi(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        packed.extractall(tmp_path)
    expected = [*ROOT.glob("gqallreduce/**/*.py"), *kernel_sources()]
    assert {str(path.relative_to(ROOT)) for path in expected} <= names
    assert any(name.endswith("/LICENSE") for name in names)
    place = python(
        WITHOUT_MPI + "from gqallreduce import _kernels; print(_kernels.__file__)", folder=tmp_path, path=tmp_path
    )
    assert Path(place).is_relative_to(tmp_path)


def test_every_folder_with_modules_is_a_package():
    packages = set(find_packages(str(ROOT), include=["gqallreduce*"]))
    folders = {".".join(path.parent.relative_to(ROOT).parts) for path in ROOT.glob("gqallreduce/**/*.py")}
    assert folders == packages
