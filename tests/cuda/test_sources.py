"""The GPU's kernels compile for every architecture we name, with the arithmetic that the wire's bytes rest on."""

import re
import sys
from functools import cache
from types import SimpleNamespace

import pytest
from nvrtc import compiled, needs_nvrtc

from gqallreduce.backends.cuda import sources

NOT_IEEE = r"\bfma\.|\.ftz|\.approx|div\.full"
every_family = pytest.mark.parametrize("family", sources.FAMILIES)
every_architecture = pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])


@cache
def built(family: str, architecture: str):
    options = [*sources.options(), f"-arch={architecture}", "--ptxas-options=-v"]
    return compiled(f"{family}.cu", sources.source(family), options)


@pytest.mark.slow  # the next test compiles each family too
@needs_nvrtc
@every_family
@every_architecture
def test_every_kernel_compiles_without_a_warning_and_without_spilling_registers(family, architecture):
    code, _, log = built(family, architecture)
    names = sources.kernels(family)
    assert [name for name in names if name.encode() not in code] == []
    assert "warning" not in log
    assert log.count("0 bytes spill stores") == len(names)


@needs_nvrtc
@every_family
def test_arithmetic_is_ieee_operation_by_operation(family):
    _, ptx, _ = built(family, "sm_90")
    assert re.findall(NOT_IEEE, ptx) == []


@needs_nvrtc
def test_without_our_options_arithmetic_is_not():
    options = [option for option in sources.options() if option not in sources.ARITHMETIC]
    source = sources.source("onebit") + "GQ_KERNEL fused(float* y) { *y = y[1] * y[2] + y[3]; }"
    _, ptx, _ = compiled("onebit.cu", source, [*options, "-arch=sm_90"])
    assert "fma.rn.f32" in ptx


@every_family
def test_a_family_has_kernels_and_takes_only_headers_that_are_there(family):
    assert sources.kernels(family)
    included = [line.split('"')[1] for line in sources.source(family).splitlines() if line.startswith("#include")]
    assert [name for name in included if not (sources.FOLDER / name).exists()] == []


def fake_cupy(monkeypatch, compile_):
    cuda = SimpleNamespace(
        Device=lambda: SimpleNamespace(compute_capability="90"),
        compiler=SimpleNamespace(compile_using_nvrtc=compile_),
        nvrtc=SimpleNamespace(getVersion=lambda: (13, 0)),
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    return cuda


def test_a_family_is_compiled_once_for_all_processes(monkeypatch, tmp_path):
    asked = []
    cuda = fake_cupy(monkeypatch, lambda *given, **name: (asked.append((*given, name)), (b"code", None))[1])
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "new" / "folder"))
    assert [sources.machine_code("onebit") for _ in range(2)] == [b"code", b"code"]
    assert asked == [(sources.source("onebit"), sources.options(), {"filename": "onebit.cu"})]
    assert "--fmad=false" in sources.options()
    assert len(list((tmp_path / "new" / "folder").iterdir())) == 1
    sources.machine_code("levels")
    cuda.Device = lambda: SimpleNamespace(compute_capability="80")
    sources.machine_code("onebit")
    cuda.nvrtc.getVersion = lambda: (13, 1)
    sources.machine_code("onebit")
    assert len(asked) == 4


def test_a_family_is_compiled_where_nothing_can_be_kept(monkeypatch, tmp_path):
    fake_cupy(monkeypatch, lambda *given, **name: (b"code", None))
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "file" / "folder"))
    assert sources.machine_code("onebit") == b"code"


@every_family
def test_cupy_adds_nothing_that_changes_arithmetic(family, monkeypatch, tmp_path):
    pytest.importorskip("cupy")
    from cupy.cuda import compiler

    monkeypatch.setattr("cupy.cuda.Device", lambda: SimpleNamespace(compute_capability="90"))
    monkeypatch.setattr(compiler, "_get_arch_for_options_for_nvrtc", lambda arch=None: ("-arch=compute_90", "ptx"))
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    ptx = sources.machine_code(family).decode()
    assert ".entry" in ptx
    assert re.findall(NOT_IEEE, ptx) == []
