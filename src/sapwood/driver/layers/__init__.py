"""Layers wrap any driver and are drivers: they check, count, or make calls fail."""

from sapwood.driver.facade import Layer
from sapwood.driver.layers.checked import Checked
from sapwood.driver.layers.faulty import Faulty
from sapwood.driver.layers.recorded import Recorded

__all__ = ["Checked", "Faulty", "Layer", "Recorded"]
