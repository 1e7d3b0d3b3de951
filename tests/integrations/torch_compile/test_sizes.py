"""Dynamic shapes: each set of sizes has a recording, as far as somebody wants it."""

from __future__ import annotations

from itertools import product

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
functional = torch.nn.functional

pytestmark = pytest.mark.gpu


def test_sizes_beyond_the_limit_from_which_torch_warns(alike):
    """It is a limit of torch's own recordings."""

    def program(w):
        f = w.compile(lambda x: (x * 2).softmax(-1), dynamic=True)
        for size in (3, 5) * 5:
            yield f(w.values(size, 8))

    told = alike(program, **{"triton.cudagraph_dynamic_shape_warn_limit": 1})
    assert told.warmups == told.recordings == 2
    assert told.replays == 6


def test_attention_over_two_sizes(alike):
    def program(w):
        f = w.compile(functional.scaled_dot_product_attention)
        for batch, length in ((2, 8), (3, 16), (4, 24)) * 5:
            given = [w.values(batch, 2, length, 16) for _ in range(3)]
            for each in given:
                torch._dynamo.mark_dynamic(each, 0)
                torch._dynamo.mark_dynamic(each, 2)
            yield f(*given)

    told = alike(program, **{"triton.cudagraph_dynamic_shape_warn_limit": 1})
    assert 3 <= told.recordings <= 6
    assert told.replays >= 3


def sizes_of(alike, count, captured):
    """Call for so many sizes of one tensor, three times each; return what happened."""

    def program(w):
        f = w.compile(lambda x: x.exp() + 1, dynamic=True)
        f(w.values(*range(4, 4 + count)))
        for size in [*product((2, 3, 5), repeat=count)] * 3:
            yield f(w.values(*size))

    return alike(program, **{"triton.cudagraph_capture_sizes": captured})


def test_pairs_of_sizes_that_are_to_be_captured(alike):
    told = sizes_of(alike, 2, ((2, 3), (3, 2), (5, 5), (3, 3)))
    assert told.warmups == told.recordings == told.replays == 4


def test_three_sizes_that_are_to_be_captured(alike):
    told = sizes_of(alike, 3, ((2, 3, 5), (5, 2, 3), (3, 3, 3), (2, 2, 5)))
    assert told.warmups == told.recordings == told.replays == 4


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_recordings_are_as_many_as_an_option_says(alike):
    """For further sizes one that is not used gives way, or calls run as compiled."""

    def program(w):
        f = w.compile(lambda x: (x * 2).sum(0), dynamic=True)
        for size in (2, 3, 4, 5, 6) * 4:
            yield f(w.values(size, 4))
        for _ in range(4):
            yield f(w.values(6, 4))

    told = alike(program, max_recordings=2)
    assert told.recordings - told.evicted <= 2
    assert told.recordings >= 2


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_recordings_of_training_are_as_many_as_an_option_says(alike):
    """Of the forward, and of the backward."""

    def program(w):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(8, 8), nn.GELU()).cuda()
        f = w.compile(model, dynamic=True)
        for size in (2, 3, 4, 5) * 4:
            y = f(w.values(size, 8))
            y.square().sum().backward()
            yield y, [each.grad for each in model.parameters()]
            model.zero_grad()

    told = alike(program, max_recordings=2)
    assert told.recordings - told.evicted <= 4
    assert told.recordings >= 2
