"""Generators of one's own go on as eager's would, whatever is replayed or fails."""

from __future__ import annotations

import gc

import pytest

import sapwood as sw

torch = pytest.importorskip("torch")
functional = torch.nn.functional

pytestmark = pytest.mark.gpu

SKIP = pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")


def generator(seed):
    """Return a generator of the GPU, seeded."""
    return torch.Generator("cuda").manual_seed(seed)


def draws(x, g):
    """Draw in several ways from a generator, and once from the device's own."""
    return (
        torch.rand(x.shape, device=x.device, generator=g),
        torch.randn(3, device=x.device, generator=g),
        torch.empty_like(x).uniform_(-1, 1, generator=g),
        torch.bernoulli(torch.sigmoid(x), generator=g),
        torch.randint(0, 10, (5,), device=x.device, generator=g),
        torch.multinomial(torch.sigmoid(x), 2, generator=g),
        functional.dropout(x, 0.5),
    )


def after(*generators):
    """Return what each draws next, and the device's own."""
    own = [torch.rand(2, device="cuda", generator=each) for each in generators]
    return own, torch.rand(2, device="cuda")


@pytest.mark.parametrize("how", ["argument", "closed over", "attribute"])
def test_the_same_sequence_eager_or_replayed(alike, how):
    """With eager draws in between."""

    def program(w):
        g, x = generator(5), w.values(16)
        holder = {"g": g}
        fn = {
            "argument": draws,
            "closed over": lambda x, _: draws(x, g),
            "attribute": lambda x, _: draws(x, holder["g"]),
        }[how]
        f = w.graph(fn)
        for _ in range(8):
            yield f(x, g if how == "argument" else None), after(g)

    world = alike(program)
    assert world.count("recordings") == 1
    assert world.count("replays") == 6


def test_two_generators_take_turns(alike):
    """And a function that draws from both, and one from none."""

    def program(w):
        g, h, x = generator(5), generator(6), w.values(16)
        one = w.graph(draws)
        both = w.graph(lambda x: (draws(x, h), draws(x, g), draws(x, h)))
        none = w.graph(lambda x: x * 2)
        for i in range(20):
            yield (one(x, g), one(x, h), both(x), none(x))[i % 4], after(g, h)

    assert alike(program).count("replays") >= 20


def test_seeds_and_states_are_set_between_calls(alike):
    """They are where the next replay begins."""

    def program(w):
        g, x = generator(5), w.values(16)
        f = w.graph(draws)
        f(x, g)
        for seed in range(5):
            g.manual_seed(seed)
            yield f(x, g)
            state = g.get_state()
            first = f(x, g)
            g.set_state(state)
            yield first, f(x, g), after(g)

    assert alike(program).count("replays") >= 8


def test_another_generator_is_another_recording(alike):
    """One that is gone is not taken for one that comes where it lay."""

    def program(w):
        x, f = w.values(16), w.graph(draws)
        for seed in range(4):
            g = generator(seed)
            for _ in range(4):
                yield f(x, g), after(g)
            del g
            gc.collect()

    alike(program)


def test_extra_recordings_leave_it_unmoved(alike):
    """Variants, escapes and new shapes each draw once a call."""

    def program(w):
        kept, g, f = [], generator(5), w.graph(draws, max_variants=2)
        for i in range(18):
            kept.append(f(w.values(8 + i % 3), g))
            yield after(g)
        yield kept

    assert alike(program).count("escaped") > 0


@SKIP
@pytest.mark.parametrize(
    "act",
    [
        lambda g: g.manual_seed(5),
        lambda g: g.set_offset(0),
        lambda g: g.set_state(g.get_state()),
        lambda g: g.manual_seed(6),
    ],
    ids=["the same seed", "offset", "state", "another seed"],
)
@pytest.mark.parametrize("late", [False, True])
def test_what_is_set_inside_is_never_other_numbers(alike, act, late):
    def program(w):
        g, x = generator(5), w.values(16)

        @w.graph
        def f(x):
            first = torch.rand(3, device="cuda", generator=g) if late else None
            act(g)
            return first, draws(x, g)

        for _ in range(6):
            yield f(x), after(g)

    alike(program)


@SKIP
@pytest.mark.parametrize("keeps", [False, True])
def test_one_that_is_made_inside(alike, keeps):
    def program(w):
        x, kept = w.values(16), []

        @w.graph
        def f(x):
            g = generator(1)
            kept.append(g) if keeps else None
            return draws(x, g)

        for _ in range(6):
            yield f(x), after()

    alike(program)


@SKIP
def test_a_failed_capture_leaves_it_unmoved(alike):
    def program(w):
        g, x = generator(5), w.values(16)

        @w.graph
        def f(x):
            y = draws(x, g)
            if torch.cuda.is_current_stream_capturing():
                torch.cuda.synchronize()
            return y

        for _ in range(6):
            yield f(x), after(g), g.initial_seed()

    alike(program)


@SKIP
def test_a_function_that_raises_where_eager_does(alike):
    def program(w):
        g, x = generator(5), w.values(16)

        @w.graph
        def f(x, fails):
            y = draws(x, g)
            if fails:
                raise ValueError(len(y))
            return y

        for i in range(12):
            try:
                yield f(x, i % 3 == 2), after(g)
            except ValueError as error:
                yield str(error), after(g)

    alike(program)


def test_warming_leaves_it_where_it_is(rt):
    g, x = generator(5), torch.randn(16, device="cuda")
    f = rt.graph(draws)
    f.warm(x, g)
    assert (g.initial_seed(), g.get_offset()) == (5, 0)
    expected = [each.clone() for each in draws(x, generator(5))[:-1]]
    found = f(x, g)
    assert all(map(torch.equal, found, expected))
    assert f.stats().replays == 1


def test_verified_replays_draw_once(rt):
    g, x = generator(5), torch.randn(16, device="cuda")
    f, theirs = rt.graph(draws, verify=2), generator(5)
    for _ in range(8):
        state = torch.cuda.get_rng_state()
        found = f(x, g)
        torch.cuda.set_rng_state(state)
        assert all(map(torch.equal, found, draws(x, theirs)))
    assert f.stats().replays >= 4


def test_an_eager_region_draws_between(alike):
    def program(w):
        g, x = generator(5), w.values(16)

        @sw.eager
        def noise(y):
            return torch.rand(y.shape, device="cuda", generator=g)

        @w.graph
        def f(x):
            y = torch.rand(x.shape, device="cuda", generator=g) + x
            return torch.rand(x.shape, device="cuda", generator=g) * noise(y) + y

        for _ in range(8):
            yield f(x), after(g)

    assert alike(program).count("replays") >= 4


def test_a_training_step_with_noise(alike):
    """As diffusion models are trained: a generator for the noise, one for times."""

    def program(w):
        torch.manual_seed(3)
        model = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        noise, times = generator(5), generator(6)

        @w.graph
        def step(x):
            optimizer.zero_grad()
            t = torch.rand(len(x), 1, device="cuda", generator=times)
            e = torch.randn(x.shape, device="cuda", generator=noise)
            loss = functional.mse_loss(model(x * t + e * (1 - t)), e)
            loss.backward()
            optimizer.step()
            return loss.detach()

        for _ in range(12):
            yield step(w.values(4, 8)), [*model.parameters()], after(noise, times)

    assert alike(program).count("replays") >= 5


def test_gradients_go_out_through_draws(alike):
    def program(w):
        g = generator(5)
        torch.manual_seed(3)
        model = torch.nn.Linear(8, 8).cuda()

        @w.graph
        def f(x):
            return model(x) * torch.rand(x.shape, device="cuda", generator=g)

        for _ in range(8):
            model.zero_grad()
            y = f(w.values(4, 8))
            y.square().sum().backward()
            yield y, [each.grad for each in model.parameters()], after(g)

    alike(program)
