"""The picture of README is drawn from the figures that are kept."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_pictures_are_current(benchmark_of):
    """Each is what the script draws, and says each figure."""
    pictures = benchmark_of("picture").pictures()
    folder = ROOT / "docs/images"
    assert {path.name for path in folder.iterdir()} == pictures.keys()
    for name, picture in pictures.items():
        assert (folder / name).read_text() == picture
        words = [each.text for each in ET.fromstring(picture).iter() if each.text]
        assert "3,380" in words
        assert "Sapwood" in words


def test_a_longer_time_has_a_longer_bar(benchmark_of):
    """On a scale of powers of ten."""
    place = benchmark_of("picture").place
    steps = [place(10 ** (k + 1)) - place(10**k) for k in range(1, 4)]
    assert max(steps) - min(steps) < 1e-6
    assert steps[0] > 50
