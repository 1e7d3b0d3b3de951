"""Compiled code that writes by indices is recorded, deterministic or not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.*deterministic:UserWarning"),
]

ROWS, COLUMNS = 6, 4


def reduced(how):
    def ways(x, at, values):
        found = x.scatter_reduce(0, at, values, how, include_self=False)
        # Three values may have a mean that is rounded.
        to = at if how == "mean" else at % 3
        return found, x.scatter_reduce_(0, to, values, how)

    return ways


# Each of a tensor, of rows in some order, and of values: a new tensor, and in place.
# Values are whole numbers, whose sums and products are exact in any order.
BY_ROW = {
    "index_put": lambda x, at, v: (x.index_put((at,), v), x.index_put_((at,), v)),
    "index_put, added": lambda x, at, v: (
        x.index_put((at,), v, accumulate=True),
        x.index_put_((at % 2,), v, accumulate=True),
    ),
    "index_add": lambda x, at, v: (
        x.index_add(0, at, v, alpha=2),
        x.index_add_(0, at % 2, v),
    ),
    "index_copy": lambda x, at, v: (x.index_copy(0, at, v), x.index_copy_(0, at, v)),
    "index_fill": lambda x, at, _: (
        x.index_fill(0, at, 3.0),
        x.index_fill_(0, at % 2, 5.0),
    ),
}
BY_ELEMENT = {
    "scatter": lambda x, at, v: (x.scatter(0, at, v), x.scatter_(0, at, 3.0)),
    "scatter_add": lambda x, at, v: (x.scatter_add(0, at, v), x.scatter_add_(0, at, v)),
    **{how: reduced(how) for how in ("sum", "prod", "mean", "amax", "amin")},
}
SCATTERS = {f"scatter, {how}": ways for how, ways in BY_ELEMENT.items()}


@pytest.fixture(params=[False, True], ids=["", "deterministic"])
def deterministic(request):
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    # Some of these have no deterministic way, and warn.
    torch.use_deterministic_algorithms(request.param, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("name", [*BY_ROW, *SCATTERS])
def test_writes_by_indices_are_as_eager_ones(alike, name):
    ways = BY_ROW.get(name) or SCATTERS[name]

    def program(w):
        f = w.compile(ways)
        for i in range(5):
            at = torch.randperm(ROWS, device="cuda")[:4]
            if name in SCATTERS:
                at = at[:, None].expand(4, COLUMNS).contiguous()
            x = torch.arange(ROWS * COLUMNS, device="cuda").view(ROWS, COLUMNS) % 5 + i
            values = torch.arange(4.0 * COLUMNS, device="cuda").view(4, COLUMNS) % 3 + 1
            given, same = x.float(), x.float()
            found, expected = f(given, at, values), ways(same, at, values)
            assert all(map(torch.equal, found, expected))
            assert torch.equal(given, same)
            yield found, given

    told = alike(program)
    assert told.replays >= 2
    assert told.passed_through == 0
