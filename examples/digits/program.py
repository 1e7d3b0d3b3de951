"""The demo's program: a perceptron for handwritten digits, in NumPy functions.

`train_step` and `evaluate` know no device: given host arrays they are plain NumPy,
given device arrays they run there. Everything is float32 but the predictions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = [
    "Digits",
    "batches",
    "evaluate",
    "fresh_momenta",
    "fresh_params",
    "load_digits",
    "train_step",
]

KEEP = 0.8
RATE = 0.05
MOMENTUM = 0.9

Arrays = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Digits:
    """1,797 images of 8 x 8 pixels in [0, 1], and their digits, split 80/20.

    ``images`` (n, 64) and ``labels`` (n, 10; one-hot) train, float32;
    ``held_images`` (m, 64) and ``held_digits`` (m; integers) are held out.
    """

    images: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]
    held_images: np.ndarray[Any, Any]
    held_digits: np.ndarray[Any, Any]


def load_digits(seed: int) -> Digits:
    """Return scikit-learn's digits, shuffled and split by ``seed``.

    Raises ImportError without scikit-learn.
    """
    from sklearn.datasets import load_digits as load

    source = load()
    order = np.random.default_rng(seed).permutation(len(source.target))
    images = (source.data[order] / 16).astype(np.float32)
    digits = source.target[order]
    labels = np.eye(10, dtype=np.float32)[digits]
    held = len(order) // 5
    return Digits(images[held:], labels[held:], images[:held], digits[:held])


def batches(
    digits: Digits, size: int, epoch_seed: tuple[int, int]
) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Yield images and labels in whole batches of ``size``, in a random order."""
    order = np.random.default_rng(epoch_seed).permutation(len(digits.images))
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        yield digits.images[chosen], digits.labels[chosen]


def fresh_params(hidden: int, seed: int) -> Arrays:
    """Return weights and biases of 64 -> ``hidden`` -> 10 on the host."""
    rng = np.random.default_rng(seed)

    def weights(rows: int, columns: int) -> np.ndarray[Any, Any]:
        drawn = rng.standard_normal((rows, columns), dtype=np.float32)
        return drawn * np.float32((2 / rows) ** 0.5)

    return {
        "w1": weights(64, hidden),
        "b1": np.zeros(hidden, np.float32),
        "w2": weights(hidden, 10),
        "b2": np.zeros(10, np.float32),
    }


def fresh_momenta(params: Arrays) -> Arrays:
    """Return zeros on the host, shaped as ``params``."""
    return {name: np.zeros(p.shape, np.float32) for name, p in params.items()}


def train_step(params: Arrays, momenta: Arrays, x: Any, labels: Any, rng: Any) -> Any:
    """Take one step of gradient descent, in place; return the mean cross-entropy.

    ``x`` (batch, 64), ``labels`` (batch, 10; one-hot), ``rng`` draws the dropout.
    """
    hidden = np.maximum(x @ params["w1"] + params["b1"], 0)
    kept = (rng.random(hidden.shape, dtype=np.float32) < KEEP) / np.float32(KEEP)
    dropped = hidden * kept
    scores = dropped @ params["w2"] + params["b2"]
    scores -= scores.max(axis=1, keepdims=True)
    powers = np.exp(scores)
    total = powers.sum(axis=1, keepdims=True)
    loss = (labels * (np.log(total) - scores)).sum() / len(x)

    error = (powers / total - labels) / len(x)
    back = (error @ params["w2"].T) * kept * (hidden > 0)
    _descend(params["w2"], momenta["w2"], dropped.T @ error)
    _descend(params["b2"], momenta["b2"], error.sum(axis=0))
    _descend(params["w1"], momenta["w1"], x.T @ back)
    _descend(params["b1"], momenta["b1"], back.sum(axis=0))
    return loss


def evaluate(params: Arrays, x: Any) -> Any:
    """Return the digit that each row of ``x`` (n, 64) looks most like."""
    hidden = np.maximum(x @ params["w1"] + params["b1"], 0)
    return np.argmax(hidden @ params["w2"] + params["b2"], axis=1)


def _descend(param: Any, momentum: Any, gradient: Any) -> None:
    momentum *= MOMENTUM
    momentum += gradient
    param -= RATE * momentum
