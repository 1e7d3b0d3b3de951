"""A device for machines without a GPU, and for tests that hardware is too lenient for.

Memory is real virtual memory, kernels are registered Python functions over packed
parameter bytes, and a schedule decides when work runs.
"""

from sapwood.driver.emulated.device import Emulated
from sapwood.driver.emulated.kernels import Kernel, register_module
from sapwood.driver.emulated.physical import POISON

__all__ = ["POISON", "Emulated", "Kernel", "register_module"]
