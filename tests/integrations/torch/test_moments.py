"""When stages were used last, by numbers that torch notes; or that it is unknown."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

STREAM, OTHER = 7, 9


class Stage:
    """Room for an input."""

    def __init__(self, address=64):
        self.address, self.size = address, 8


class Allocator:
    """What stands for torch's: it notes what it is told, by thread, with its events."""

    def __init__(self):
        self.notes, self.thread = {0: "mine"}, 0
        self.stream = STREAM
        self.events = []

    @property
    def note(self):
        return self.notes.get(self.thread, "")

    @note.setter
    def note(self, note):
        self.notes[self.thread] = note

    def __getattr__(self, name):
        return {
            "_cuda_getMemoryMetadata": lambda: self.note,
            "_cuda_setMemoryMetadata": lambda note: setattr(self, "note", note),
            "_cuda_getCurrentRawStream": {3: self.stream}.__getitem__,
        }[name]

    def allocate(self):
        self.events.append({"action": "alloc", "user_metadata": self.note})
        return len(self.events) - 1


@pytest.fixture(scope="module")
def following():
    """Return what follows stages beside an allocator of its own."""
    from sapwood.integrations.torch import moments

    def following(*stages, allocator=None):
        allocator = allocator or Allocator()
        moments._C = allocator
        made = moments.Moments(stages, STREAM, 3)
        made.begin()
        return made, allocator

    before = moments._C
    yield following
    moments._C = before


@given(st.lists(st.sampled_from(["allocate", "use 0", "use 1", "other"]), max_size=30))
def test_a_stage_is_in_use_until_what_is_allocated_next(following, deeds):
    """Not to the event before its last use, and not beyond the one behind it."""
    stages = Stage(64), Stage(128)
    moments, allocator = following(*stages)
    last = [0, 0]
    for deed in deeds:
        if deed == "allocate":
            allocator.allocate()
        elif deed == "other":
            moments.passed([(Stage(), True)])
        else:
            which = int(deed[-1])
            moments.passed([(stages[which], False), (Stage(), True)])
            last[which] = len(allocator.events)
    moments.end()
    assert allocator.note == "mine"
    found = moments.lives(stages, allocator.events)
    assert [life.died for life in found] == last
    assert [(life.lo, life.hi) for life in found] == [(64, 72), (128, 136)]
    assert all(life.born < 0 for life in found)


@pytest.mark.parametrize("how", ["written", "elsewhere"])
def test_what_may_be_used_for_longer_is_in_use_to_the_end(following, how):
    """It is written, or used in an order not the allocator's; once is enough."""
    first, second = Stage(64), Stage(128)
    moments, allocator = following(first, second)
    allocator.stream = OTHER if how == "elsewhere" else STREAM
    moments.passed([(first, how == "written")])
    allocator.stream = STREAM
    allocator.allocate()
    moments.passed([(first, False), (second, False)])
    allocator.allocate()
    lives = moments.lives([first, second], allocator.events)
    assert [life.died for life in lives] == [None, 1]
    assert moments.lives([first], allocator.events) == []


@pytest.mark.parametrize("note", [None, "", "mine", "-1", "sapwood", "sapwood -1"])
def test_events_without_a_number_tell_of_nothing(following, note):
    """Other threads were told of none: what they allocate ends no life."""
    stage = Stage()
    moments, allocator = following(stage)
    event = {} if note is None else {"user_metadata": note}
    allocator.events.append(event)
    moments.passed([(stage, False)])
    allocator.events += [event, event]
    (life,) = moments.lives([stage], allocator.events)
    assert life.died == 3
    last = allocator.allocate()
    allocator.events.append(event)
    (life,) = moments.lives([stage], allocator.events)
    assert life.died == last == 3


@pytest.mark.parametrize("uses", [1, 3, 8])
def test_another_thread_remembers_a_capture_before(following, uses):
    """Autograd's has numbers of its own still, until it is told others."""
    stage = Stage()
    before, allocator = following(stage)
    allocator.thread = 1
    for _ in range(uses):
        before.passed([(stage, False)])
    allocator.thread = 0
    before.end()
    moments, _ = following(stage, allocator=allocator)
    allocator.allocate()
    moments.passed([(stage, False)])
    allocator.allocate()
    allocator.thread = 1
    for _ in range(uses):
        allocator.allocate()
    moments.passed([(stage, False)])
    last = allocator.allocate()
    allocator.thread = 0
    allocator.allocate()
    moments.end()
    (life,) = moments.lives([stage], allocator.events)
    assert life.died == last


@pytest.mark.parametrize("note", ["0", "1", "99", "a sapwood 99", "sapwood 99 b"])
def test_numbers_of_others_tell_of_nothing(following, note):
    """What the function tells torch itself is none of ours, before or after a use."""
    stage = Stage()
    moments, allocator = following(stage)
    allocator.note = note
    allocator.allocate()
    moments.passed([(stage, False)])
    allocator.note = note
    allocator.allocate()
    moments.passed([])
    (life,) = moments.lives([stage], allocator.events)
    assert life.died == 2
    moments.passed([(stage, False)])
    (life,) = moments.lives([stage], allocator.events)
    assert life.died == 2
    allocator.allocate()
    allocator.allocate()
    (life,) = moments.lives([stage], allocator.events)
    assert life.died == 2


def test_what_has_not_begun_takes_nothing_back(following):
    """A capture may fail before it begins."""
    moments, allocator = following(Stage())
    moments.end()
    assert allocator.note == "mine"
    unbegun = type(moments)([Stage()], STREAM, 3)
    allocator.note = "another"
    unbegun.end()
    assert allocator.note == "another"


def test_where_torch_takes_no_notes_nothing_is_known(following):
    """Older ones do not; nor is a stage known that nobody follows."""
    stage = Stage()
    moments, _ = following(stage, allocator=SimpleNamespace())
    moments.passed([(stage, False)])
    moments.end()
    assert moments.lives([stage], []) == []
    moments, allocator = following(stage)
    assert moments.lives([Stage()], allocator.events) == []


def test_nothing_is_noted_where_nothing_is_followed(following):
    """The user's own notes are left alone."""
    moments, allocator = following()
    moments.passed([(Stage(), False)])
    assert allocator.note == "mine"
    moments.end()
    assert allocator.note == "mine"


# What is lent to compiled graphs.


@pytest.fixture
def lending(following, adapter_of):
    """Return moments that follow the storage of a tensor, and what lends it."""
    integration = adapter_of("cpu")
    tensor = torch.arange(6.0).view(2, 3).t()
    stage = integration.look(tensor).storage
    moments, allocator = following(stage)
    return SimpleNamespace(
        moments=moments,
        allocator=allocator,
        tensor=tensor,
        storages=integration.storages_of,
        lend=lambda each: moments.lend(integration.storages_of, each),
        died=lambda: [life.died for life in moments.lives([stage], allocator.events)],
        stage=stage,
    )


def test_what_is_lent_is_like_the_tensor_and_known_as_its_storage(lending):
    """It lies where that lies, and is no more known when it is gone."""
    lent, known = lending.lend(lending.tensor), len(lending.storages)
    assert lent.untyped_storage()._cdata != lending.tensor.untyped_storage()._cdata
    assert lent.data_ptr() == lending.tensor.data_ptr()
    assert (lent.shape, lent.stride()) == ((3, 2), lending.tensor.stride())
    assert torch.equal(lent, lending.tensor)
    assert lending.storages.of(lent) is lending.stage
    del lent
    assert len(lending.storages) == known - 1
    assert lending.storages.of(lending.tensor) is lending.stage


def test_a_stage_is_in_use_while_what_was_lent_is_there(lending):
    """Views of it count; until it is gone, nothing is known."""
    lent = lending.lend(lending.tensor)
    lending.allocator.allocate()
    view = lent[1:]
    del lent
    lending.allocator.allocate()
    assert lending.died() == []
    del view
    born = lending.allocator.allocate()
    assert lending.died() == [born]


def test_what_goes_after_the_capture_may_have_been_used_to_its_end(lending):
    """Nobody says when."""
    lent = lending.lend(lending.tensor)
    lending.allocator.allocate()
    lending.moments.end()
    del lent
    assert lending.died() == []


def test_what_goes_elsewhere_was_used_in_another_order(lending):
    """As what autograd's thread lets go of, on a stream of its own."""
    lent = lending.lend(lending.tensor)
    lending.allocator.stream = OTHER
    del lent
    lending.allocator.stream = STREAM
    lending.allocator.allocate()
    assert lending.died() == []


def test_others_are_lent_as_they_are(lending):
    """What nobody follows, and what its bytes do not say."""
    other = torch.ones(3)
    assert lending.lend(other) is other
    lazy = torch._neg_view(lending.tensor)
    assert lending.lend(lazy) is lazy
