"""Random numbers go on as eager's would, whatever is replayed, refused or fails."""

from __future__ import annotations

import pytest

import sapwood as sw

torch = pytest.importorskip("torch")
functional = torch.nn.functional

pytestmark = pytest.mark.gpu


def draws(x):
    """Draw in several ways, and as many numbers as there are."""
    return (
        *(functional.dropout(x, 0.5), torch.rand_like(x), torch.randn_like(x)),
        *(torch.empty_like(x).uniform_(-1, 1), torch.bernoulli(torch.sigmoid(x))),
        torch.randint(0, 10, (5,), device=x.device),
    )


def drawn():
    """Return the state of the generator: equal ones draw the same."""
    return bytes(torch.cuda.get_rng_state().tolist())


def seeded():
    """Return an argument, with a seed after it."""
    made = torch.randn(32, device="cuda")
    torch.manual_seed(5)
    return made


def test_the_same_sequence_eager_or_replayed(alike):
    """For one seed each call, and eager draws in between, are eager's."""

    def program(w):
        f, x = w.graph(draws), w.values(16)
        for _ in range(8):
            yield f(x), torch.rand(3, device="cuda")

    world = alike(program)
    assert world.count("recordings") == 1
    assert world.count("replays") == 6


def test_replays_and_eager_calls_mixed(alike):
    """Eager calls in between take their numbers from the same sequence."""

    def program(w):
        f, x = w.graph(draws), w.values(16)
        for i in range(12):
            if i % 3 == 2:
                with sw.disabled():
                    yield f(x)
            else:
                yield f(x)
            yield torch.rand(i % 4, device="cuda")

    assert alike(program).count("replays") == 6


def test_seeding_again_repeats(alike):
    """A seed or a state that is set between calls is where the next replay begins."""

    def program(w):
        f, x = w.graph(draws), w.values(16)
        f(x)
        for seed in range(4):
            torch.manual_seed(seed)
            yield f(x)
            state = torch.cuda.get_rng_state()
            first = f(x)
            torch.cuda.set_rng_state(state)
            yield first, f(x)

    world = alike(program)
    assert world.count("replays") >= 6


def test_two_functions_take_turns(alike):
    """Functions that draw different amounts share one sequence."""

    def program(w):
        f, g = w.graph(draws), w.graph(lambda x: functional.dropout(x, 0.1))
        h, x = w.graph(lambda x: x * 2), w.values(16)
        for i in range(16):
            yield (f, g, h, g)[i % 4](x)

    assert alike(program).count("replays") > 8


def test_extra_recordings_leave_the_generator_unmoved(alike):
    """Variants, escapes and new shapes each draw once a call."""

    def program(w):
        kept, f = [], w.graph(draws, max_variants=2)
        for i in range(18):
            kept.append(f(w.values(8 + i % 3)))
            yield torch.rand(1, device="cuda")
        yield kept

    assert alike(program).count("escaped") > 0


def test_a_failed_capture_leaves_the_generator_unmoved(rt, same):
    """Whatever a capture has drawn when it is given up, nobody has drawn."""
    x = seeded()

    def waits(x):
        y = draws(x)
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        return y

    def reads(x):
        y = draws(x)
        if torch.cuda.is_current_stream_capturing():
            x.sum().item()
        return y

    for fn in (reads, waits):
        f = rt.graph(fn, fullgraph=True)
        f(x)
        before = drawn()
        for _ in range(2):
            with pytest.raises(sw.CaptureError):
                f(x)
            assert drawn() == before
    torch.manual_seed(5)
    f = rt.graph(draws, fullgraph=True)
    found = [f(x) for _ in range(4)]
    torch.manual_seed(5)
    same(found, [draws(x) for _ in range(4)])


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_memory_that_runs_out_in_a_capture_leaves_the_generator_unmoved(rt):
    """The same where torch's allocator finds no memory: the call is eager then."""
    x = seeded()

    def greedy(x):
        y = draws(x)
        if torch.cuda.is_current_stream_capturing():
            torch.empty(1 << 45, device="cuda")
        return y

    f = rt.graph(greedy)
    f(x)
    before = drawn()
    f(x)
    after = drawn()
    torch.manual_seed(5)
    draws(x)
    assert drawn() == before
    draws(x)
    assert after == drawn()


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_a_call_that_is_refused_draws_as_eager_does(rt, same):
    """A call that passes through takes its numbers once."""
    x = seeded()
    log = []

    def fn(x):
        log.append(len(log))
        return draws(x)

    f = rt.graph(fn)
    found = [f(x) for _ in range(6)]
    state = drawn()
    torch.manual_seed(5)
    same(found, [draws(x) for _ in range(6)])
    assert drawn() == state
    assert len(log) == 6


@pytest.mark.parametrize("calls", [0, 1, 2, 4])
def test_an_exception_after_drawing(rt, same, calls):
    """A function that draws and then raises has drawn once, as eagerly."""
    x = seeded()
    fail = [False]

    def fn(x):
        out = draws(x)
        if fail[0]:
            raise KeyError("mine")
        return out

    def run(f):
        torch.manual_seed(5)
        fail[0], seen = False, [f(x) for _ in range(calls)]
        fail[0] = True
        for _ in range(3):
            with pytest.raises(KeyError, match="mine"):
                f(x)
            seen.append(torch.rand(2, device="cuda"))
        fail[0] = False
        return [*seen, *(f(x) for _ in range(4))]

    same(run(rt.graph(fn)), run(fn))


def test_warming_leaves_the_generator_unmoved(rt):
    """`warm` records without taking numbers, or touching tensors."""
    x = seeded()
    f = rt.graph(lambda x: (x.add_(1), draws(x))[1])
    before, values = drawn(), x.clone()
    f.warm(x)
    assert f.stats().recordings == 1
    assert torch.equal(x, values)
    assert drawn() == before


def test_what_draws_may_be_verified(rt):
    """A replay that is held against an eager run draws the same, and once."""
    x = seeded()
    f = rt.graph(draws, verify=1)
    wrong = ""
    try:
        for _ in range(4):
            f(x)
    except sw.InternalError as error:
        wrong = error.law
    assert not wrong


NORMALS = {
    "tensors": lambda x: torch.normal(x, x.abs() + 0.1),
    "wider": lambda x: torch.normal(x[:, None], x[None].exp()),
    "a mean": lambda x: torch.normal(0.5, x.abs()),
    "halves": lambda x: torch.normal(x.half(), x.half().abs()),
    "a mean, halves": lambda x: torch.normal(0.1, x.bfloat16().abs()),
    "none": lambda x: torch.normal(x[:0], x[:0]),
    "a distribution": lambda x: torch.distributions.Normal(x, x.exp()).sample((3,)),
    "log-normal": lambda x: torch.distributions.LogNormal(x, x.exp()).rsample(),
}


@pytest.mark.parametrize("fn", NORMALS.values(), ids=NORMALS)
def test_deviations_in_a_tensor(alike, fn, monkeypatch):
    """Torch looks at them on the host, and then draws."""
    # Dynamo switches the looks of distributions off, for the rest of a process.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)

    def program(w):
        f, kept = w.graph(fn), []
        for _ in range(8):
            kept.append(f(w.values(16)))
            yield kept, torch.rand(3, device="cuda")

    world = alike(program)
    (function,) = world.functions
    assert world.count("replays") >= 5, function.explain()


def test_a_negative_deviation_raises_as_ever(alike):
    """Also in a call that would have been a replay."""

    def program(w):
        f = w.graph(lambda x, y: torch.normal(x, y) * 2)
        for i in range(10):
            y = w.values(16).abs() * (-1 if i in {4, 7} else 1)
            try:
                yield f(w.values(16), y)
            except RuntimeError as error:
                yield str(error).partition("\n")[0]
            yield torch.rand(3, device="cuda")

    alike(program)


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("where", ["nowhere", "inside", "before", "behind"])
def test_checkpoints_and_what_is_drawn(alike, network, where, reentrant):
    """A part that runs again draws what it drew; where none does, it is replayed."""
    checkpoint = torch.utils.checkpoint.checkpoint

    def program(w):
        model = network(0.5 if where == "inside" else 0.0)
        first = torch.nn.Linear(16, 16, device="cuda")
        optimizer = torch.optim.SGD([*first.parameters(), *model.parameters()], lr=0.1)

        def step(x):
            optimizer.zero_grad()
            if where == "before":
                x = functional.dropout(x, 0.3)
            y = checkpoint(model, first(x), use_reentrant=reentrant)
            if where == "behind":
                y = functional.dropout(y, 0.3)
            loss = y.square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        f = w.graph(step)
        for _ in range(9):
            yield f(w.values(8, 16)), [*model.parameters()]
            yield torch.rand(3, device="cuda")

    assert alike(program).count("replays") >= (4 if where == "nowhere" else 0)
