"""What a new codec or schedule brings with it: nothing of it may be forgotten."""

import contextlib
import pkgutil

import pytest
from golden import FOLDER, OUTER, check_golden, file, outer_file
from schemes import CODEC, PARTICULARS, TEXTS, particulars_file

import gqallreduce
import gqallreduce.codecs
import gqallreduce.schedules
from gqallreduce import Scheme
from gqallreduce.coding.codec import PROMISES
from gqallreduce.registry import CODECS, SCHEDULES

every_codec = pytest.mark.parametrize("name", sorted(CODECS))


def modules(package) -> set[str]:
    return {module.name for module in pkgutil.iter_modules(package.__path__)}


def test_every_file_registers_what_bears_its_name():
    assert modules(gqallreduce.codecs) <= set(CODECS)
    assert modules(gqallreduce.schedules) <= set(SCHEDULES)


def test_everything_registered_lives_in_a_file_of_its_folder():
    for codec in CODECS.values():
        assert codec.__module__.startswith("gqallreduce.codecs.")
    for schedule in SCHEDULES.values():
        assert schedule.rounds.__module__.startswith("gqallreduce.schedules.")


@pytest.mark.parametrize("registry", [CODECS, SCHEDULES], ids=lambda registry: registry.kind)
def test_a_name_is_registered_once(registry):
    for name, thing in list(registry.items()):
        with pytest.raises(ValueError, match=f"{registry.kind} '{name}' is registered twice"):
            registry.add(name, object())
        assert registry[name] is thing


@every_codec
def test_a_codec_has_a_test_file(name):
    assert particulars_file(name).exists()


@every_codec
def test_an_example_parses_and_is_of_its_codec(name):
    scheme = Scheme.parse(CODECS[name].example)
    assert scheme.codec.name == CODECS[name].name == name
    assert scheme.schedule in SCHEDULES


@every_codec
def test_an_unbiased_codec_states_its_variance(name):
    if CODECS[name].unbiased:
        assert callable(PARTICULARS[name].variance)
        assert callable(PARTICULARS[name].spread)


@every_codec
def test_a_codec_says_what_it_is(name):
    codec = CODECS[name]
    assert codec.source
    assert "Source:" in codec.__doc__
    assert "Error:" in codec.__doc__ or "Variance:" in codec.__doc__
    assert set(codec.promises()) == set(PROMISES)
    assert all(isinstance(kept, bool) for kept in codec.promises().values())


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_a_schedule_says_what_it_is(name):
    schedule = SCHEDULES[name]
    assert schedule.name == name
    assert schedule.doc
    assert schedule.cost
    assert schedule.source


def test_every_text_has_golden_bytes_and_no_file_is_left_over():
    assert {file(text).name for text in TEXTS} == {path.name for path in FOLDER.glob("*.bin")}
    assert {outer_file(text) for text in OUTER} == set((FOLDER / "outer").iterdir())


def test_the_catalog_lists_everything():
    entries = gqallreduce.schemes()
    assert [entry.name for entry in entries if entry.kind == "codec"] == sorted(CODECS)
    assert [entry.name for entry in entries if entry.kind == "schedule"] == sorted(SCHEDULES)
    for entry in entries:
        assert Scheme.parse(entry.example)
        assert entry.source
        if entry.kind == "codec":
            assert entry.options == CODECS[entry.name].options()
            assert entry.promises == CODECS[entry.name].promises()


@pytest.mark.parametrize("text", TEXTS)
def test_the_wire_format_is_the_one_on_file(text):
    check_golden(text)


@pytest.mark.parametrize("codec", CODEC.values(), ids=CODEC)
def test_a_codec_is_a_value(codec):
    again = type(codec)(**{name: getattr(codec, name) for name in codec.options()})
    assert again == codec
    assert hash(again) == hash(codec)
    with contextlib.suppress(StopIteration):
        option = next(iter(codec.options()))
        with pytest.raises(AttributeError):
            setattr(codec, option, 1)
