"""Several GPUs: a runtime of each, in one process."""

from __future__ import annotations

import pytest

import sapwood as sw

torch = pytest.importorskip("torch")
nn = torch.nn

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


@pytest.fixture
def runtimes():
    """Return a runtime of each of two GPUs."""
    with (
        sw.Runtime(device="cuda:0", arrays="torch") as one,
        sw.Runtime(device="cuda:1", arrays="torch") as two,
    ):
        yield one, two


def on(number, *shape):
    return torch.randn(*shape, device=f"cuda:{number}")


@pytest.mark.parametrize("current", [0, 1])
def test_each_gpu_has_its_runtime(runtimes, same, current):
    """Both are used in turn, whichever GPU is the current one; results are eager's."""
    modules = [
        nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)).to(f"cuda:{n}")
        for n in range(2)
    ]
    functions = [rt.graph(module) for rt, module in zip(runtimes, modules, strict=True)]
    kept = []
    with torch.no_grad(), torch.cuda.device(current):
        for i in range(40):
            which = i % 2
            x = on(which, 8, 32)
            kept.append((functions[which](x), modules[which](x)))
            for found, expected in kept[-5:]:
                assert found.device == expected.device
                same(found, expected)
        # A result of the one goes to the other by an ordinary copy.
        for _ in range(6):
            x = on(0, 8, 32)
            y = functions[0](x).to("cuda:1")
            same(functions[1](y), modules[1](modules[0](x).to("cuda:1")))
    assert torch.cuda.current_device() == 0
    for f in functions:
        assert f.stats().replays > 15


def training(number):
    torch.manual_seed(4)
    module = nn.Linear(16, 4).to(f"cuda:{number}")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad(set_to_none=True)
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return module, step


def test_each_gpu_trains(runtimes, same):
    """Autograd's threads of either GPU are watched; steps are eager's on both."""
    for number, rt in enumerate(runtimes):
        mine, step = training(number)
        theirs, eagerly = training(number)
        f = rt.graph(step)
        for _ in range(8):
            x = on(number, 8, 16)
            same(f(x).detach(), eagerly(x).detach())
            same(list(mine.parameters()), list(theirs.parameters()))
        assert f.stats().replays >= 4


def test_tensors_of_another_gpu_are_refused(runtimes):
    """An argument, or a tensor in a closure, that is elsewhere is refused by name."""
    one, two = runtimes
    here, there = on(0, 8), on(1, 8)
    for rt, wrong, place in ((one, there, "cuda:0"), (two, here, "cuda:1")):
        f = rt.graph(lambda x: x * 2, fullgraph=True)
        with pytest.raises((sw.MisuseError, TypeError), match=place):
            f(wrong)
        right = there if wrong is here else here
        for _ in range(4):
            assert torch.equal(f(right), right * 2)
        g = rt.graph(lambda: wrong * 2, fullgraph=True)  # noqa: B023 - called in this very turn
        with pytest.raises((sw.CaptureError, sw.MisuseError, TypeError), match=place):
            for _ in range(3):
                g()
