"""Code that asks torch whether a capture is on: the session in progress is told."""

from __future__ import annotations

import threading
from functools import cache

import pytest

from sapwood import CaptureError
from sapwood.tree.watch.session import Session, entered

torch = pytest.importorskip("torch")


@pytest.fixture
def answers(monkeypatch):
    """Have torch's own answer be what this list ends with; yield the list."""
    from sapwood.integrations.torch import asking

    answers = [False]
    for module in (torch._C, torch.cuda.graphs):
        monkeypatch.setattr(module, asking._NAME, lambda: answers[-1])
    if hasattr(torch.cuda.Stream, "is_capturing"):
        ask = lambda _: answers[-1]  # noqa: E731
        monkeypatch.setattr(torch.cuda.Stream, "is_capturing", ask)
    generators = (torch.default_generator,)
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    states = torch.cuda.random
    monkeypatch.setattr(states, "_lazy_call", lambda *_, **__: answers.append("set"))
    notice = cache(asking.notice_askers.__wrapped__)
    monkeypatch.setattr(asking, "notice_askers", notice)
    return answers


WAYS = {
    "torch.cuda": lambda: torch.cuda.is_current_stream_capturing(),
    "torch.cuda.graphs": lambda: torch.cuda.graphs.is_current_stream_capturing(),
    "torch._C": lambda: torch._C._cuda_isCurrentStreamCapturing(),
    "bound before": torch.cuda.is_current_stream_capturing,
}


@pytest.mark.parametrize("way", WAYS)
def test_whoever_asks_is_noticed(answers, way):
    """By any of torch's names, also by one that was bound before."""
    from sapwood.integrations.torch.asking import notice_askers

    notice_askers()
    notice_askers()
    session = Session(tolerant=False)
    with entered(session):
        assert not session.asks
        assert WAYS[way]() is False
        answers.append(True)
        assert WAYS[way]() is True
    assert session.asks


def test_others_get_the_true_answer(answers):
    """Nobody is told, on another thread or outside; only there it is answered for."""
    from sapwood.integrations.torch.asking import notice_askers

    notice_askers()
    session, found = Session(tolerant=False, as_captured=True), []

    def ask():
        found.append(torch.cuda.is_current_stream_capturing())

    ask()
    with entered(session):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        assert not session.asks
        ask()
    ask()
    assert found == [False, False, True, False]
    assert session.asks
    assert answers == [False]


@pytest.mark.usefixtures("answers")
def test_threads_that_work_for_a_watched_function(adapter_of):
    """Autograd's own threads are told by the modes that they are in."""
    from sapwood.integrations.torch.asking import notice_askers
    from sapwood.integrations.torch.watching import Watcher

    notice_askers()
    session = Session(tolerant=False, as_captured=True)
    with Watcher(session, adapter_of("meta").storages_of):
        assert torch.cuda.is_current_stream_capturing()
    assert session.asks
    assert not torch.cuda.is_current_stream_capturing()


def test_reasons_behind_a_question_are_the_captures(adapter_of):
    """A warm-up refuses what it reads before, and not what it reads behind it."""
    from sapwood.integrations.torch.watching import Watcher

    x, storages = torch.zeros(3, device="meta"), adapter_of("meta").storages_of

    def reads(session, *, asks):
        with Watcher(session, storages), pytest.raises(RuntimeError, match="meta"):
            if asks:
                session.asked()
            x.sum().item()
        return session.unrecordable

    assert reads(Session(tolerant=True, rehearses=True), asks=True) is None
    assert reads(Session(tolerant=True, rehearses=True), asks=False) is not None
    assert reads(Session(tolerant=True), asks=True) is not None


SETS = {
    "torch.manual_seed": lambda: torch.manual_seed(7),
    "torch.cuda.manual_seed": lambda: torch.cuda.manual_seed(7),
    "bound before": lambda bound=torch.cuda.manual_seed_all: bound(7),
    "torch.cuda.seed": lambda: torch.cuda.seed(),
}


@pytest.mark.parametrize("way", SETS)
def test_whoever_sets_a_state_is_refused(answers, way):
    """By name, before it is set; outside it is set as ever."""
    from sapwood.integrations.torch.asking import notice_askers

    notice_askers()
    with (
        entered(Session(tolerant=False)),
        pytest.raises(CaptureError, match="generator is set inside"),
    ):
        SETS[way]()
    assert answers == [False]
    SETS[way]()
    assert answers == [False, "set"]


COMES_BY = {
    "item": lambda: torch.cuda.default_generators[0].manual_seed(7),
    "loop": lambda: [each.manual_seed(7) for each in torch.cuda.default_generators],
}


@pytest.mark.usefixtures("answers")
@pytest.mark.parametrize("way", COMES_BY)
def test_a_capture_does_not_come_by_default_generators(way):
    """Their methods set the seed that is set without a word; others come by them."""
    from sapwood.integrations.torch.asking import generator_of, notice_askers

    notice_askers()
    with (
        entered(Session(tolerant=False)),
        pytest.raises(CaptureError, match="generator is set inside"),
    ):
        COMES_BY[way]()
    with entered(Session(tolerant=True, rehearses=True)):
        COMES_BY[way]()
    COMES_BY[way]()
    with entered(Session(tolerant=False)):
        found = generator_of(torch.device("cuda", 0))
    assert found is torch.default_generator
    assert len(torch.cuda.default_generators) == 1
