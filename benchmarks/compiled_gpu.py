"""Compiled models, side by side: without graphs, torch's trees, `backend="sapwood"`.

All columns run the same code of Inductor's, deterministic, so that all are to be equal
bit for bit. Host and total are microseconds of a call, medians of interleaved rounds;
*empty* is the same compiled call whose partitions give what they gave once, at no work:
what remains is Dynamo's, autograd's and the caller's own. *Memory* is what a column has
added to what the device has in use, *first* the seconds until its third call is over.

Run it by path for a table; ``--out`` keeps the figures as compiled.json, by default in
$OUT.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import models_gpu
import torch
from torch import nn
from torch.utils import _pytree
from torch_gpu import about
from torch_limit import Figures, at_most, tried

from sapwood.integrations.torch import backend
from sapwood.integrations.torch.partition import Partition

ROUNDS: Final = 9
COLUMNS: Final = ("no graphs", "trees", "ours", "empty")
CHECKED: Final = 6
"""How many calls are compared with those without graphs."""

Compile = Callable[..., Any]


def mlp_inference(compiled: Compile) -> Callable[[], Any]:
    """Run eight layers, without gradients."""
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))).cuda()
    call, x = compiled(model), torch.randn(8, 256, device="cuda")

    def run() -> Any:
        with torch.no_grad():
            return call(x)

    return run


def trained(model: Any, compiled: Compile, x: Any, y: Any) -> Callable[[], Any]:
    """Return a step of training whose optimizer is eager."""
    loss_of = compiled(lambda x, y: nn.functional.cross_entropy(model(x), y))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)

    def step() -> Any:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def mlp_training(compiled: Compile) -> Callable[[], Any]:
    """Train eight layers."""
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))).cuda()
    x, y = torch.randn(8, 256, device="cuda"), torch.arange(8, device="cuda")
    return trained(model, compiled, x, y)


def resnet18_training(compiled: Compile) -> Callable[[], Any]:
    """Train on small images."""
    models = __import__("torchvision.models", fromlist=["resnet18"])
    x, y = torch.randn(8, 3, 64, 64, device="cuda"), torch.arange(8, device="cuda")
    return trained(models.resnet18(weights=None).cuda(), compiled, x, y)


def of_models(name: str) -> Callable[[Compile], Callable[[], Any]]:
    """Return what makes one of the models of `models_gpu`."""

    def make(compiled: Compile) -> Callable[[], Any]:
        row = models_gpu.ROWS[name]()
        call = compiled(row.fn)

        def run() -> Any:
            with torch.no_grad():
                return call(*row.args)

        return run

    return make


ROWS: Final[dict[str, Callable[[Compile], Callable[[], Any]]]] = {
    "mlp inference": mlp_inference,
    "mlp training": mlp_training,
    "resnet18 training": resnet18_training,
    **{name: of_models(name) for name in ("gpt2", "llama_decode", "vit", "resnet18")},
}


def empty(_: Any, model: Any, *__: Any, **___: Any) -> Callable[[list[Any]], Any]:
    """Return a partition that does its work once, and gives the same again."""
    given: list[Any] = []

    def run(inputs: list[Any]) -> Any:
        if len(given) < CHECKED:
            found = model(inputs)
            given.append([x.detach() if torch.is_tensor(x) else x for x in found])
            return found
        inputs.clear()
        return tuple(x.detach() if torch.is_tensor(x) else x for x in given[0])

    return run


def plain(
    _: Any,
    model: Any,
    static_input_idxs: Any = (),
    *,
    mutated_input_idxs: Any = (),
    **__: Any,
) -> Callable[[list[Any]], Any]:
    """Return a partition that runs as it is compiled."""
    static, mutated = static_input_idxs, mutated_input_idxs
    return Partition(model, "plain", static=static, mutated=mutated).run


@contextmanager
def wrapping(wrap: Any) -> Iterator[None]:
    """Have what is compiled wrapped otherwise."""
    before, backend._wrapped = backend._wrapped, wrap or backend._wrapped  # noqa: SLF001
    try:
        yield
    finally:
        backend._wrapped = before  # noqa: SLF001


def column(name: str, row: Callable[[Compile], Callable[[], Any]]) -> Figures:
    """Compile a row for one column, and run it until it is warm."""
    torch.manual_seed(3)
    wraps = {"no graphs": plain, "empty": empty}
    options = {"deterministic": True, "triton.cudagraphs": True}
    how: dict[str, Any] = {"options": options}
    if name != "trees":
        # One of its own: what was compiled for another column would run in this one.
        how["backend"] = partial(backend.backend)
    before, began = in_use(), time.perf_counter()
    with wrapping(wraps.get(name)):
        run = row(lambda fn: torch.compile(fn, **how))
        seen = []
        for i in range(12):
            torch.compiler.cudagraph_mark_step_begin()
            seen.append(leaves(run()))
            if i == 2:  # warmed up, recorded, replayed
                torch.cuda.synchronize()
                first = time.perf_counter() - began
    return {"run": run, "seen": seen, "first": first, "memory": in_use() - before}


def leaves(found: Any) -> list[Any]:
    """Return copies of the tensors of a result."""
    tensors = _pytree.tree_leaves(
        found if isinstance(found, (tuple, list, torch.Tensor)) else vars(found)
    )
    return [each.detach().clone() for each in tensors if torch.is_tensor(each)]


def in_use() -> int:
    """Return how many MiB of the device are in use."""
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return (total - free) >> 20


def measured(row: Callable[[Compile], Callable[[], Any]], seconds: int) -> Figures:
    """Return the columns of a row."""
    torch.compiler.reset()  # once: it would drop what is compiled for other columns
    made: dict[str, Figures] = {}
    for name in COLUMNS:
        with at_most(seconds):
            made[name] = column(name, row)
    plain = made["no graphs"]["seen"]
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in COLUMNS}
    count = 40
    for _ in range(ROUNDS):
        for name in COLUMNS:
            run = made[name]["run"]
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(count):
                torch.compiler.cudagraph_mark_step_begin()
                run()
            host = time.perf_counter() - start
            torch.cuda.synchronize()
            total = time.perf_counter() - start
            samples[name].append((host / count * 1e6, total / count * 1e6))
    return {
        name: {
            "host": median(host for host, _ in samples[name]),
            "total": median(total for _, total in samples[name]),
            "spread": max(t for _, t in samples[name])
            - min(t for _, t in samples[name]),
            "memory": made[name]["memory"],
            "first": made[name]["first"],
            "equal": all(
                len(a) == len(b) and all(map(torch.equal, a, b))
                for a, b in zip(made[name]["seen"], plain, strict=True)
            ),
        }
        for name in COLUMNS
    }


def main() -> None:
    """Measure, print a table, and keep the figures."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", nargs="+", choices=[*ROWS], default=[*ROWS])
    arguments.add_argument("--compile", type=int, default=120, metavar="SECONDS")
    arguments.add_argument("--out", default=os.environ.get("OUT", ""))
    options = arguments.parse_args()
    warnings.simplefilter("ignore")
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.deterministic = True
    kept: Figures = {"about": about(), "rows": {}}
    print(f"{'host / total us, MiB, s':20}", *[f"{each:>26}" for each in COLUMNS])
    for name in options.rows:
        found = tried(lambda name=name: measured(ROWS[name], options.compile))
        kept["rows"][name] = found
        cells = [
            f"{each['host']:,.0f}/{each['total']:,.0f} {each['memory']} "
            f"{each['first']:.1f} {'=' if each['equal'] else 'DIFFERS'}"
            if isinstance(each, dict)
            else str(each)[:26]
            for each in found.values()
        ]
        print(f"{name:20}", *[f"{each:>26}" for each in cells], flush=True)
        if options.out:
            (Path(options.out) / "compiled.json").write_text(json.dumps(kept))


if __name__ == "__main__":
    main()
