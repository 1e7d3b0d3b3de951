"""Events are plain frozen records."""

from __future__ import annotations

import dataclasses
import json
from typing import get_args

import pytest

from sapwood import events
from sapwood.events import Event


def _sample(kind: type) -> Event:
    values = {"str": "text", "int": 1, "Size": 1}
    return kind(*(values[field.type] for field in dataclasses.fields(kind)))


def test_every_event_is_in_the_sum():
    """`Event` is the sum of all public event records."""
    assert {kind.__name__ for kind in get_args(Event)} == {
        name
        for name, value in vars(events).items()
        if dataclasses.is_dataclass(value) and not name.startswith("_")
    }


@pytest.mark.parametrize("kind", get_args(Event), ids=lambda kind: kind.__name__)
def test_an_event_is_frozen_and_plain(kind):
    """An event cannot change, can be counted in a set, and is plain for JSON."""
    event = _sample(kind)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(event, dataclasses.fields(kind)[0].name, "other")
    assert {event, _sample(kind)} == {event}
    assert json.loads(json.dumps(dataclasses.asdict(event)))
