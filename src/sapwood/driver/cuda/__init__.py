"""NVIDIA GPUs, through the driver API of CUDA 13.0 and nothing newer.

Needs ``sapwood[cuda]``, imported when a device is opened and not before.
"""

from sapwood.driver.cuda.device import Cuda
from sapwood.driver.cuda.kernels import declare_pointers, declare_unread

__all__ = ["Cuda", "declare_pointers", "declare_unread"]
