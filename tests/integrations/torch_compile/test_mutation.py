"""Compiled code that writes, and tensors at one address that are exchanged."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

pytestmark = pytest.mark.gpu


def skips():
    """Return how many graphs torch has counted that are not recorded."""
    return torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]


def test_a_result_is_written_where_the_caller_says(alike):
    def program(w):
        before = skips()

        @w.compile
        def f(x, y, out):
            torch.mul(x, y, out=out)
            return out + 1

        for _ in range(8):
            out = torch.zeros(16, device="cuda")
            yield f(w.values(16), w.values(16), out), out
        lasting = torch.zeros(16, device="cuda")
        for _ in range(6):
            yield f(w.values(16), w.values(16), lasting), lasting
        assert skips() == before

    told = alike(program)
    assert told.replays >= 8
    assert told.passed_through == 0


def test_an_argument_gets_other_memory(alike):
    """By its ``data``, which is no write that autograd counts."""

    @torch.no_grad()
    def program(w):
        @w.compile
        def f(x):
            x.data *= 2
            return x + 1

        for _ in range(6):
            x = w.values(16)
            yield f(x), x

    alike(program)


def test_results_are_written_as_arguments_are(alike):
    """What was given by another recording, then what was not, without a warning."""

    def program(w):
        before = skips()
        f = w.compile(lambda x: x.sin() * 2)
        g = w.compile(lambda y: y.add_(1))
        for _ in range(8):
            y = f(w.values(16))
            yield g(y), y
        for _ in range(8):
            y = w.values(16)
            yield g(y), y
        assert skips() == before

    told = alike(program)
    assert told.replays >= 16
    assert told.passed_through == 0


def test_writers_are_left_to_torch_where_its_option_says_so(alike):
    """Torch then takes no graph that writes an argument; others are recorded."""

    def program(w):
        before = skips()
        f = w.compile(lambda x: x.sin() * 2)
        g = w.compile(lambda y: y.add_(1))
        for _ in range(6):
            y = f(w.values(16))
            yield g(y), y
        assert skips() == before + 1

    told = alike(program, **{"triton.cudagraph_support_input_mutation": False})
    assert told.replays >= 3
    assert told.warmups + told.recordings + told.replays == 6


def test_values_are_added_by_index(alike):
    """Some to the same element: whole numbers, which add up alike in any order."""

    def program(w):
        @w.compile
        def f(x, at, values):
            x.index_put_((at,), values, accumulate=True)
            return x.sum()

        at = torch.tensor([0, 3, 3, 1], device="cuda")
        lasting = torch.zeros(5, device="cuda")
        for i in range(6):
            x, values = torch.zeros(5, device="cuda"), at.float() + i
            yield f(x, at, values), x
            yield f(lasting, at, values), lasting

    assert alike(program).replays >= 6


def test_a_skip_is_an_error_where_torch_is_told_so(ours, rt):
    """But an argument that is written is no reason for one."""
    options = {"triton.cudagraph_or_error": True, "graph_partition": False}
    compiled = {"backend": ours, "options": options}
    f = torch.compile(lambda x: x.add_(1), **compiled)
    for i in range(5):
        x = torch.full((8,), float(i), device="cuda")
        assert torch.equal(f(x), x)
        assert torch.equal(x, torch.full_like(x, i + 1.0))
    assert rt.stats().replays >= 2
    g = torch.compile(lambda x, host: (x + 1, host + 1), **compiled)
    with pytest.raises(RuntimeError, match="cudagraphs"):
        g(x, torch.ones(3))


class Scaled(nn.Module):
    """A module of one's own: a parameter, and a buffer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.register_buffer("shift", torch.randn(8))

    def forward(self, x):
        return x @ self.weight + self.shift


KINDS = {
    "weight": (lambda: nn.Linear(8, 8), "weight"),
    "statistics": (lambda: nn.BatchNorm1d(8), "running_mean"),
    "parameter": (Scaled, "weight"),
    "buffer": (Scaled, "shift"),
}


@pytest.mark.parametrize(("make", "name"), KINDS.values(), ids=KINDS)
def test_a_tensor_of_a_module_is_exchanged(alike, make, name):
    """Nothing is compiled anew; what was recorded for the first one is used again."""

    def program(w):
        torch.manual_seed(3)
        model = make().cuda()
        plain = getattr(model, name)
        sets = [plain, type(plain)(torch.randn_like(plain))]
        f = w.compile(model)
        with torch._dynamo.config.patch(error_on_recompile=True):
            for turn in (0, 1, 0, 1):
                setattr(model, name, sets[turn])
                for _ in range(4):
                    y = f(w.values(4, 8))
                    y.square().sum().backward()
                    yield y, [each.grad for each in model.parameters()], sets
                    model.zero_grad()

    told = alike(program)
    assert told.replays >= 12
    assert told.passed_through == 0
    assert told.recordings <= 8


def test_a_parameter_that_is_passed_is_exchanged(alike):
    def program(w):
        f = w.compile(lambda x, p: (x * p).sin())
        sets = [nn.Parameter(w.values(8)) for _ in range(2)]
        for turn in (0, 1, 0, 1):
            for _ in range(4):
                y = f(w.values(8), sets[turn])
                y.sum().backward()
                yield y, [each.grad for each in sets]
                sets[turn].grad = None

    told = alike(program)
    assert told.replays >= 12
    assert told.passed_through == 0


@pytest.mark.parametrize("first", [False, True])
def test_one_of_two_graphs_has_a_parameter_that_is_exchanged(alike, first):
    """The one that needs it is behind the other, or before it."""

    def program(w):
        sets = [nn.Parameter(w.values(8, 8)) for _ in range(2)]

        @w.compile
        def f(x, p):
            y = x @ p if first else x * 2
            torch._dynamo.graph_break()
            return y.relu() if first else (y @ p).relu()

        for turn in (0, 1, 0, 1):
            for _ in range(4):
                y = f(w.values(4, 8), sets[turn])
                y.sum().backward()
                yield y, [each.grad for each in sets]

    told = alike(program)
    assert told.replays >= 16
    assert told.passed_through == 0


def test_a_buffer_and_a_bias_are_exchanged(alike):
    class Shifted(nn.Linear):
        def __init__(self):
            super().__init__(8, 8)
            self.register_buffer("shift", torch.ones(8))

        def forward(self, x):
            return super().forward(x) + self.shift

    @torch.no_grad()
    def program(w):
        torch.manual_seed(3)
        model = Shifted().cuda()
        f = w.compile(model)
        for _ in range(2):
            for _ in range(6):
                yield f(w.values(4, 8))
            model.shift, model.bias = w.values(8), nn.Parameter(w.values(8))

    told = alike(program)
    assert told.replays >= 6
    assert told.recordings <= 4


@pytest.mark.parametrize("count", [2, 5])
def test_parameters_may_come_in_turn_as_often_as_they_like(alike, count):
    """Torch's limit is for its own recordings."""

    @torch.no_grad()
    def program(w):
        model = nn.Linear(8, 8).cuda()
        sets = [nn.Parameter(w.values(8, 8)) for _ in range(count)]
        before, f = skips(), w.compile(model)
        for _ in range(2):
            for each in sets:
                model.weight = each
                for _ in range(4):
                    yield f(w.values(4, 8))
        assert skips() == before

    told = alike(program, **{"triton.cudagraph_unexpected_rerecord_limit": 1})
    assert told.passed_through == 0
    assert told.replays >= 8


def test_an_argument_whose_address_is_marked_as_lasting(alike):
    def program(w):
        table = w.values(8, 8)
        torch._dynamo.mark_static_address(table, guard=False)
        f = w.compile(lambda x, table: (x @ table).relu())
        given = [w.values(4, 8) for _ in range(8)]
        for x in given:
            yield f(x, table)

    told = alike(program)
    assert told.replays >= 5
    assert told.recordings <= 2
