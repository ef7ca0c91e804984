"""Rows as the benchmarks write them, recorded once on two ranks, so that tables and plots are tested without MPI."""

import pytest


def recorded(side, scheme, seconds, **more):
    """One row of an allreduce benchmark."""
    row = {"side": side, "bytes": 4 * side * side, "scheme": scheme, "dense": not more, "seconds": seconds}
    return {**row, "speedup": 1.0, "error": 4e-08, **more}


@pytest.fixture
def machine_description():
    return {
        "processor": "AMD EPYC",
        "cores": 2,
        "ranks": 4,
        "link": "shared memory",
        "mpi": "Open MPI 5.0.11",
        "simd": "avx512",
        "commit": "0123456789ab",
    }


@pytest.fixture
def sum_rows():
    rows = []
    for side in (64, 512):
        unit = side * side * 1e-9
        more = {"encode": 0.3, "decode": 0.2, "wait": 0.4}
        rows += [
            recorded(side, "MPI_Allreduce", [1.2 * unit, 1.0 * unit, 1.1 * unit]),
            recorded(side, "MPI_Allreduce (ring)", [2.2 * unit, 2.0 * unit, 2.1 * unit]),
            recorded(side, "raw", [unit] * 3, ran="direct/raw", bytes_sent=6 * side * side, ratio=1.0, **more),
            recorded(
                side,
                "auto/adaptive(pi=64)/ef",
                [0.5 * unit] * 3,
                ran="direct/adaptive(pi=64)/ef",
                bytes_sent=side * side // 10,
                ratio=58.0,
                **more | {"error": 0.8},
            ),
        ]
    return rows


@pytest.fixture
def codec_rows():
    rows = []
    for nbytes in (1 << 18, 1 << 26):
        for level in ("scalar", "avx512"):
            for codec in ("qsgd(bits=4)", "onebit/ef"):
                speeds = {"memcpy_gbps": 10.0, "encode_gbps": 5.0, "decode_add_gbps": 8.0}
                ratios = {"encode_ratio": 2.0, "decode_add_ratio": 1.2, "compression": 7.9, "wrong": ""}
                rows.append({"codec": codec, "bytes": nbytes, "simd": level, **speeds, **ratios})
    return rows
