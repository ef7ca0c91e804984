"""What becomes of calls that may be carried out at once (runtime/repeated.py), for tests."""

from gqallreduce.runtime.repeated import NOT_BEGUN
from gqallreduce.transport.progress import Progress


def note_at_once(monkeypatch, module) -> list[bool]:
    """Of each call that a module makes from now on, was it carried out at once?"""
    found, at_once = [], module.repeated

    def noted(*given):
        result = at_once(*given)
        found.append(result is not NOT_BEGUN)
        return result

    monkeypatch.setattr(module, "repeated", noted)
    return found


def note_taken_up(monkeypatch, of_call) -> list:
    """`of_call(call)` of each call that the runtime does not bring to an end soon."""
    found, take_up = [], Progress.take_up

    def noted(progress, call):
        found.append(of_call(call))
        take_up(progress, call)

    monkeypatch.setattr(Progress, "take_up", noted)
    return found
