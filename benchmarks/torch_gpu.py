"""Functions of torch's tensors, side by side: eager, compiled, by hand, replayed.

Host is what a call costs its caller, total what it costs when calls follow each other;
both in microseconds, medians of 7 repetitions. *By hand* is a raw ``CUDAGraph`` whose
inputs are copied by hand. *Memory* is what eight batch sizes of one model reserve on
the device, recorded in either order; *recording* is what a call that records takes.

Run it by path for a table; ``--out`` keeps the figures as JSON, by default in $OUT;
``--compile`` adds the columns of ``torch.compile``, which take minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from torch import nn

import sapwood as sw

Call = Callable[..., Any]
Args = tuple[Any, ...]

WARM: Final = 20
REPETITIONS: Final = 7
MIB: Final = 1 << 20


def timed(call: Callable[[], Any], count: int) -> dict[str, Any]:
    """Return host and total microseconds of a call, with all samples."""
    for _ in range(WARM):
        call()
    host, total = [], []
    for _ in range(REPETITIONS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            call()
        returned = time.perf_counter()
        torch.cuda.synchronize()
        host.append((returned - start) / count * 1e6)
        total.append((time.perf_counter() - start) / count * 1e6)
    return {
        "host": round(median(host), 2),
        "total": round(median(total), 2),
        "samples": [host, total],
    }


def by_hand(fn: Call, args: Args) -> Callable[[], Any]:
    """Return the replay of a raw graph, the inputs copied before."""
    inputs = [each.clone() for each in args]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            fn(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = fn(*inputs)

    def replay() -> Any:
        for mine, theirs in zip(inputs, args, strict=True):
            mine.copy_(theirs)
        graph.replay()
        return result

    return replay


# What is measured.


def mlp(width: int = 256, depth: int = 8) -> nn.Module:
    """Return a chain of linear layers and activations."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers).cuda().eval()


class Block(nn.Module):
    """One layer of a decoder, its keys and values in a cache of fixed length."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        for name in ("keys", "values"):
            shape = (1, heads, length, width // heads)
            self.register_buffer(name, torch.zeros(shape))

    def forward(self, x: Any, position: Any, mask: Any) -> Any:
        """Return the layer's output for one token."""
        parts = self.mixed(self.before(x)).split(self.width, dim=-1)
        shape = (1, 1, self.heads, self.width // self.heads)
        query, key, value = (part.view(shape).transpose(1, 2) for part in parts)
        self.keys.index_copy_(2, position, key)
        self.values.index_copy_(2, position, value)
        seen = nn.functional.scaled_dot_product_attention(
            query, self.keys, self.values, attn_mask=mask
        )
        x = x + self.out(seen.transpose(1, 2).reshape(1, 1, self.width))
        return x + self.down(nn.functional.gelu(self.up(self.behind(x))))


class Decoder(nn.Module):
    """Layers one after another, each with a cache."""

    def __init__(self, layers: int = 12, width: int = 768, length: int = 512) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(width, 12, length) for _ in range(layers))
        self.register_buffer("places", torch.arange(length))

    def forward(self, x: Any, position: Any) -> Any:
        """Return the output for one token at a position."""
        mask = (self.places <= position).view(1, 1, 1, -1)
        for layer in self.layers:
            x = layer(x, position, mask)
        return x


def training() -> tuple[Call, Args]:
    """Return a whole training step of a small network, and its batch."""
    sizes = (128, 256, 256, 10)
    layers: list[nn.Module] = []
    for width, after in pairwise(sizes):
        layers += [nn.Linear(width, after), nn.ReLU()]
    model = nn.Sequential(*layers[:-1]).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    batch = torch.randn(64, 128, device="cuda")
    return step, (batch, torch.randint(0, 10, (64,), device="cuda"))


def cases() -> Iterator[tuple[str, Call, Args, bool, int]]:
    """Yield name, function, arguments, whether gradients flow, and how many calls."""
    yield "8 x [Linear, GELU]", mlp(), (torch.randn(8, 256, device="cuda"),), False, 200
    for n in (1, 4, 16, 64):
        inputs = tuple(torch.randn(64, device="cuda") for _ in range(n))

        def add(*each: Any) -> list[Any]:
            return [t + 1 for t in each]

        yield f"{n} inputs", add, inputs, False, 100
    decoder = Decoder().cuda().bfloat16().eval()
    token = torch.randn(1, 1, 768, device="cuda", dtype=torch.bfloat16)
    position = torch.zeros(1, dtype=torch.long, device="cuda")
    yield "decoder step, 12 layers", decoder, (token, position), False, 50
    yield ("training step, AdamW", *training(), True, 50)


def columns(
    fn: Call, args: Args, count: int, *, compile_: bool
) -> Iterator[tuple[str, Any]]:
    """Yield each way of calling a function and what it costs."""
    yield "eager", timed(lambda: fn(*args), count)
    if compile_:
        for name, mode in (("compile", "default"), ("trees", "reduce-overhead")):
            compiled = torch.compile(fn, mode=mode)

            def call(compiled: Call = compiled) -> Any:
                torch.compiler.cudagraph_mark_step_begin()
                return compiled(*args)

            yield name, timed(call, count)
    yield "by hand", timed(by_hand(fn, args), count)
    with sw.Runtime(device="cuda:0", arrays="torch") as rt:
        graphed = rt.graph(fn)
        yield "same inputs", timed(lambda: graphed(*args), count)
        both, turn = (args, tuple(each.clone() for each in args)), [0]

        def fresh() -> Any:
            turn[0] ^= 1
            return graphed(*both[turn[0]])

        yield "other inputs", timed(fresh, count)


# Memory, and what recording costs.

SIZES: Final = (64, 48, 32, 16, 8, 4, 2, 1)


def transformer() -> nn.Module:
    """Return four blocks of width 1024."""
    layer = nn.TransformerEncoderLayer(
        1024, 16, 4096, dropout=0.0, batch_first=True, norm_first=True
    )
    encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return encoder.cuda().bfloat16().eval()


def recorded(order: tuple[int, ...]) -> dict[str, Any]:
    """Return what one runtime holds with all batch sizes recorded, and the times."""
    model, took = transformer(), []
    with sw.Runtime(device="cuda:0", arrays="torch") as rt, torch.no_grad():
        graphed = rt.graph(model)
        for size in order:
            x = torch.randn(size, 256, 1024, device="cuda", dtype=torch.bfloat16)
            graphed(x)
            torch.cuda.synchronize()
            start = time.perf_counter()
            graphed(x)
            took.append((time.perf_counter() - start) * 1e3)
            assert torch.equal(graphed(x), model(x))
        stats = rt.memory_stats()
    held = stats["pages.mapped"] * stats["page.bytes"] / MIB
    return {"mib": held, "ms": [round(each, 2) for each in took]}


def main() -> None:
    """Measure, print a table, and keep the figures."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--compile", action="store_true")
    arguments.add_argument("--out", default=os.environ.get("OUT", ""))
    asked = arguments.parse_args()
    rows: dict[str, Any] = {}
    for name, fn, args, grad, count in cases():
        with torch.set_grad_enabled(grad):
            ways = columns(fn, args, count, compile_=asked.compile)
            rows[name] = found = dict(ways)
        print(name)
        for way, figures in found.items():
            print(f"  {way:14} {figures['host']:9.2f} {figures['total']:9.2f}")
    memory = {"large first": recorded(SIZES), "small first": recorded(SIZES[::-1])}
    for name, each in memory.items():
        print(f"{name}: {each['mib']:.0f} MiB; recording took {each['ms']} ms")
    if asked.out:
        about = {
            "gpu": torch.cuda.get_device_name(0),
            "torch": torch.__version__,
            "commit": subprocess.run(
                ["git", "rev-parse", "HEAD"],  # noqa: S607
                capture_output=True,
                text=True,
                check=False,
            ).stdout.strip(),
        }
        path = Path(asked.out) / "torch.json"
        path.write_text(json.dumps({"about": about, "rows": rows, "memory": memory}))


if __name__ == "__main__":
    main()
