"""Inputs that fuzzing has kept: those for Python here, those for C++ under the sanitizers (`make sanitize`)."""

from pathlib import Path

import fuzz_messages as messages
import pytest
from campaign import MOST_BYTES, MOST_KEPT

CORPUS = Path(__file__).with_name("corpus")


def inputs(target: str) -> list[bytes]:
    return [bytes.fromhex(line) for line in (CORPUS / f"{target}.txt").read_text().split()]


@pytest.mark.parametrize("target", ["decoders", "frames", "messages"])
def test_a_corpus_is_kept_small(target):
    found = inputs(target)
    assert 20 < len(found) <= MOST_KEPT
    assert len(set(found)) == len(found)
    assert sum(map(len, found)) <= MOST_BYTES


def test_messages_are_refused_or_yield_finite_values():
    for data in inputs("messages"):
        messages.one_input(data)


def test_a_good_message_of_every_scheme_is_taken(monkeypatch):
    taken = []
    monkeypatch.setattr(messages, "whole_message", lambda scheme, *_: taken.append(str(scheme)))
    monkeypatch.setattr(messages, "one_header", lambda data: taken.append("header"))
    for data in messages.seeds():
        messages.one_input(data)
    assert set(taken) == {str(scheme) for scheme in messages.SCHEMES} | {"header"}
    monkeypatch.undo()
    for data in messages.seeds()[:-1]:
        scheme, like = messages.SCHEMES[data[0]], messages.LIKE[data[1] // 4]
        scheme.decode(messages.with_header(scheme, data[2:]), like)
