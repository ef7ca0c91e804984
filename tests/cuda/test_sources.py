"""The GPU's kernels compile for every architecture we name, with the arithmetic that the wire's bytes rest on."""

import re
import sys
from functools import cache
from types import SimpleNamespace

import pytest
from nvrtc import compiled, needs_nvrtc

from gqallreduce.cuda import sources

every_family = pytest.mark.parametrize("family", sources.FAMILIES)
every_architecture = pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])


@cache
def built(family: str, architecture: str):
    options = [*sources.options(), f"-arch={architecture}", "--ptxas-options=-v"]
    return compiled(f"{family}.cu", sources.source(family), options)


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
    _, ptx, _ = built(family, "sm_90")  # a division of 128-bit integers begins with rcp.approx
    assert re.findall(r"\bfma\.|\.ftz|(?<!rcp)\.approx|div\.full", ptx) == []


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


def test_cupy_is_asked_for_nvrtc_once(monkeypatch):
    asked = []
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(RawModule=lambda **given: asked.append(given) or "module"))
    sources.module.cache_clear()
    assert [sources.module("onebit"), sources.module("onebit")] == ["module", "module"]
    sources.module.cache_clear()
    assert asked == [{"code": sources.source("onebit"), "options": sources.options(), "backend": "nvrtc"}]
    assert "--fmad=false" in sources.options()
