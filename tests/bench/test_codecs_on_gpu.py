"""`bench/codecs.py --device cuda` on a device without a GPU: what it writes, checks and refuses. No time matters."""

import argparse
import sys

import numpy as np
import pytest
from devices import needs_device
from serial_runtime import SerialRuntime

from gqallreduce.backends.cuda import needs, runtime
from gqallreduce.backends.cuda.device import Device
from gqallreduce.cli import codecs, codecs_on_gpu, report
from gqallreduce.cli.coder import Coder
from gqallreduce.scheme import Scheme

FEW = ["qsgd(bits=4)", "onebit/ef", "adaptive(pi=64)/ef", "terngrad"]


@pytest.fixture
def serial_devices():
    runtime.use(SerialRuntime)
    yield
    runtime.use()


def run(*words):
    parser = argparse.ArgumentParser()
    codecs.add_arguments(parser)
    return codecs.run(parser.parse_args(["--device", "cuda", *words]))


@pytest.mark.slow
@needs_device
def test_every_codec_is_measured_and_equals_the_host(serial_devices, tmp_path, capsys):
    assert run("--sizes", "4096", "64KiB", "1GiB", "--repetitions", "2", "--output", f"{tmp_path}/rates") == 0
    machine, rows = report.read(tmp_path / "rates.jsonl", "codec")
    assert (machine["device"], machine["architecture"], machine["cupy"]) == ("serial grid", "none", "none")
    assert {row["bytes"] for row in rows} == {4096, 65536}
    assert {row["codec"] for row in rows} >= {"onebit", "onebit/ef", "adaptive(pi=64)", "adaptive(pi=64)/ef", "raw"}
    for row in rows:
        assert row["wrong"] == ""
        assert all(len(row[f"{name}_seconds"]) == 2 for name in ("copy", *codecs_on_gpu.OPERATIONS))
    said = capsys.readouterr().out
    assert "left out: 1 GiB, which takes 14 GiB of 64 MiB free" in said
    for word in ("64 KiB of float32", "encode GB/s", "share", "target", "met", "adaptive(pi=64)/ef"):
        assert word in said
    assert (tmp_path / "rates.png").stat().st_size > 0
    assert (tmp_path / "rates.svg").stat().st_size > 0


def test_codecs_without_kernels_for_a_gpu_are_left_out():
    texts = codecs_on_gpu.OnGpu.texts(None, ["onebit/ef", "mx", "qsgd(bits=4)", "qsgd(rounding=nearest)", "natural"])
    assert texts == ["onebit", "onebit/ef", "qsgd(bits=4)"]


@needs_device
def test_levels_without_kernels_for_a_device_never_get_there(serial_devices):
    device = Device(SerialRuntime(), aware=False)
    with pytest.raises(ValueError, match="devices have no kernels for these levels"):
        Coder("mx", [device.adopt(np.zeros(1000, np.float32))] * 2, device).encode()


def seconds(copied, **others):
    return {"copy": [copied, copied, 9.0], **{name: [taken, 0.0, 9.0] for name, taken in others.items()}}


class Coded:
    """What a row is made of."""

    def __init__(self, text):
        self.text, self.codec = text, Scheme.parse(text).codec
        self.inputs, self.compression = [np.zeros(1000, np.float32)], 8.0


@pytest.mark.parametrize(
    ("text", "target", "met"), [("qsgd(bits=2)", 0.5, False), ("onebit/ef", 0.5, False), ("adaptive", 0.25, True)]
)
def test_a_share_is_the_median_time_of_the_copy_over_that_of_the_codec(text, target, met):
    row = codecs_on_gpu.row(Coded(text), seconds(1e-6, encode=4e-6, decode=2e-6, decode_add=1e-6))
    assert row["copy_gbps"] == pytest.approx(4.0)
    assert [row[f"{name}_share"] for name in codecs_on_gpu.OPERATIONS] == pytest.approx([0.25, 0.5, 1.0])
    assert row["encode_gbps"] == pytest.approx(1.0)
    assert (row["target"], row["met"]) == (target, met)


def test_where_no_target_is_set_none_is_met():
    row = codecs_on_gpu.row(Coded("raw"), seconds(1e-6, encode=1e-6, decode=1e-6, decode_add=1e-6))
    assert (row["target"], row["met"]) == (None, None)


@needs_device
@pytest.mark.parametrize("text", FEW)
def test_messages_made_again_are_the_same(serial_devices, text):
    device = Device(SerialRuntime(), aware=False)
    coder = Coder(text, [device.adopt(np.random.default_rng(1).standard_normal(9001).astype(np.float32))] * 2, device)
    coder.encode()
    coder.settle()
    made = [device.on_host(wire[:nbytes]).tobytes() for wire, nbytes in zip(coder.wires, coder.lengths, strict=True)]
    for wire in coder.wires:
        wire[:] = 0
    coder.encode_again()
    again = [device.on_host(wire[:nbytes]).tobytes() for wire, nbytes in zip(coder.wires, coder.lengths, strict=True)]
    assert made == again


@needs_device
@pytest.mark.parametrize("text", FEW)
def test_a_device_that_computes_otherwise_is_found(serial_devices, text):
    device = Device(SerialRuntime(), aware=False)
    first = np.random.default_rng(1).standard_normal(9001).astype(np.float32)
    assert codecs_on_gpu.wrong(Coder(text, [device.adopt(first)], device), first) == ""
    other = first.copy()
    other[4321] = 99
    assert codecs_on_gpu.wrong(Coder(text, [device.adopt(first)], device), other) == "the message is not the host's"


@needs_device
def test_what_a_kernel_found_is_said(serial_devices, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(codecs_on_gpu, "found", lambda device: "a value is not finite")
    assert run("--sizes", "4096", "--codecs", "raw", "--repetitions", "1", "--output", f"{tmp_path}/rates") == 1
    assert "WRONG: raw, serial grid: a value is not finite" in capsys.readouterr().out


def test_without_cupy_the_command_names_it(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "cupy", None)
    needs.cupy.cache_clear()
    assert run("--output", f"{tmp_path}/rates") == 2
    assert "codecs: buffers in GPU memory need CuPy: pip install 'gqallreduce[cuda13]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
