"""The parts of the training, without MPI, and a whole one of a single process."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from images import write_images

from gqallreduce.buffer import Buffer
from gqallreduce.cli import report
from gqallreduce.cli.training import command, curves, data, optimizers, rules, summary
from gqallreduce.cli.training.experiment import weight_names
from gqallreduce.cli.training.network import Network, cross_entropy
from gqallreduce.cli.training.weights import Weight

ROOT = Path(__file__).parents[2]
NAMES = weight_names([6, 5, 4])


def small_network(align, most=7, widths=(6, 5, 4, 3)):
    """A network in float64, with biases that are not zero."""
    network = Network(widths, most, align, np.float64)
    network.draw(1)
    random = np.random.default_rng(2)
    for weight in network.weights:
        if weight.value.ndim == 1:
            weight.value[...] = random.standard_normal(weight.value.shape)
    return network


def small_batch(samples, pixels=6, classes=3):
    random = np.random.default_rng(3)
    return random.standard_normal((samples, pixels)).T, random.integers(0, classes, samples)


# --- the network ---


@pytest.mark.parametrize("align", [1, 4, 16])
@pytest.mark.parametrize("samples", [1, 5, 7])
def test_the_gradient_is_the_slope_of_the_loss(align, samples):
    network = small_network(align)
    images, labels = small_batch(samples)
    network.loss_and_gradients(images, labels, 0.25)
    found = {weight.name: weight.gradient.copy() for weight in network.weights}
    step = 1e-6
    for weight in network.weights:
        slopes = np.empty(weight.value.shape)
        for index in np.ndindex(slopes.shape):
            kept, losses = weight.value[index], []
            for offset in (step, -step):
                weight.value[index] = kept + offset
                losses.append(network.loss_and_gradients(images, labels, 0.25))
            weight.value[index] = kept
            slopes[index] = 0.25 * (losses[0] - losses[1]) / (2 * step)
        np.testing.assert_allclose(found[weight.name], slopes, rtol=1e-6, atol=1e-8, err_msg=weight.name)


def test_gradients_of_parts_of_a_mini_batch_add_up_to_that_of_the_whole():
    network = small_network(16)
    images, labels = small_batch(7)
    whole_loss = network.loss_and_gradients(images, labels, 1 / 7)
    whole = [weight.gradient.copy() for weight in network.weights]
    parts = [slice(0, 2), slice(2, 2), slice(2, 7)]  # a rank may have no sample
    loss, sums = 0.0, [np.zeros_like(gradient) for gradient in whole]
    for part in parts:
        loss += network.loss_and_gradients(images[:, part], labels[part], 1 / 7)
        for total, weight in zip(sums, network.weights, strict=True):
            total += weight.gradient
    assert loss == pytest.approx(whole_loss)
    for total, gradient in zip(sums, whole, strict=True):
        np.testing.assert_allclose(total, gradient, atol=1e-12)


def test_evaluation_takes_any_number_of_samples():
    network = small_network(16)
    images, labels = small_batch(20)
    loss, right = network.evaluate(images, labels)
    single = [network.evaluate(images[:, n : n + 1], labels[n : n + 1]) for n in range(20)]
    assert loss == pytest.approx(sum(each for each, _ in single))
    assert right == sum(each for _, each in single)
    assert network.evaluate(images[:, :0], labels[:0]) == (0.0, 0)


def test_the_loss_of_large_logits_does_not_overflow():
    logits = np.array([[1000.0, -1000.0], [0.0, 0.0]], np.float32)
    assert cross_entropy(logits, np.array([0, 0])) == pytest.approx(1000.0)


@pytest.mark.parametrize(("shape", "leading"), [((10, 7), 16), ((16, 3), 16), ((1, 4), 16), ((10,), 10)])
def test_weights_are_fortran_views_with_a_leading_dimension(shape, leading):
    weight = Weight("w", shape, 16, np.float32)
    for view, memory in ((weight.value, weight.value_memory), (weight.gradient, weight.gradient_memory)):
        assert view.shape == shape
        assert view.strides == (4, 4 * leading)[: len(shape)]
        assert np.shares_memory(view, memory)
        assert memory.size == leading * (shape[1] if len(shape) == 2 else 1)
    assert Buffer(weight.gradient).order == ("F" if len(shape) == 2 and shape[0] > 1 else "C")


def test_products_are_written_into_the_views_and_leave_the_gaps_zero():
    network = small_network(16)
    network.loss_and_gradients(*small_batch(7), 1.0)
    for weight in network.weights:
        assert np.abs(weight.gradient).sum() > 0
        assert np.abs(weight.gradient_memory).sum() == pytest.approx(np.abs(weight.gradient).sum())


def test_a_digest_tells_one_bit():
    weight = Weight("w", (10, 7), 16, np.float32)
    weight.value[3, 2] = 1.0
    before = weight.digest()
    weight.value[3, 2] = np.nextafter(np.float32(1), np.float32(2))
    assert weight.digest() != before


# --- optimizers ---


def momentum_formula(gradients, rate=0.01, momentum=0.9):
    moment = value = 0.0
    for gradient in gradients:
        moment = momentum * moment + gradient
        value = value - rate * moment
    return value


def adagrad_formula(gradients, rate=0.01, epsilon=1e-8):
    squares = value = 0.0
    for gradient in gradients:
        squares = squares + gradient**2
        value = value - rate * gradient / (np.sqrt(squares) + epsilon)
    return value


def adam_formula(gradients, rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8):
    first = second = value = 0.0
    for step, gradient in enumerate(gradients, start=1):
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        value = value - rate * (first / (1 - beta1**step)) / (np.sqrt(second / (1 - beta2**step)) + epsilon)
    return value


FORMULAS = {"sgd": momentum_formula, "adagrad": adagrad_formula, "adam": adam_formula}


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
@pytest.mark.parametrize("shape", [(5, 3), (16, 3), (7,), (300, 2 * optimizers.BLOCK // 300)])
def test_an_optimizer_follows_its_formula(name, shape):
    random = np.random.default_rng(4)
    gradients = random.standard_normal((6, *shape)) * 10.0 ** random.integers(-9, 2, shape)
    weight = Weight("w", shape, 16, np.float64)
    optimizer = optimizers.OPTIMIZERS[name]()
    for gradient in gradients:
        weight.gradient[...] = gradient
        optimizer.update(weight)
    np.testing.assert_allclose(weight.value, FORMULAS[name](gradients), rtol=1e-12, atol=1e-16)
    assert np.count_nonzero(weight.value_memory) == weight.value.size, "the gaps stay zero"


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_an_extra_step_of_one_weight_leaves_the_others_alone(name):
    weights = [Weight("a", (3,), 1, np.float64), Weight("b", (3,), 1, np.float64)]
    optimizer = optimizers.OPTIMIZERS[name]()
    for step in range(4):
        for weight in weights if step != 1 else weights[:1]:
            weight.gradient[...] = 1 + step
            optimizer.update(weight)
    for weight, steps in zip(weights, ([1, 2, 3, 4], [1, 3, 4]), strict=True):
        np.testing.assert_allclose(weight.value, FORMULAS[name](np.array(steps, float)), rtol=1e-12)


# --- rules ---


def test_the_first_rule_that_matches_a_weight_wins_and_what_none_matches_is_dense():
    found = rules.assign([("*.bias", "raw"), ("fc1*", "onebit/ef")], NAMES)
    assert found == {"fc1.weight": "onebit/ef", "fc1.bias": "raw", "fc2.weight": "dense", "fc2.bias": "raw"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("onebit/ef", [("*", "onebit/ef")]),
        ("adaptive( pi=64 )/ef", [("*", "adaptive(pi=64)/ef")]),
        ("dense", [("*", "dense")]),
        ("dense(ring)", [("*", "dense(ring)")]),
        ("fc1*=raw; *=qsgd(bits=2)", [("fc1*", "raw"), ("*", "qsgd(bits=2)")]),
        (
            "fc[12].weight = ring/adaptive(pi=4, scope=column)/ef",
            [("fc[12].weight", "ring/adaptive(pi=4, scope=column)/ef")],
        ),
    ],
)
def test_a_run_is_a_scheme_or_rules(text, expected):
    assert rules.parse_rules(text) == expected


def test_every_run_meets_every_optimizer_but_one_that_names_its_own():
    runs = rules.plan(["dense", "onebit/ef@adagrad"], ["*.bias=dense"], ["adam", "sgd"], {"adam": 0.5}, NAMES)
    ways = [(run.text, run.optimizer, run.rate) for run in runs]
    assert ways == [("dense", "adam", 0.5), ("dense", "sgd", 0.01), ("onebit/ef", "adagrad", 0.01)]
    assert runs[2].assignment["fc1.bias"] == "dense"
    assert runs[2].assignment["fc1.weight"] == "onebit/ef"


@pytest.mark.parametrize(
    ("entries", "first", "complaint"),
    [
        (["onebit(nonsense=3)"], [], "nonsense"),
        (["nonsense"], [], "nonsense"),
        (["fc9*=raw; *=dense"], [], "'fc9\\*=raw' applies to no weight: the weights are fc1.weight"),
        (["*=raw; fc1*=dense"], [], "'fc1\\*=dense' applies to no weight: earlier rules"),
        (["dense"], ["*=raw"], "applies to no weight"),
        (["dense"], ["raw"], "expected PATTERN=SCHEME"),
        (["dense@nonsense"], [], "no optimizer 'nonsense'"),
        (["dense", "dense@adam"], [], "asked for twice"),
    ],
)
def test_a_run_that_makes_no_sense_is_refused(entries, first, complaint):
    with pytest.raises(ValueError, match=complaint):
        rules.plan(entries, first, ["adam"], {}, NAMES)


@pytest.mark.parametrize("text", ["adam", "adam=0", "adam=-1", "adam=x", "adam=inf", "nonsense=1"])
def test_a_rate_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="expected NAME=RATE"):
        rules.parse_rate(text)


# --- data ---


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 33])
@pytest.mark.parametrize("count", [0, 1, 6, 33, 256])
def test_ranks_divide_anything_evenly(count, size):
    parts = [data.part(count, rank, size) for rank in range(size)]
    assert [index for part in parts for index in range(count)[part]] == list(range(count))
    assert max(part.stop - part.start for part in parts) - min(part.stop - part.start for part in parts) <= 1


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("batch", [1, 8, 23, 24])
def test_ranks_together_see_every_sample_once_in_an_order_that_does_not_depend_on_their_number(batch, size):
    samples = data.Samples(np.arange(23 * 2, dtype=np.float32).reshape(23, 2), np.arange(23))
    expected = [labels.tolist() for _, _, labels in data.Batches(samples, batch, 0, 1).epoch(5, 0)]
    ranks = [data.Batches(samples, batch, rank, size) for rank in range(size)]
    found = []
    for parts in zip(*(each.epoch(5, 0) for each in ranks), strict=True):
        together = [label for _, _, labels in parts for label in labels.tolist()]
        found.append(together)
        for (count, images, labels), each in zip(parts, ranks, strict=True):
            assert count == len(together)
            assert len(labels) <= each.most
            np.testing.assert_array_equal(images, samples.images[labels].T)
            assert images.flags.f_contiguous
    assert found == expected
    assert len(found) == ranks[0].steps
    assert sorted(label for together in found for label in together) == list(range(23))


def test_every_epoch_and_seed_has_an_order_of_its_own():
    samples = data.Samples(np.zeros((50, 1), np.float32), np.arange(50))
    batches = data.Batches(samples, 50, 0, 1)
    orders = [next(batches.epoch(seed, epoch))[2].tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert next(batches.epoch(0, 0))[2].tolist() == orders[0]


@pytest.mark.parametrize("compressed", [True, False])
def test_a_folder_with_one_part_is_divided_and_with_two_is_not(tmp_path, compressed):
    images, labels = write_images(tmp_path, compressed=compressed)
    found = data.load(tmp_path)
    assert (len(found.training), len(found.test), found.pixels, found.classes) == (170, 30, 36, 10)
    kept = {row.tobytes() for row in np.concatenate([found.training.images, found.test.images])}
    assert kept == {row.tobytes() for row in np.multiply(images.reshape(200, 36), 1 / 255, dtype=np.float32)}
    write_images(tmp_path, 300, part="train")
    found = data.load(tmp_path)
    assert (len(found.training), len(found.test)) == (300, 200)
    np.testing.assert_array_equal(found.test.labels, labels)


def test_the_variable_names_the_folder_where_no_option_does(tmp_path, monkeypatch):
    write_images(tmp_path)
    monkeypatch.setenv(data.VARIABLE, str(tmp_path))
    assert len(data.load().training) == 170
    monkeypatch.setenv(data.VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(ValueError, match="absent"):
        data.load()
    assert len(data.load(tmp_path).training) == 170


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("t10k-images-idx3-ubyte", lambda content: content[:-1], "expected a header and"),
        ("t10k-images-idx3-ubyte", lambda content: content[:7], "no IDX file of bytes with 3 axes"),
        ("t10k-labels-idx1-ubyte", lambda content: b"\0\0\x09\x01" + content[4:], "no IDX file of bytes with 1 axes"),
        (
            "t10k-labels-idx1-ubyte",
            lambda content: content[:4] + b"\0\0\0\xc7" + content[8:-1],
            "200 t10k images and 199",
        ),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_refused(tmp_path, name, change, complaint):
    write_images(tmp_path, compressed=False)
    path = tmp_path / name
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=complaint):
        data.load(tmp_path)


def test_a_file_that_is_not_compressed_but_says_so_is_refused(tmp_path):
    write_images(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="t10k-labels"):
        data.load(tmp_path)


def test_digits_are_there_without_a_folder(monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.delenv(data.VARIABLE, raising=False)
    found = data.load()
    assert (len(found.training), len(found.test), found.pixels, found.classes) == (1527, 270, 64, 10)
    assert (found.training.images.min(), found.training.images.max()) == (0.0, 1.0)


def test_without_scikit_learn_one_is_told_what_to_do(monkeypatch):
    monkeypatch.delenv(data.VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ValueError, match=r"pip install 'gqallreduce\[bench\]'.*--data"):
        data.load()


# --- a whole training of one process ---


def train(folder, *words):
    """Runs bench/train_mlp.py alone; (status, output, errors)."""
    few = ["--hidden", "20", "--batch", "32", "--epochs", "2", "--output", str(folder / "made")]
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "train_mlp.py", *few, *words], capture_output=True, text=True, timeout=200
    )
    return done.returncode, done.stdout, done.stderr


def test_one_process_trains_writes_and_draws_and_draws_again(tmp_path):
    write_images(tmp_path)
    words = ["--data", str(tmp_path), "--seeds", "0", "1", "--rates", "sgd=0.1", "--optimizers", "sgd"]
    status, output, errors = train(
        tmp_path,
        *words,
        "--schemes",
        "dense",
        "onebit/ef",
        "--loss-at",
        "3",
        "5",
        "--log-every",
        "4",
        "--norm-every",
        "8",
    )
    assert (status, errors) == (0, "")
    _, runs = report.read(tmp_path / "made.jsonl", "run")
    assert [(row["scheme"], row["seed"]) for row in runs] == [
        ("dense", 0),
        ("onebit/ef", 0),
        ("dense", 1),
        ("onebit/ef", 1),
    ]
    assert runs[0]["steps"] == 12
    assert runs[0]["accuracy"] > 0.25  # by guessing 0.1
    assert runs[0]["schemes"]["fc1.bias"] == "dense"
    _, weights = report.read(tmp_path / "made.jsonl", "weight")
    assert {row["step"] for row in weights} == {4, 8, 12}
    assert {row["key"] for row in weights} == set(weight_names([36, 20, 10]))
    for row in weights:
        assert ("residual_norm" in row) is (row["step"] == 8)
        assert row["loss"] > 0
    _, evaluations = report.read(tmp_path / "made.jsonl", "evaluation")
    assert [row["step"] for row in evaluations[:4]] == [3, 5, 6, 12]
    assert "accuracy" in output
    for ending in ("md", "png", "svg"):
        assert (tmp_path / f"made.{ending}").stat().st_size > 0
    again = tmp_path / "again"
    status, output, errors = train(tmp_path, "--draw", *2 * [str(tmp_path / "made.jsonl")], "--output", str(again))
    assert (status, errors) == (0, "")
    assert again.with_suffix(".md").read_text().count("| onebit/ef |") == 1


def test_the_same_seed_trains_the_same_weights(tmp_path):
    write_images(tmp_path)
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        words = ["--data", str(tmp_path), "--seeds", "3", "--schemes", "qsgd(bits=2)/ef", "raw"]
        assert train(tmp_path / name, *words)[0] == 0
        found.append([row["weights"] for row in report.read(tmp_path / name / "made.jsonl", "run")[1]])
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--schemes", "nonsense"], "nonsense"),
        (["--scheme", "fc7.*=raw"], "applies to no weight"),
        (["--data", "absent"], "absent"),
        (["--batch", "1000"], "more than the 170 images"),
        (["--rates", "adam=fast"], "expected NAME=RATE"),
        (["--target", "95"], "--target 95"),
        (["--seeds", "1", "1"], "--seeds names one twice"),
        (["--log-every", "-1"], "not below 0"),
    ],
)
def test_what_cannot_be_trained_is_refused(tmp_path, words, complaint):
    write_images(tmp_path)
    status, _, errors = train(tmp_path, "--data", str(tmp_path), *words)
    assert status == 2
    assert errors.startswith("train_mlp: ")
    assert complaint in errors


# --- what is made of the rows ---


def recorded(scheme, seed, **more):
    row = {"scheme": scheme, "optimizer": "adam", "seed": seed, "diverged": None, "accuracy": 0.9 + 0.01 * seed}
    row |= {"loss_at": {"25": 1.0}, "sent": 1 << 20, "sent_with_flush": 1.5 * (1 << 20), "ratio": 8.0, "target": 0.91}
    row |= {"compute": 1e-3, "communication": 2e-3, "wait": 1e-3, "target_step": 50, "target_seconds": 1.0}
    return row | more


def test_the_table_has_means_with_their_spread():
    rows = [recorded("dense", 0), recorded("dense", 2), recorded("onebit", 0, target_step=None)]
    names, (dense, onebit) = summary.cells(rows, [25, 50])
    found = dict(zip(names, dense, strict=True))
    assert found["accuracy %"] == "91.00 +- 1.41"
    assert (found["loss at 25"], found["loss at 50"]) == ("1.000 +- 0.000", "-")
    assert (found["sent/step"], found["with flush"], found["ratio"]) == ("1 MiB", "1.5 MiB", "8.00")
    assert found["to 91 %"] == "50 steps, 1.0 +- 0.0 s"
    assert onebit[-1] == "not reached"
    assert summary.markdown(rows, [25]).count("\n") == 4


def test_a_run_that_diverged_says_so_beside_those_that_did_not():
    rows = [recorded("onebit", 0), recorded("onebit", 1, diverged=12, accuracy=None, loss_at={}, target_step=None)]
    names, (cells,) = summary.cells(rows, [25])
    found = dict(zip(names, cells, strict=True))
    assert found["accuracy %"] == "1 of 2 diverged after 12 steps; 90.00"
    assert found["to 91 %"].endswith("(1 of 2)")


def test_every_way_to_train_looks_different():
    ways = [
        (scheme, optimizer) for scheme in ("dense", "dense(ring)", "a", "a/ef", "b/ef") for optimizer in ("adam", "sgd")
    ]
    looks = [tuple(sorted(map(str, style.items()))) for style in curves.styles(ways).values()]
    assert len(set(looks)) == len(looks)


def test_the_defaults_are_runs_that_make_sense():
    assert len(rules.plan(command.SCHEMES, command.RULES, ["adam"], {}, NAMES)) == len(command.SCHEMES)
