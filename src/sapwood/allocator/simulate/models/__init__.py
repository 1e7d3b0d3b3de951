"""Small, independent models of other allocators, to compare ours with.

They are written from what is published about the behaviour of the originals, not
from ours, with which they share but the sizes of PyTorch's blocks; each fits on a page.
"""
