"""The data of the training: what is read, what is refused, and who sees which sample when."""

import sys

import numpy as np
import pytest
from images import write_images

from gqallreduce.cli.training import data


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
