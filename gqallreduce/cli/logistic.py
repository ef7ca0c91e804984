"""Logistic regression with an L2 term, for bench/mem_sgd.py: data, gradients of single samples, losses."""

from dataclasses import dataclass

import numpy as np


@dataclass
class Logistic:
    """f(x) = mean over samples of log(1 + exp(-label * features . x)) + |x|^2 / (2 n).

    features
        float32[n, d]: an array, or a sparse matrix in rows.
    labels
        float32[n], -1 or 1.
    k
        how many values of a gradient are sent, unless stated.
    delay
        in units of d / k.
    epochs
        of all ranks together, unless stated.
    whole
        are gradients those of all samples of a rank, and not of one?
    """

    features: object
    labels: np.ndarray
    k: int
    delay: float
    epochs: float
    whole: bool = False

    def __len__(self):
        return len(self.labels)

    def loss(self, x) -> float:
        margins = self.labels * (self.features @ x.astype(np.float32)).astype(np.float64)
        return float(np.logaddexp(0, -margins).mean() + x @ x / (2 * len(self)))

    def gradient(self, x, sample: int, out) -> None:
        """out := the gradient of the sample's term."""
        np.multiply(x, np.float32(1 / len(self)), out=out)
        row, where = self._row(sample)
        label = self.labels[sample]
        with np.errstate(over="ignore"):
            factor = -label / (1 + np.exp(np.float64(label * (row @ x[where]))))
        out[where] += np.float32(factor) * row

    def steps(self, epochs: float, ranks: int) -> int:
        """In which all ranks together see the samples so often."""
        return round(epochs if self.whole else epochs * len(self) / ranks)

    def gradient_of_part(self, x, rank: int, ranks: int, out) -> None:
        """out := the gradient of a rank's samples, of which the mean over ranks is that of all. For dense features."""
        mine = slice(*(len(self) * each // ranks for each in (rank, rank + 1)))
        features, labels = self.features[mine], self.labels[mine]
        factors = -labels / (1 + np.exp(labels * (features @ x)))
        np.multiply(factors @ features, np.float32(ranks / len(self)), out=out)
        out += x * np.float32(1 / len(self))

    def _row(self, sample: int):
        """(values, where they are)."""
        if isinstance(self.features, np.ndarray):
            return self.features[sample], slice(None)
        begin, end = self.features.indptr[sample : sample + 2]
        return self.features.data[begin:end], self.features.indices[begin:end]

    def least(self) -> float:
        """The least loss, by scikit-learn."""
        from sklearn.linear_model import LogisticRegression

        solver = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-8, max_iter=2000)
        return self.loss(solver.fit(self.features, self.labels).coef_[0].astype(np.float64))


def _labels(features, draws):
    """Of a random plane through the origin, one of twenty turned round."""
    plane = draws.standard_normal(features.shape[1]).astype(np.float32)
    return (np.sign(features @ plane) * np.where(draws.random(features.shape[0]) < 0.05, -1, 1)).astype(np.float32)


def _dense():
    """10 000 samples of 2000 features with sizes that fall as a power, each of norm 1: epsilon has 400 000 of 2000."""
    draws = np.random.default_rng(1)
    features = draws.standard_normal((10_000, 2000), np.float32)
    features *= np.arange(1, 2001, dtype=np.float32) ** np.float32(-0.5)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    return Logistic(features, _labels(features, draws), 1, 1.0, 3)


def _sparse():
    """20 000 samples of 47 236 features, 70 of them not zero, some in many samples; norm 1. RCV1 has 677 399."""
    from scipy.sparse import csr_matrix

    draws = np.random.default_rng(2)
    n, d, entries = 20_000, 47_236, 70
    places = (d ** draws.random((n, entries))).astype(np.int32) - 1  # as often as 1 / (place + 1)
    values = np.abs(draws.standard_normal((n, entries), np.float32))
    features = csr_matrix((values.reshape(-1), (np.repeat(np.arange(n), entries), places.reshape(-1))), (n, d))
    norms = np.sqrt(np.asarray(features.multiply(features).sum(1))).reshape(-1)
    features.data /= np.repeat(norms, np.diff(features.indptr))
    return Logistic(features, _labels(features, draws), 10, 10.0, 1)


def _digits():
    """scikit-learn's 1797 images of 64 pixels, each of norm 1: is the digit odd?"""
    from sklearn.datasets import load_digits

    found = load_digits()
    features = found.data.astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    return Logistic(features, (2 * (found.target % 2) - 1).astype(np.float32), 1, 1.0, 10)


def _sorted():
    """The digits, all that are even before all that are odd: ranks have unlike samples, and gradients are of all."""
    digits = _digits()
    order = np.argsort(digits.labels, kind="stable")
    return Logistic(digits.features[order], digits.labels[order], 1, 1.0, 1000, whole=True)


DATA = {"dense": _dense, "sparse": _sparse, "digits": _digits, "sorted": _sorted}


def load(name: str) -> Logistic:
    return DATA[name]()
