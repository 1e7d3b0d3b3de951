"""Compiled models, side by side: without graphs, torch's trees, `backend="sapwood"`.

All columns run the same code of Inductor's, deterministic, so that all are to be equal
bit for bit. Host and total are microseconds of a call, medians of interleaved rounds.
Two more columns show what nobody can save. *Empty* is the same compiled call whose
partitions give what they gave once, at no work: what remains is Dynamo's, autograd's
and the caller's own. *Launch* has each partition launch a graph besides, of inputs of
its own, and look at nothing. *Memory* is what a column has added to what torch and
Sapwood have of the device, *first* the seconds until its third call is over.

Run it by path for a table; ``--out`` keeps the figures as compiled.json, by default in
$OUT. Code that is in torch's cache is compiled quickly: run each row beforehand, all at
once, with ``--rounds 0``, and measure then. Each of those processes knows best what
memory its row takes, which nothing before it has left to it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
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
from sapwood.integrations.torch.storages import tensor_over

ROUNDS: Final = 15
COLUMNS: Final = ("no graphs", "trees", "ours", "empty", "launch")
CHECKED: Final = 6
"""How many calls are compared with those without graphs."""

Compile = Callable[..., Any]
Make = Callable[[Compile], Callable[[], Any]]


def mlp_inference(compiled: Compile) -> Callable[[], Any]:
    """Run eight layers, without gradients."""
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))).cuda()
    return inferred(compiled(model), torch.randn(8, 256, device="cuda"))


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


def of_torchvision(name: str, batch: int, side: int, *, trains: bool) -> Make:
    """Return what makes a classifier of torchvision's."""

    def make(compiled: Compile) -> Callable[[], Any]:
        model = getattr(import_module("torchvision.models"), name)(weights=None).cuda()
        x = torch.randn(batch, 3, side, side, device="cuda")
        if trains:
            return trained(model, compiled, x, torch.arange(batch, device="cuda"))
        return inferred(compiled(model.eval()), x)

    return make


def inferred(call: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """Return a call without gradients."""

    def run() -> Any:
        with torch.no_grad():
            return call(*args)

    return run


def llama_training(compiled: Compile) -> Callable[[], Any]:
    """Train a Llama; its optimizer is eager."""
    config = models_gpu.llama_config()
    model = models_gpu.of("transformers", "LlamaForCausalLM", "LlamaConfig", config)
    words = models_gpu.words()
    scores = compiled(lambda x: model(input_ids=x, use_cache=False).logits)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)

    def step() -> Any:
        optimizer.zero_grad()
        found = scores(words)[:, :-1].flatten(0, 1)
        loss = nn.functional.cross_entropy(found, words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


class Unet(nn.Module):
    """Two scales down, two up, and what was seen on the way."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        wide = width * 2
        self.first, self.down = block(4, width), nn.Conv2d(width, wide, 3, 2, 1)
        self.deep, self.time = block(wide, wide), nn.Linear(32, wide)
        self.up, self.last = nn.ConvTranspose2d(wide, width, 2, 2), block(wide, width)
        self.out = nn.Conv2d(width, 4, 1)

    def forward(self, x: Any, at: Any) -> Any:
        """Return the noise in an image at a time."""
        turns = at[:, None] * torch.arange(16, device=x.device)
        seen = self.first(x)
        deep = (
            self.down(seen)
            + self.time(torch.cat([turns.sin(), turns.cos()], -1))[..., None, None]
        )
        found = self.last(torch.cat([self.up(self.deep(deep)), seen], 1))
        return self.out(found)


def block(given: int, width: int) -> nn.Module:
    """Return what a scale is looked at with."""
    parts = nn.Conv2d(given, width, 3, padding=1), nn.GroupNorm(8, width), nn.SiLU()
    return nn.Sequential(*parts, nn.Conv2d(width, width, 3, padding=1), nn.SiLU())


def unet(compiled: Compile) -> Callable[[], Any]:
    """Take noise from images."""
    x, at = torch.randn(2, 4, 32, 32, device="cuda"), torch.rand(2, device="cuda")
    return inferred(compiled(Unet().cuda()), x, at)


class Experts(nn.Module):
    """The two best of eight experts for each word, weighed; all are asked."""

    def __init__(self, width: int = 256, count: int = 8) -> None:
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.up = nn.Parameter(torch.randn(count, width, 2 * width) / 16)
        self.down = nn.Parameter(torch.randn(count, 2 * width, width) / 16)

    def forward(self, x: Any) -> Any:
        """Return what the experts say of words."""
        best = self.gate(x).topk(2)
        weights = torch.zeros_like(self.gate(x))
        weights = weights.scatter(-1, best.indices, best.values.softmax(-1))
        said = torch.einsum("nw,ewh->enh", x, self.up).relu()
        return x + torch.einsum("enh,ehw,ne->nw", said, self.down, weights)


def moe_training(compiled: Compile) -> Callable[[], Any]:
    """Train four layers of experts."""
    model = nn.Sequential(*(Experts() for _ in range(4))).cuda()
    x, y = torch.randn(64, 256, device="cuda"), torch.arange(64, device="cuda")
    return trained(model, compiled, x, y)


class Dlrm(nn.Module):
    """Eight tables, and how they go together (Naumov et al., arXiv:1906.00091)."""

    def __init__(self, words: int = 5000, width: int = 32) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(words, width) for _ in range(8))
        self.bottom = nn.Sequential(
            nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, width)
        )
        self.top = nn.Sequential(
            nn.Linear(36 + width, 128), nn.ReLU(), nn.Linear(128, 2)
        )
        rows, columns = torch.tril_indices(9, 9, -1)
        self.register_buffer("lower", rows * 9 + columns)

    def forward(self, x: Any) -> Any:
        """Return the scores of two answers; the first 13 columns are figures."""
        figures = self.bottom(x[:, :13])
        names = (x[:, 13:].abs() * 1000).long() % 5000
        found = [table(names[:, i]) for i, table in enumerate(self.tables)]
        all_ = torch.stack([figures, *found], 1)
        pairs = (all_ @ all_.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([pairs[:, self.lower], figures], 1))


def dlrm_training(compiled: Compile) -> Callable[[], Any]:
    """Train tables whose gradients are dense."""
    x, y = torch.randn(256, 21, device="cuda"), torch.arange(256, device="cuda") % 2
    return trained(Dlrm().cuda(), compiled, x, y)


def eight_sizes(compiled: Compile) -> Callable[[], Any]:
    """Run eight layers of 2,048 at eight batch sizes, the smallest first."""
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8))).cuda()
    call = compiled(model, dynamic=False)
    given = [torch.randn(1 << (i + 4), 2048, device="cuda") for i in range(8)]

    def run() -> Any:
        with torch.no_grad():
            # The last alone is kept: each other ends before the next is called.
            for x in given:
                found = call(x)
            return found

    return run


def of_models(name: str) -> Make:
    """Return what makes one of the models of `models_gpu`."""

    def make(compiled: Compile) -> Callable[[], Any]:
        row = models_gpu.ROWS[name]()
        return inferred(compiled(row.fn), *row.args)

    return make


ROWS: Final[dict[str, Make]] = {
    "mlp inference": mlp_inference,
    "mlp training": mlp_training,
    "resnet18 training": of_torchvision("resnet18", 8, 64, trains=True),
    "resnet50": of_torchvision("resnet50", 1, 224, trains=False),
    "resnet50 training": of_torchvision("resnet50", 8, 64, trains=True),
    "vit_b_16": of_torchvision("vit_b_16", 1, 224, trains=False),
    "vit_b_16 training": of_torchvision("vit_b_16", 4, 224, trains=True),
    "llama training": llama_training,
    "unet": unet,
    "moe training": moe_training,
    "dlrm training": dlrm_training,
    "eight sizes": eight_sizes,
    **{
        name: of_models(name)
        for name in ("gpt2", "llama", "llama_decode", "vit", "resnet18")
    },
}


def again(values: Sequence[Any]) -> list[Any]:
    """Return values; tensors of them as new ones over the same memory."""
    return [x.data if torch.is_tensor(x) else x for x in values]


def aside(value: Any) -> Any:
    """Return a value; of a tensor, what lies likewise in a copy of all its memory."""
    if not torch.is_tensor(value):
        return value
    look = tuple(value.shape), value.stride(), value.dtype
    copy = value.untyped_storage().clone()
    return tensor_over(*look, copy, value.storage_offset())


def empty(*args: Any, launches: bool = False, **more: Any) -> Callable[..., Any]:
    """Return a partition that does its work a few times, and gives the last again.

    If it ``launches``, a graph of that work, of copies of its inputs, runs each time.
    """
    work, given, count = plain(*args, **more), [], 0
    graph = torch.cuda.CUDAGraph()

    def run(inputs: list[Any]) -> Any:
        nonlocal given, count
        if count < CHECKED:
            count += 1
            if launches and count == CHECKED:
                kept = [*map(aside, inputs)]
                with torch.cuda.graph(graph):
                    work([*kept])
                run.kept = kept  # type: ignore[attr-defined]
            found = work(inputs)
            given = again(found)
            return found
        inputs.clear()
        if launches:
            graph.replay()
        return again(given)

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


def column(name: str, row: Make) -> Figures:
    """Compile a row for one column, and run it until it is warm."""
    torch.manual_seed(3)
    wraps = {
        "no graphs": plain,
        "empty": empty,
        "launch": partial(empty, launches=True),
    }
    options = {"deterministic": True, "triton.cudagraphs": True}
    how: dict[str, Any] = {"options": options}
    if name != "trees":
        # One of its own: what was compiled for another column would run in this one.
        how["backend"] = partial(backend.backend)
    before, began = in_use(), time.perf_counter()
    made = backend._runtime(0).stats().recordings  # noqa: SLF001
    with wrapping(wraps.get(name)):
        run = row(lambda fn, **more: torch.compile(fn, **how, **more))
        seen = []
        for i in range(12):
            torch.compiler.cudagraph_mark_step_begin()
            seen.append(leaves(run()))
            if i == 2:  # warmed up, recorded, replayed
                torch.cuda.synchronize()
                first = time.perf_counter() - began
    made = backend._runtime(0).stats().recordings - made  # noqa: SLF001
    return {
        "run": run,
        "seen": seen,
        "first": first,
        "memory": in_use() - before,
        "recordings": made,
    }


def leaves(found: Any) -> list[Any]:
    """Return copies of the tensors of a result."""
    tensors = _pytree.tree_leaves(
        found if isinstance(found, (tuple, list, torch.Tensor)) else vars(found)
    )
    return [each.detach().clone() for each in tensors if torch.is_tensor(each)]


def in_use() -> int:
    """Return how many MiB of the device torch has, and Sapwood.

    Torch counts what our recordings lend to its pools as its own.
    """
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    picture = backend._runtime(0).memory_snapshot()  # noqa: SLF001
    page, ours = picture["page"], picture["heap"]["pages"]
    ours += sum(each["pages"] for each in picture["extents"])
    lent = {
        mapping["address"] // page + k
        for range_ in picture["ranges"]
        for mapping in range_["mappings"]
        for k in range(mapping["pages"])
    }
    theirs = (
        segment["total_size"]
        for segment in torch.cuda.memory_snapshot()
        if segment["address"] // page not in lent
    )
    return int(sum(theirs) + ours * page) >> 20


def measured(row: Make, seconds: int, rounds: int) -> Figures:
    """Return the columns of a row."""
    torch.compiler.reset()  # once: it would drop what is compiled for other columns
    for _ in range(3):  # what the row before has left goes when its cycles do
        in_use()
    made: dict[str, Figures] = {}
    for name in COLUMNS:
        with at_most(seconds):
            made[name] = column(name, row)
    plain = made["no graphs"]["seen"]
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in COLUMNS}
    count = 40
    gc.disable()  # what it takes depends on what other columns have made
    for _ in range(rounds):
        for name in COLUMNS:
            run = made[name]["run"]
            torch.cuda.synchronize()
            gc.collect()
            start = time.perf_counter()
            for _ in range(count):
                torch.compiler.cudagraph_mark_step_begin()
                run()
            host = time.perf_counter() - start
            torch.cuda.synchronize()
            total = time.perf_counter() - start
            samples[name].append((host / count * 1e6, total / count * 1e6))
    gc.enable()
    return {
        name: {
            **times(samples[name]),
            "memory": made[name]["memory"],
            "first": made[name]["first"],
            "recordings": made[name]["recordings"],
            "equal": all(
                len(a) == len(b) and all(map(torch.equal, a, b))
                for a, b in zip(made[name]["seen"], plain, strict=True)
            ),
        }
        for name in COLUMNS
    }


def times(samples: list[tuple[float, float]]) -> Figures:
    """Return host and total microseconds, and how far the latter spread."""
    hosts, totals = zip(*samples, strict=True) if samples else ((0.0,), (0.0,))
    spread = max(totals) - min(totals)
    return {"host": median(hosts), "total": median(totals), "spread": spread}


def main() -> None:
    """Measure, print a table, and keep the figures."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", nargs="+", choices=[*ROWS], default=[*ROWS])
    arguments.add_argument("--compile", type=int, default=120, metavar="SECONDS")
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    arguments.add_argument("--out", default=os.environ.get("OUT", ""))
    options = arguments.parse_args()
    warnings.simplefilter("ignore")
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch._dynamo.config.recompile_limit = 64  # noqa: SLF001 - eight sizes, by columns
    torch.utils.deterministic.fill_uninitialized_memory = False
    kept: Figures = {"about": about(), "rows": {}}
    print(f"{'host / total us, MiB, s':20}", *[f"{each:>26}" for each in COLUMNS])
    for name in options.rows:
        found = tried(
            lambda name=name: measured(ROWS[name], options.compile, options.rounds)
        )
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
