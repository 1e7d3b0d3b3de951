"""Parts of a graph that launch one and the same kernel of the user's."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

# They need torch.
from tests.integrations.torch_compile.partitions import check, operators  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


@triton.jit
def _sum(x, y, out, length, block: tl.constexpr):
    """Write ``out = x + y``."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < length
    total = tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
    tl.store(out + at, total, mask=inside)


def added(x, y):
    out = torch.empty_like(x)
    length = x.numel()
    _sum[(triton.cdiv(length, 16),)](x, y, out, length, 16)
    return out


def test_a_kernel_of_the_user_is_in_two_parts(alike):
    ops = operators()

    def program(w):
        f = w.compile(lambda x, y: added(ops.apart(added(x, y).sin()), y).cos())
        for _ in range(6):
            yield f(w.values(50), w.values(50))

    check(alike(program), 2, 6)
