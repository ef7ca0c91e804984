"""What is started is noted, wherever a signal handler raises."""

import gc
import sys

from gqallreduce.transport import waiting


class Stop(BaseException):
    pass


def raise_at(opcode, call):
    """Stop is raised at so many opcodes of a Python function called. Was it?"""
    left = opcode

    def trace(frame, event, _):
        nonlocal left
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                raise Stop
        return trace

    before = sys.gettrace()
    gc.disable()  # what a collection calls is none of the function's opcodes
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks at it when a trace function is set
    sys.settrace(trace)
    try:
        call()
    except Stop:
        return True
    finally:
        sys.settrace(before)
        gc.enable()
    return False


def test_a_request_is_noted_as_its_operation_starts():
    """At every opcode: an operation has been started if and only if its request is in the list."""
    opcode = 1
    while True:
        started, requests = [], []
        raised = raise_at(opcode, lambda: waiting.begin(requests, started.append, 7))  # noqa: B023
        assert len(started) == len(requests)
        if not raised:
            break
        opcode += 1
    assert started == [7]
    assert opcode > 5
