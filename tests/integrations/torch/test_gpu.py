"""Modules, training steps, refusals and memory of functions of tensors: as eagerly."""

from __future__ import annotations

import copy
import gc
import itertools
import threading
from functools import partial

import numpy as np
import pytest

import sapwood as sw
from sapwood.tree.record import adopted
from tests.support.threads import in_threads

torch = pytest.importorskip("torch")
nn = torch.nn

pytestmark = pytest.mark.gpu


def randn(*shape, **options):
    return torch.randn(*shape, device="cuda", **options)


@pytest.fixture
def agree(rt, same):
    """Return what asserts that calls agree, with lasting and with new arguments."""

    def agree(fn, make, calls=4):
        for fresh in (False, True):
            f = rt.graph(fn)
            args = make()
            for _ in range(calls + fresh):
                args = make() if fresh else args
                same(f(*args), fn(*args))
            assert f.stats().replays >= calls - 2

    return agree


def mlp(*widths):
    layers = []
    for width, after in itertools.pairwise(widths):
        layers += [nn.Linear(width, after), nn.GELU()]
    return nn.Sequential(*layers).cuda()


# What is passed in and comes out: what scripts/memcheck runs, small as it is.


def test_arithmetic_agrees(agree):
    """Results are eager's, with lasting arguments and with new ones."""
    agree(lambda x, y: (x * 2 + y, (x * y).sum(0)), lambda: (randn(8, 8),) * 2)
    agree(lambda x, y: {"a": [x @ y], "b": (x, 3)}, lambda: (randn(9, 9), randn(9, 9)))


def test_a_result_may_be_the_next_argument(rt, same):
    """Feeding a function its own result needs no copy by hand."""
    f = rt.graph(lambda x: torch.sin(x) + x)
    x = y = randn(1000)
    for _ in range(10):
        x, y = f(x), torch.sin(y) + y
        same(x, y)


def test_views_among_outputs_share(rt):
    """Results that share memory still do."""

    def split(x):
        y = x * 2
        return y, y[1:], y.t()

    f = rt.graph(split)
    for _ in range(5):
        y, rest, turned = f(randn(4, 4))
        y.fill_(3)
        assert bool((rest == 3).all())
        assert bool((turned == 3).all())


# What the function reads besides.


def test_modules_are_functions(rt, same):
    """A module is recorded like a function, and its parameters are read anew."""
    module = mlp(64, 64, 64)
    f = rt.graph(module)
    with torch.no_grad():
        x = randn(8, 64)
        for _ in range(4):
            same(f(x), module(x))
        module[0].weight.mul_(2)
        same(f(x), module(x))
        module[2].weight = nn.Parameter(randn(64, 64))
        for _ in range(4):
            same(f(x), module(x))
        module[2].weight.data = randn(64, 64)
        for _ in range(4):
            same(f(x), module(x))
        module[0].register_forward_hook(lambda _, __, y: y + 1)
        for _ in range(4):
            same(f(x), module(x))
        module.append(nn.Tanh())
        for _ in range(4):
            same(f(x), module(x))


def test_buffers_training_and_eval(rt, same):
    """Batch norm updates its buffers; `eval` and `train` are noticed."""
    torch.manual_seed(1)
    mine = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).cuda()
    torch.manual_seed(1)
    theirs = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).cuda()
    f = rt.graph(mine)
    with torch.no_grad():
        for training in (True, False, True):
            mine.train(training)
            theirs.train(training)
            for _ in range(4):
                x = randn(2, 3, 8, 8)
                same(f(x), theirs(x))
                same(list(mine.buffers()), list(theirs.buffers()))


def test_modes_are_noticed(rt, same):
    """Autocast, inference mode and TF32 are read on every call."""
    module, x = mlp(64, 64), randn(8, 64)
    f = rt.graph(module)
    contexts = [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cuda", torch.bfloat16),
        lambda: torch.autocast("cuda", torch.float16),
    ]
    for _ in range(4):
        for context in contexts:
            with torch.no_grad(), context():
                same(f(x), module(x))
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for allow in (True, False, True, False, True, False):
            torch.backends.cuda.matmul.allow_tf32 = allow
            with torch.no_grad():
                same(f(x), module(x))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_dropout_goes_on_as_eagers_does(rt, same):
    """For one seed the draws of every call are eager's."""
    module, x = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)).cuda(), randn(32, 64)
    f = rt.graph(module)
    with torch.no_grad():
        torch.manual_seed(5)
        found = [(f(x), torch.rand(3, device="cuda")) for _ in range(6)]
        torch.manual_seed(5)
        expected = [(module(x), torch.rand(3, device="cuda")) for _ in range(6)]
        same(found, expected)
        assert not torch.equal(found[3][0], found[4][0])
        module.eval()
        for _ in range(4):
            same(f(x), module(x))


# Training.


def training(optimizer, **options):
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).cuda()
    made = optimizer(module.parameters(), **options)

    def step(x, y):
        made.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(module(x), y)
        loss.backward()
        made.step()
        return loss

    return module, made, step


def batch():
    return randn(8, 16), torch.randint(0, 4, (8,), device="cuda")


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        ("AdamW", {"lr": 1e-2, "capturable": True}),
        ("AdamW", {"lr": 1e-2, "fused": True, "capturable": True}),
        ("SGD", {"lr": 1e-1, "momentum": 0.9}),
        ("SGD", {"lr": 1e-1, "foreach": False}),
    ],
)
def test_a_training_step_is_eagers(rt, optimizer, options, same):
    """Losses, gradients and parameters, of this call and of earlier ones, are eager's.

    So they are when the learning rate is changed.
    """
    kind = getattr(torch.optim, optimizer)
    mine, one, step = training(kind, **options)
    theirs, two, eagerly = training(kind, **options)
    f, kept = rt.graph(step), []
    for i in range(10):
        if i == 7:
            for each in (one, two):
                each.param_groups[0]["lr"] = 5e-3
        x, y = batch()
        found, expected = f(x, y).detach(), eagerly(x, y).detach()
        same(found, expected)
        same(list(mine.parameters()), list(theirs.parameters()))
        grads = [[p.grad for p in m.parameters()] for m in (mine, theirs)]
        same(*grads)
        if i > 3:
            kept.append((found, expected, *grads))
    for found, expected, ours, others in kept:
        same((found, ours), (expected, others))
    assert f.stats().recordings


def test_six_steps_of_which_all_is_kept(rt, same):
    """Losses and every gradient of six calls are eager's, after all of them."""
    options = {"lr": 1e-2, "capturable": True}
    mine, _, step = training(torch.optim.AdamW, **options)
    theirs, _, eagerly = training(torch.optim.AdamW, **options)
    f, kept = rt.graph(step), []
    for i in range(9):
        x, y = batch()
        found, expected = f(x, y), eagerly(x, y).detach()
        grads = [[p.grad for p in m.parameters()] for m in (mine, theirs)]
        if i > 2:
            kept.append((found, grads[0], expected, grads[1]))
        for loss, ours, other, others in kept:
            same((loss, ours), (other, others))
        # A loss of a warm-up must be gone before a step is captured.
        del found, expected, grads
    assert len(kept) == 6
    same(list(mine.parameters()), list(theirs.parameters()))
    # While all is held no recording can be replayed twice, and each call is another's.
    stats = f.stats()
    assert stats.recordings + stats.replays >= 6


@pytest.mark.parametrize("tensor", [False, True], ids=["number", "tensor"])
def test_a_learning_rate_schedule_is_followed(rt, same, tensor):
    """A rate that is a number is recorded anew; in a tensor it needs no recording."""
    worlds = []
    for _ in range(2):
        rate = torch.tensor(1e-2, device="cuda") if tensor else 1e-2
        module, made, step = training(torch.optim.AdamW, lr=rate, capturable=True)
        schedule = torch.optim.lr_scheduler.StepLR(made, step_size=4, gamma=0.5)
        worlds.append((module, step, schedule))
    (mine, step, ours), (theirs, eagerly, others) = worlds
    f = rt.graph(step)
    for _ in range(16):
        x, y = batch()
        same(f(x, y).detach(), eagerly(x, y).detach())
        same(list(mine.parameters()), list(theirs.parameters()))
        ours.step()
        others.step()
    # Gradients of the call before are held: two recordings take turns, for each rate.
    assert f.stats().recordings <= (2 if tensor else 8)
    assert f.stats().replays >= (12 if tensor else 3)


def test_gradients_may_be_accumulated(rt, same):
    """Without zeroing, every call adds to the gradients that are there."""
    mine, _, _ = training(torch.optim.SGD)
    theirs, _, _ = training(torch.optim.SGD)

    def back(module, x):
        module(x).square().sum().backward()

    f = rt.graph(lambda x: back(mine, x))
    for i in range(9):
        x = randn(8, 16)
        f(x)
        back(theirs, x)
        same([p.grad for p in mine.parameters()], [p.grad for p in theirs.parameters()])
        if i == 5:
            for module in (mine, theirs):
                module.zero_grad(set_to_none=False)


def test_frozen_parameters_are_noticed(rt, same):
    """`requires_grad_(False)` on a parameter changes what the step does."""
    mine, _, step = training(torch.optim.SGD, lr=0.1)
    theirs, _, eagerly = training(torch.optim.SGD, lr=0.1)
    f = rt.graph(step)
    for i in range(9):
        if i == 4:
            for module in (mine, theirs):
                module[0].requires_grad_(requires_grad=False)
                module.zero_grad(set_to_none=True)
        x, y = batch()
        same(f(x, y).detach(), eagerly(x, y).detach())
        same(list(mine.parameters()), list(theirs.parameters()))


# What cannot be recorded.


def fails(rt, fn, *args, match, calls=3):
    f = rt.graph(fn, fullgraph=True)
    with pytest.raises((sw.CaptureError, TypeError), match=match):
        for _ in range(calls):
            f(*args)


def test_host_data_is_refused_by_line(rt):
    """What a function draws on the host would be the same for ever."""
    x = randn(16)
    for fn in (
        lambda x: x + torch.rand(16).cuda(),
        lambda x: x + torch.from_numpy(np.random.default_rng().random(16)).cuda(),
    ):
        fails(rt, fn, x, match="random|host data")


def test_other_refusals(rt, same):
    """CPU tensors, and views that require grad, are refused with a remedy."""
    x, w = randn(16), randn(16, requires_grad=True)
    fails(rt, lambda x: x + 1, x.cpu(), match="Move it")
    fails(rt, lambda x: x[1:], x * w, match=r"requires grad.*detach")
    fails(rt, lambda x: x["a"] + 1, {"a": x * w}, match="detach")
    with torch.no_grad():
        f = rt.graph(lambda x: x * w)
        for _ in range(4):
            same(f(x), x * w)


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_memory_runs_out_in_a_capture(rt, agree):
    """An allocation that only the capture has no memory for makes the call eager."""

    def greedy(x):
        if torch.cuda.is_current_stream_capturing():
            torch.empty(1 << 45, device="cuda")
        return x + 1

    f, x = rt.graph(greedy), randn(4)
    for _ in range(4):
        assert torch.equal(f(x), x + 1)
    assert f.stats().replays == 0
    gc.collect()
    agree(lambda x: x * 3, lambda: (randn(16),))


def test_a_capture_that_needs_more_room_is_made_again(rt, same, monkeypatch):
    """What no warm-up has shown is there in the end, and all that came before went."""
    rooms, attempt = [], adopted.attempt

    def recorded(room, *rest):
        rooms.append(room)
        return attempt(room, *rest)

    monkeypatch.setattr(adopted, "attempt", recorded)

    def greedy(x):
        if torch.cuda.is_current_stream_capturing():
            at = torch.cuda.caching_allocator_alloc(300 << 20)
            torch.cuda.caching_allocator_delete(at)
        return x * 2 + x.sum()

    f, x = rt.graph(greedy), randn(64, 64)
    for _ in range(4):
        same(f(x), greedy(x))
    assert f.stats().recordings == 1
    assert len(rooms) == 2
    assert rooms[1] > 300 << 20 > rooms[0]


def test_no_gradient_stays_of_a_capture_that_had_too_little_room(rt):
    """It would lie where nothing is any more, and the next capture would add to it."""

    def greedy(x):
        if torch.cuda.is_current_stream_capturing():
            at = torch.cuda.caching_allocator_alloc(300 << 20)
            torch.cuda.caching_allocator_delete(at)
            (x * x).sum().backward()

    f, x = rt.graph(greedy, fullgraph=True), randn(64, 64, requires_grad=True)
    f(x)
    x.grad = None
    with pytest.raises(sw.CaptureError, match="leaves a gradient on an argument"):
        f(x)
    assert x.grad is None


def test_where_memory_is_ample_recordings_take_none(rt, same):
    """Small ones after a large one share its pages, whatever is alive in turn."""

    def layers(x):
        for width in (2, 3, 1):
            wide = torch.cat([x] * width) * 0.5 + 1
            x = x + wide[: len(x)] * wide[-len(x) :]
        return x.sin(), x[:1] + 1

    f, kept = rt.graph(layers), []
    sizes = [24 << 20, 1 << 20, 3 << 18, 5]
    for size in sizes:
        x = randn(size)
        f(x), f(x)
        kept.append((x, f(x), layers(x)))
        for _, mine, theirs in kept:
            same(mine, theirs)
        scratch = rt.memory_stats()["pages.scratch"]
        if size == sizes[0]:
            most = scratch
        assert scratch == most
    for x, _, theirs in kept:
        for fresh in (False, True):
            same(f(x.clone() if fresh else x), theirs)
    assert f.stats().recordings >= len(sizes)


# Beside other work.


def test_decoding_with_caches_of_modules(rt, same):
    """A cache that is a buffer of each layer is written in place, as eagerly."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.mixed = nn.Linear(32, 96)
            self.register_buffer("keys", torch.zeros(64, 32))
            self.register_buffer("values", torch.zeros(64, 32))
            self.register_buffer("places", torch.arange(64))

        def forward(self, x, position):
            query, key, value = self.mixed(x).split(32, dim=-1)
            self.keys.index_copy_(0, position, key)
            self.values.index_copy_(0, position, value)
            scores = query @ self.keys.t()
            scores = scores.masked_fill(self.places > position, -torch.inf)
            return x + scores.softmax(-1) @ self.values

    class Layers(nn.ModuleList):
        def forward(self, x, position):
            for layer in self:
                x = layer(x, position)
            return x

    mine = Layers(Layer() for _ in range(3)).cuda()
    theirs = copy.deepcopy(mine)
    f, kept = rt.graph(mine), []
    with torch.no_grad():
        for turn in range(2):
            x = y = randn(1, 32)
            for i in range(24):
                position = torch.full((1,), i, device="cuda")
                x, y = f(x, position), theirs(y, position)
                kept.append((x, y))
                same(list(mine.buffers()), list(theirs.buffers()))
                for pair in kept[-3:]:
                    same(*pair)
            del kept[turn:]
            for each in (*mine.buffers(), *theirs.buffers()):
                if each.is_floating_point():
                    each.zero_()
    assert f.stats().replays > 40


def test_threads(rt):
    """Several threads call one function, each with its own arguments."""
    module = mlp(64, 64)
    f = rt.graph(module)
    # Made before: torch lets nobody draw while a thread captures.
    given = [[randn(8, 64) for _ in range(25)] for _ in range(4)]

    def work(arguments):
        with torch.no_grad():
            assert all(torch.equal(f(x), module(x)) for x in arguments)

    in_threads(*(partial(work, each) for each in given))


def test_a_thread_may_record_what_another_has_warmed_up(rt, same):
    """A thread that captures first of all needs nothing that cannot be made then."""
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3)).cuda()
    f, x, found = rt.graph(module), randn(4, 1, 8, 8), []

    def call():
        with torch.no_grad():
            found.append(f(x).clone())

    for _ in range(4):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    with torch.no_grad():
        for each in found:
            same(each, module(x))
    assert f.stats().recordings == 1


def test_a_kept_sum_holds_its_own_bytes_alone(same):
    """Torch returns a loss in the memory of all that it has added up: C copies that."""
    with sw.Runtime(device="cuda:0", arrays="torch") as rt:
        _check_kept_sums(rt, same)


def _check_kept_sums(rt, same):
    f, x, y = rt.graph(nn.functional.mse_loss), randn(256, 256), randn(256, 256)
    assert nn.functional.mse_loss(x, y).untyped_storage().nbytes() >= 256 * 256
    losses = [f(x, y) for _ in range(80)]
    before = torch.cuda.memory_allocated() + rt.memory_stats()["heap.bytes"]
    losses += [f(x, y) for _ in range(40)]
    held = torch.cuda.memory_allocated() + rt.memory_stats()["heap.bytes"] - before
    assert held <= 40 * 512
    for loss in losses:
        same(loss, nn.functional.mse_loss(x, y))
