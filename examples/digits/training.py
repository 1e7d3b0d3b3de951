"""Train the demo's program in one place or another, and time its steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import sapwood as sw
from examples.digits import program as digits

__all__ = ["BATCH", "Place", "Training", "places", "step_seconds"]

BATCH = 128
HIDDEN = 512

Step = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the program runs: how things get there, and its two functions.

    ``mode`` is entered around the calls, ``settle`` waits for the work given.
    """

    name: str
    array: Callable[[Any], Any]
    generator: Callable[[int], Any]
    train_step: Step
    evaluate: Step
    mode: Callable[[], AbstractContextManager[Any]]
    settle: Callable[[], None]


def places(
    rt: sw.Runtime, train_step: Step, evaluate: Step
) -> tuple[Place, Place, Place]:
    """Return the device with replays, the device run eagerly, and plain NumPy.

    ``train_step`` and ``evaluate`` are the program's functions, graphed on ``rt``.
    """
    replayed = Place(
        name="replayed",
        array=rt.array,
        generator=rt.generator,
        train_step=train_step,
        evaluate=evaluate,
        mode=nullcontext,
        settle=rt.synchronize,
    )
    host = Place(
        name="plain NumPy",
        array=np.array,
        generator=lambda seed: np.random.Generator(np.random.Philox(seed)),
        train_step=digits.train_step,
        evaluate=digits.evaluate,
        mode=nullcontext,
        settle=lambda: None,
    )
    return replayed, replace(replayed, name="eager", mode=sw.disabled), host


def _nothing() -> None:
    pass


class Training:
    """One training of the program in one place: its weights, momenta and generator."""

    def __init__(self, place: Place, data: digits.Digits, seed: int) -> None:
        params = digits.fresh_params(HIDDEN, seed)
        momenta = digits.fresh_momenta(params)
        self.place, self.data, self.seed = place, data, seed
        self.params = {name: place.array(p) for name, p in params.items()}
        self.momenta = {name: place.array(m) for name, m in momenta.items()}
        self.held_images = place.array(data.held_images)
        self.rng = place.generator(seed)

    def run(
        self, first: int, end: int, stepped: Callable[[], None] = _nothing
    ) -> Iterator[tuple[float, float]]:
        """Train epochs ``[first, end)``; yield each one's last loss and accuracy.

        ``stepped`` is called after every step.
        """
        array = self.place.array
        for epoch in range(first, end):
            with self.place.mode():
                for images, labels in digits.batches(
                    self.data, BATCH, (self.seed, epoch)
                ):
                    loss = self.step(array(images), array(labels))
                    stepped()
            yield float(loss), self.accuracy()

    def step(self, images: Any, labels: Any) -> Any:
        """Take one step on arrays of the place; return the loss, there."""
        return self.place.train_step(
            self.params, self.momenta, images, labels, self.rng
        )

    def accuracy(self) -> float:
        """Return which part of the held-out digits is told right, 0 to 1."""
        with self.place.mode():
            told = self.place.evaluate(self.params, self.held_images)
        return float(np.mean(np.asarray(told) == self.data.held_digits))

    def state(self) -> dict[str, Any]:
        """Return all that changes while training, as host arrays by name."""
        nest = {"param": self.params, "momentum": self.momenta}
        found = {
            f"{kind} {name}": np.asarray(array)
            for kind, arrays in nest.items()
            for name, array in arrays.items()
        }
        return {**found, "generator": np.asarray(self.rng.state)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to what `state` returned, on a device."""
        for name, array in self.params.items():
            array[...] = state[f"param {name}"]
        for name, array in self.momenta.items():
            array[...] = state[f"momentum {name}"]
        self.rng.state[...] = state["generator"]

    def bits(self) -> bytes:
        """Return all weights and momenta as bytes on the host."""
        arrays = (*self.params.values(), *self.momenta.values())
        return b"".join(np.asarray(array).tobytes() for array in arrays)


def step_seconds(
    trainings: list[Training], *, rounds: int, steps: int
) -> list[list[float]]:
    """Return the time of steps of each training, in rounds that take turns.

    Each gets ``rounds * steps`` times in seconds, waited for one by one, on batches
    that are in place beforehand; a first round is not counted. Trains on.
    """
    images, labels = next(digits.batches(trainings[0].data, BATCH, (0, 0)))
    batch = [
        (training.place.array(images), training.place.array(labels))
        for training in trainings
    ]
    seconds: list[list[float]] = [[] for _ in trainings]
    for _ in range(rounds + 1):
        for training, arrays, own in zip(trainings, batch, seconds, strict=True):
            with training.place.mode():
                for _ in range(steps):
                    start = time.perf_counter()
                    training.step(*arrays)
                    training.place.settle()
                    own.append(time.perf_counter() - start)
    return [own[steps:] for own in seconds]
