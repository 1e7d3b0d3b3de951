"""Train on real handwritten digits, replayed, and compare.

The promise: the held-out accuracy reaches 0.95, most steps are replayed, and weights
and momenta are bit for bit those of the same program run eagerly on the device, and in
plain NumPy.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import sapwood as sw
from examples.digits import program as digits
from examples.digits.second import Second, digest, go_on, process_seconds, save_state
from examples.digits.training import BATCH, Training, places, step_seconds
from sapwood.driver.emulated import Emulated
from sapwood.driver.layers import Recorded
from sapwood.errors import MisuseError

__all__ = ["Figures", "demo"]

ENOUGH = 0.95


@dataclass(frozen=True, slots=True)
class Figures:
    """What the demo found; times per step are medians in milliseconds.

    ``first_replay_s`` is the time from the start of this process to its first replay,
    but for that of loading the digits, and scikit-learn with them. What comes after
    ``second_`` was found in a second process, which goes on for one epoch with the
    recordings of this one.
    """

    device: str
    emulated: bool
    epochs: int
    seed: int
    loss: float
    accuracy: float
    identical_to_eager: bool
    identical_to_numpy: bool
    warmups: int
    recordings: int
    replays: int
    driver_calls_per_replay: float
    step_ms_replayed: float
    step_ms_eager: float
    step_ms_numpy: float
    pages_used: int
    pages_in_ranges: int
    first_replay_s: float
    second_first_replay_s: float
    second_restored: int
    second_recordings: int
    second_identical: bool
    seconds: float

    def broken(self) -> list[str]:
        """Return the promises that were not kept, as text."""
        promises = {
            f"held-out accuracy is at least {ENOUGH}": self.accuracy >= ENOUGH,
            "most steps are replayed": self.replays > self.recordings + self.warmups,
            "bits are those of the eager program": self.identical_to_eager,
        }
        if self.emulated:
            promises |= self._on_the_same_processor()
        return [promise for promise, kept in promises.items() if not kept]

    def _on_the_same_processor(self) -> dict[str, bool]:
        """Return what a GPU does not promise: it adds up in another order than NumPy.

        Its recordings stay in their process in this version.
        """
        return {
            "bits are those of plain NumPy": self.identical_to_numpy,
            "a second process restores both recordings": self.second_restored >= 2,
            "a second process records nothing": self.second_recordings == 0,
            "a second process ends with the same bits": self.second_identical,
        }


def demo(*, epochs: int, seed: int, as_json: bool) -> int:
    """Run the demo and print its figures; return 1 where a promise is broken.

    Raises `MisuseError` where scikit-learn, which ships the digits, is missing.
    """
    began = time.perf_counter()
    try:
        data = digits.load_digits(seed)
    except ImportError as error:
        raise MisuseError(
            "the demo needs scikit-learn, which ships the digits: pip install "
            "scikit-learn"
        ) from error
    loading = time.perf_counter() - began
    console = Console()
    with (
        TemporaryDirectory(prefix="sapwood-demo-") as folder,
        sw.Runtime(store=Path(folder) / "store") as rt,
        Progress(console=Console(stderr=True), disable=as_json) as progress,
    ):
        ready = _FirstReplay(rt, loading)
        figures = _measure(ready, data, epochs, seed, progress, Path(folder))
    if as_json:
        print(json.dumps(dataclasses.asdict(figures)))
    else:
        console.print(_table(figures))
    broken = figures.broken()
    for promise in broken:
        Console(stderr=True).print(f"[red]Not kept:[/] {promise}.")
    return 1 if broken else 0


def _measure(
    ready: _FirstReplay,
    data: digits.Digits,
    epochs: int,
    seed: int,
    progress: Progress,
    folder: Path,
) -> Figures:
    start, rt = time.perf_counter(), ready.rt
    where = places(rt, rt.graph(digits.train_step), rt.graph(digits.evaluate))
    replayed, eager, plain = trainings = [Training(at, data, seed) for at in where]
    results = [_train(training, epochs, progress, ready) for training in trainings]
    stats, memory, bits = rt.stats(), rt.memory_stats(), replayed.bits()
    identical = bits == eager.bits(), bits == plain.bits()
    second, same = _second_process(replayed, epochs, folder)
    times = step_seconds(trainings, rounds=15, steps=20)
    return Figures(
        device=rt.abilities.name,
        emulated=rt.abilities.kind == "emulated",
        epochs=epochs,
        seed=seed,
        loss=results[0][0],
        accuracy=results[0][1],
        identical_to_eager=identical[0],
        identical_to_numpy=identical[1],
        warmups=stats.warmups,
        recordings=stats.recordings,
        replays=stats.replays,
        driver_calls_per_replay=_calls_per_replay(data, seed),
        **dict(zip(_STEPS, (1e3 * median(each) for each in times), strict=True)),
        pages_used=memory["pages.mapped"],
        pages_in_ranges=memory["ranges.pages"],
        first_replay_s=ready.seconds,
        second_first_replay_s=second.first_replay_s,
        second_restored=second.restored,
        second_recordings=second.recordings,
        second_identical=same,
        seconds=time.perf_counter() - start,
    )


_STEPS = ("step_ms_replayed", "step_ms_eager", "step_ms_numpy")


class _FirstReplay:
    """Notes, after every step, how old the process was at the first replay.

    The ``loading`` of data is left out, in seconds: no recording saves it.
    """

    def __init__(self, rt: sw.Runtime, loading: float) -> None:
        self.rt, self.loading, self.seconds = rt, loading, 0.0

    def __call__(self) -> None:
        if not self.seconds and self.rt.stats().replays:
            self.rt.synchronize()
            self.seconds = process_seconds() - self.loading


def _second_process(
    training: Training, epoch: int, folder: Path
) -> tuple[Second, bool]:
    """Train one more epoch here and in another process; return whether they agree."""
    state = folder / "state.npz"
    save_state(state, training, epoch)
    for _ in training.run(epoch, epoch + 1):
        pass
    second = go_on(state, folder / "store")
    return second, second.bits == digest(training)


def _train(
    training: Training, epochs: int, progress: Progress, stepped: Callable[[], None]
) -> tuple[float, float]:
    """Train to the end; return the last loss and accuracy."""
    name = f"{training.place.name:12}"
    task = progress.add_task(name, total=epochs)
    loss = accuracy = float("nan")
    for loss, accuracy in training.run(0, epochs, stepped):
        told = f"{name} loss {loss:.3f} accuracy {accuracy:.3f}"
        progress.update(task, advance=1, description=told)
    return loss, accuracy


def _calls_per_replay(data: digits.Digits, seed: int) -> float:
    """Return the driver calls of a step on a batch that is new to the device.

    Counted on a device of its own: counting takes time, which the others are spared.
    """
    driver = Recorded(Emulated())
    with sw.Runtime(driver) as rt:
        train_step, evaluate = rt.graph(digits.train_step), rt.graph(digits.evaluate)
        training = Training(places(rt, train_step, evaluate)[0], data, seed)
        calls = replays = 0
        for images, labels in digits.batches(data, BATCH, (seed, 0)):
            batch = rt.array(images), rt.array(labels)
            before, replayed = driver.counts(), train_step.stats().replays
            training.step(*batch)
            if train_step.stats().replays > replayed:
                replays += 1
                calls += sum(driver.counts().values()) - sum(before.values())
    return calls / max(replays, 1)


def _table(figures: Figures) -> Table:
    table = Table(
        title="Handwritten digits, trained by replay",
        caption="* without loading the data, and scikit-learn with it",
        show_header=False,
    )
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in (*_first(figures), *_second(figures)):
        table.add_row(name, value)
    return table


_AGREED = {True: "identical, bit for bit", False: "DIFFERENT"}
_ORDERED = "other bits: a GPU adds up in another order"


def _first(figures: Figures) -> Iterator[tuple[str, str]]:
    faster = figures.step_ms_eager / figures.step_ms_replayed
    against = figures.step_ms_replayed / figures.step_ms_numpy
    yield "device", figures.device
    yield "held-out accuracy", f"{figures.accuracy:.3f}"
    yield "weights against the eager program", _AGREED[figures.identical_to_eager]
    alike = figures.identical_to_numpy or figures.emulated
    said = _AGREED[figures.identical_to_numpy] if alike else _ORDERED
    yield "weights against plain NumPy", said
    yield "warm-ups", str(figures.warmups)
    yield "recordings", str(figures.recordings)
    yield "replays", str(figures.replays)
    yield "driver calls per replay", f"{figures.driver_calls_per_replay:.1f}"
    yield (
        "time per step, replayed",
        f"{figures.step_ms_replayed:.3f} ms ({faster:.1f} x faster than eager)",
    )
    yield "time per step, eager", f"{figures.step_ms_eager:.3f} ms"
    yield (
        "time per step, plain NumPy",
        f"{figures.step_ms_numpy:.3f} ms (replayed takes {against:.2f} x that)",
    )
    yield "pages used", str(figures.pages_used)
    yield "pages in all ranges together", str(figures.pages_in_ranges)
    yield "process start to first replay *", f"{figures.first_replay_s:.2f} s"


def _second(figures: Figures) -> Iterator[tuple[str, str]]:
    yield "the same, in a second process", f"{figures.second_first_replay_s:.2f} s"
    yield (
        "recordings of the second process",
        f"{figures.second_restored} restored, {figures.second_recordings} made",
    )
    yield "weights after one more epoch in each", _AGREED[figures.second_identical]
