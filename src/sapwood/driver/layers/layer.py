"""What all layers are: drivers that pass every call on to another."""

from __future__ import annotations

from sapwood.driver.api import Driver
from sapwood.driver.facade import Facade

__all__ = ["Layer"]


class Layer(Facade):
    """A driver that passes every call on to ``driver``, through `around`."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver, driver.abilities)
        self.driver = driver
