"""Operators at which Inductor splits a graph, and how its parts were run."""

from __future__ import annotations

from functools import cache

import torch


def check(told, parts, calls):
    """Each part was warmed up once, recorded, and replayed from then on.

    ``parts`` are the partitions, of each signature; each was called so many times.
    """
    assert told.warmups == parts, told
    assert parts <= told.recordings <= 3 * parts
    assert told.passed_through == 0
    assert told.warmups + told.recordings + told.replays == parts * calls


@cache
def operators():
    """Define operators, once a process, and return their namespace.

    No graph takes ``apart``, nor ``store``, which writes ``out``: they read a value on
    the host. ``within`` and ``fill`` are the like that one takes; the gradient of
    ``later`` is what none takes. How many rows ``positive`` has, is unknown before.
    """
    unsafe = (torch.Tag.cudagraph_unsafe,)
    define = torch.library.custom_op

    @define("sapwood_parts::apart", mutates_args=(), tags=unsafe)
    def apart(x: torch.Tensor) -> torch.Tensor:
        return x + float(x.sum().item() > 0)

    @define("sapwood_parts::store", mutates_args=("out",), tags=unsafe)
    def store(x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(x + float(x.sum().item() > 0))

    @define("sapwood_parts::within", mutates_args=())
    def within(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @define("sapwood_parts::fill", mutates_args=("out",))
    def fill(x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(x * 2)

    @define("sapwood_parts::later", mutates_args=())
    def later(x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @define("sapwood_parts::positive", mutates_args=())
    def positive(x: torch.Tensor) -> torch.Tensor:
        return x[x.sum(1) > 0]

    for each in (apart, within, later):
        each.register_fake(torch.empty_like)
    positive.register_fake(
        lambda x: x.new_empty(torch.library.get_ctx().new_dynamic_size(), x.shape[1])
    )
    apart.register_autograd(lambda _, gradient: gradient)
    later.register_autograd(lambda _, gradient: apart(gradient))
    _across()
    return torch.ops.sapwood_parts


def _across():
    """Define operators whose tensors are not all on one device."""
    define = torch.library.custom_op

    @define("sapwood_parts::fetched", mutates_args=())
    def fetched(x: torch.Tensor) -> torch.Tensor:
        return x.cpu() * 2

    @define("sapwood_parts::sent", mutates_args=())
    def sent(host: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return x + host.to(x.device)

    @define("sapwood_parts::fetch", mutates_args=("out",))
    def fetch(x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(x)

    @define("sapwood_parts::both", mutates_args=())
    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, x.cpu() * 3

    fetched.register_fake(lambda x: torch.empty_like(x, device="cpu"))
    sent.register_fake(lambda _, x: torch.empty_like(x))
    both.register_fake(
        lambda x: (torch.empty_like(x), torch.empty_like(x, device="cpu"))
    )
