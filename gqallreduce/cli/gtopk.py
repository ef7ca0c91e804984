"""What the published code of gTop-k loses of a sum, beside our schedules on the same gradients.

Source: Shi et al., A distributed synchronous SGD algorithm with global top-k sparsification, ICDCS 2019, and its public
code: up a binary tree the receiver adds what comes to its own, and selects k again; all ranks take the root's, and keep
of what they had selected only what is not among its places. So what is dropped on the way and comes back by another
branch is neither in the result nor in a residual.
"""

import numpy as np

from gqallreduce.runtime.local import LocalAllreduce

OURS = (
    "recursive_doubling/topk(k={k})/ef",
    "direct/topk(k={k})/ef",
    "recursive_doubling/topk(k={k}, sums=union)/ef",
    "direct/topk(k={k}, sums=union)/ef",
)


def compare(ranks=16, elements=2000, k=20, steps=20):
    """Rows: of a method, the magnitudes of what is lost, over those of the results, all steps together.

    The gradients are correlated: half of their variance is the same on all ranks and in all steps.
    """
    steps = list(gradients(ranks, elements, steps))
    case = {"ranks": ranks, "elements": elements, "k": k, "steps": len(steps)}
    rows = [{"method": "gTop-k, published code", "lost": lost_by_tree(steps, k)}]
    for text in OURS:
        scheme = text.format(k=k)
        rows.append({"method": scheme, "lost": lost_by_scheme(steps, scheme)})
    return [{**row, **case} for row in rows]


def gradients(ranks, elements, steps):
    """float64[ranks, elements] of each step."""
    random = np.random.default_rng(0)
    common = random.standard_normal(elements)
    for _ in range(steps):
        yield common + random.standard_normal((ranks, elements))


def largest(v, k):
    """v where it is among the k largest magnitudes, else 0."""
    found = np.zeros_like(v)
    places = np.argpartition(-np.abs(v), k - 1)[:k]
    found[places] = v[places]
    return found


def lost_by_tree(steps, k):
    """By the published code; the number of ranks is a power of two."""
    residual, lost, summed = np.zeros_like(steps[0]), 0.0, 0.0
    for gradient in steps:
        due = residual + gradient
        own = np.array([largest(v, k) for v in due])
        held = list(own)
        while len(held) > 1:
            held = [largest(one + other, k) for one, other in zip(held[::2], held[1::2], strict=True)]
        residual = np.where((own != 0) & (held[0] != 0), 0, due)
        missing = due.sum(axis=0) - held[0] - residual.sum(axis=0)
        lost, summed = lost + np.abs(missing).sum(), summed + np.abs(held[0]).sum()
    return float(lost / summed)


def lost_by_scheme(steps, scheme):
    """By one of ours."""
    ranks, lost, summed = len(steps[0]), 0.0, 0.0
    local = LocalAllreduce(scheme, ranks)
    residual = np.zeros_like(steps[0])
    for gradient in steps:
        given = gradient.astype(np.float32)
        due = residual + given
        result = local(list(given), key="w")[0].astype(np.float64)
        residual = np.array([memory.residual("w") for memory in local.memory], np.float64)
        missing = due.sum(axis=0) - result - residual.sum(axis=0)
        lost, summed = lost + np.abs(missing).sum(), summed + np.abs(result).sum()
    return float(lost / summed)
