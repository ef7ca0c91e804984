"""What a codec loses of one encoding against the bits it takes, by the distribution of the values and the bucket size.

The error is the mean of |Q(v) - v|^2 over that of |v|^2. Codecs with a `bucket` (or `block`) that their text does not
give are measured with each size of bucket, the others once; all on the same values. Codecs that learn have learned from
these values. No MPI.
"""

import json
import sys
from pathlib import Path

import numpy as np

import gqallreduce as gq
from gqallreduce.cli import error_plot, machine
from gqallreduce.cli.report import Report
from gqallreduce.coding import frame
from gqallreduce.coding.codec import RegionCodec
from gqallreduce.errors import Error
from gqallreduce.quantities import count
from gqallreduce.runtime.local import LocalAllreduce

CODECS = (
    "onebit",
    "adaptive(pi=64)",
    "terngrad(clip=0)",
    *(f"qsgd(bits={bits})" for bits in (2, 3, 4, 6, 8)),
    *(f"qsgd(bits={bits}, zero_level=False)" for bits in (3, 4)),
    *(f"qsgd(bits={bits}, norm=l2)" for bits in (3, 4)),
    "qsgd(bits=4, rounding=nearest)",
    *(f"nuqsgd(bits={bits})" for bits in (3, 4)),
    "nuqsgd(bits=3, zero_level=False)",
    *(f"natural_dithering(bits={bits})" for bits in (3, 4)),
    "natural",
    "natural(bits=4)",
    *(f"{name}(bits=3, zero_level=False)" for name in ("alq", "alq_n", "amq")),
    *(f"{name}(bits=3, zero_level=False, norm=l2)" for name in ("alq", "amq")),
    "alq_n(bits=3, zero_level=False, norm=l2, fit=normal)",
    *(f"alq(bits={bits})" for bits in (3, 4, 6)),
    *(f"mx(format={name})" for name in ("fp4", "fp6_e2m3", "fp6_e3m2", "fp8_e4m3", "int8")),
    "mx(format=fp4, rounding=stochastic)",
    "fp8(format=e4m3)",
    "fp8(format=e5m2)",
    *(f"qsgd(bits={bits}, rotate=True)" for bits in (3, 4)),
    "alq(bits=3, zero_level=False, rotate=True)",
    *(f"eden(bits={bits})" for bits in (1, 2, 3, 4)),
    *(f"thc(bits={bits})" for bits in (2, 3, 4)),
    "bfloat16",
    "float16",
)
BUCKETS = (32, 64, 128, 512, 2048, 8192, 32768)
SHOWN = 8192  # the bucket of the table
LEAST = 1 << 17  # values of each measurement, and at least so many buckets:
LEAST_BUCKETS = 24
RECORDED = "recorded"


def add_arguments(parser):
    """The options of bench/quantization_error.py."""
    texts = f"codecs without schedule and feedback ({len(CODECS)} that say something about each kind)"
    sizes = f"sizes of buckets ({' '.join(map(str, BUCKETS))})"
    folder = "measure gradients too, of a folder that bench/train_mlp.py --dump-gradients wrote"
    files = "writes NAME.jsonl, NAME.png and NAME.svg (bench/results/quantization_error)"
    parser.add_argument("--codecs", nargs="+", default=CODECS, metavar="CODEC", help=texts)
    parser.add_argument("--buckets", nargs="+", type=count, default=BUCKETS, metavar="VALUES", help=sizes)
    parser.add_argument("--gradients", metavar="FOLDER", help=folder)
    parser.add_argument("--output", default="bench/results/quantization_error", metavar="NAME", help=files)


def run(arguments):
    """Measures, prints and writes; 0 if all went well, 2 for wrong arguments."""
    try:
        schemes = [_scheme(text) for text in arguments.codecs]
        recorded, about = read_gradients(arguments.gradients) if arguments.gradients else (None, {})
    except (ValueError, Error, OSError) as problem:
        print(f"quantization_error: {problem}", file=sys.stderr)
        return 2
    report = Report(f"{arguments.output}.jsonl")
    description = machine.describe(gradients=about)
    report.write("machine", description)
    rows, names = [], [*SYNTHETIC, *([RECORDED] if recorded is not None else [])]
    buckets = sorted(set(arguments.buckets))
    with report.progress(len(names) * len(buckets)) as progress:
        for name in names:
            for bucket in buckets:
                progress.show(f"{name}, buckets of {bucket}")
                v = recorded if name == RECORDED else values(name, bucket)
                rows += [{"data": name, **row} for row in measure(schemes, v, bucket, once=bucket == buckets[-1])]
                progress.step()
    for row in rows:
        report.write("error", row)
    report.table(table(rows, SHOWN if SHOWN in buckets else buckets[-1]))
    written = [f"{arguments.output}.jsonl", *error_plot.draw(description, rows, arguments.output)]
    report.say("written: " + ", ".join(written))
    return 0


def _scheme(text):
    scheme = gq.Scheme.parse(text)
    if not isinstance(scheme.codec, RegionCodec) or scheme.schedule or scheme.feedback:
        raise ValueError(f"{text!r}: expected a codec alone, without feedback, whose bytes are its own")
    return text, scheme


def measure(schemes, v, bucket, once):
    """Rows of the codecs on v, float32, in buckets of this size; of those that have none, only if `once`."""
    for text, scheme in schemes:
        option = next((each for each in ("bucket", "block") if each in scheme.codec.options()), None)
        given = option is None or f"{option}=" in text.replace(" ", "")
        if given and not once:
            continue
        if not given:
            scheme = gq.Scheme.parse(with_option(text, f"{option}={bucket}"))
        data = scheme.encode(v, seed=bucket)
        sent = scheme.decode(data, v.size, seed=bucket) if not scheme.codec.learns else _learned(scheme, v, bucket)
        lost = sent.astype(np.float64) - v
        error = float((lost @ lost) / np.square(v, dtype=np.float64).sum())
        size = None if given else bucket
        yield {"codec": text, "bucket": size, "bits": 8 * (len(data) - frame.SIZE) / v.size, "error": error}


def _learned(scheme, v, seed):
    """What v becomes in the first call of a key, before which a codec learns from v itself; as many bytes as before."""
    return LocalAllreduce(f"direct/{scheme}", 1, seed=seed)([v.copy()], key="v")[0]


def with_option(text, option):
    return f"{text[:-1]}, {option})" if text.endswith(")") else f"{text}({option})"


# --- values ---


def _gaussian(rng, shape):
    return rng.standard_normal(shape)


def _laplace(rng, shape):
    return rng.laplace(size=shape)


def _heavy_tailed(rng, shape):
    """Normal times a lognormal scale of its own for each value."""
    return rng.standard_normal(shape) * np.exp(rng.standard_normal(shape))


def _mixed_scales(rng, shape):
    """Eight parts of a bucket, as of eight layers, each normal with a scale exp(N(0, 1.2^2)) of its own."""
    scales = np.exp(1.2 * rng.standard_normal((shape[0], 8)))
    return rng.standard_normal(shape) * scales[:, np.arange(shape[1]) * 8 // shape[1]]


SYNTHETIC = {
    "Gaussian": _gaussian,
    "Laplace": _laplace,
    "heavy-tailed": _heavy_tailed,
    "mixed scales": _mixed_scales,
}


def values(name, bucket):
    """float32 values of a distribution, whole buckets; the same at every call."""
    rng = np.random.default_rng([list(SYNTHETIC).index(name), bucket])
    count_of_buckets = max(LEAST_BUCKETS, -(-LEAST // bucket))
    return SYNTHETIC[name](rng, (count_of_buckets, bucket)).astype(np.float32).reshape(-1)


def read_gradients(folder):
    """(float32 values of all matrices that rank 0 had, column by column and end to end; what was trained)."""
    matrices, about = read_matrices(folder)
    return np.concatenate([matrix.reshape(-1, order="F") for matrix in matrices]), about


def read_matrices(folder):
    """(float32 matrices that rank 0 had, what was trained)."""
    found = [np.load(file)["gradients"][0] for file in sorted(Path(folder).glob("*.npz"))]
    matrices = [each for each in found if each.ndim == 2]
    if not matrices:
        raise ValueError(f"{folder}: no matrices, expected NAME.stepN.npz of bench/train_mlp.py --dump-gradients")
    about = json.loads((Path(folder) / "metadata.json").read_text())
    return matrices, {key: about.get(key) for key in ("data", "widths", "batch", "scheme", "steps")}


# --- what is shown ---


def table(rows, bucket):
    """Bits and errors of all codecs at one size of bucket, a column for each distribution."""
    from rich import box
    from rich.table import Table

    title = f"Relative squared error of one encoding; buckets of {bucket} where a codec has buckets"
    made = Table(title=title, title_justify="left", title_style="", header_style="", box=box.SIMPLE_HEAD)
    names = list(dict.fromkeys(row["data"] for row in rows))
    made.add_column("codec", no_wrap=True)
    for name in ("bits per value", *names):
        made.add_column(name, justify="right", no_wrap=True)
    for line in lines(rows, bucket):
        made.add_row(*line)
    return made


def lines(rows, bucket):
    """[codec, bits per value of the first distribution, error of each], as text."""
    found = {}
    for row in rows:
        if row["bucket"] in (bucket, None):
            found.setdefault(row["codec"], [row["codec"], f"{row['bits']:.3f}"]).append(f"{row['error']:.3g}")
    return list(found.values())
