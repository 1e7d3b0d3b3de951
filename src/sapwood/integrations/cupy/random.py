"""Random numbers whose whole state is on the GPU.

The stream is that of ``numpy.random.Generator(numpy.random.Philox(seed))``; a replay
goes on where the last one ended. Uniform numbers only.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import cupy
import numpy as np

from sapwood.errors import MisuseError
from sapwood.integrations.cupy.array import Array, from_host
from sapwood.integrations.cupy.memory import Place
from sapwood.integrations.strided import WORDS, state_words
from sapwood.memory.device import Device

_THREADS: Final = 256
_SOURCE: Final = r"""
typedef unsigned long long word;

// The state: counter (4), key (2), buffer (4), place in the buffer, whether half a word
// is kept, and that half.
__device__ void block(const word* state, word ahead, word* out) {
  word c[4] = {state[0], state[1], state[2], state[3]}, k0 = state[4], k1 = state[5];
  word before = c[0];
  c[0] += ahead;
  for (int i = 1; i < 4 && c[i - 1] < before; ++i) before = c[i]++;
  for (int round = 0; round < 10; ++round) {
    if (round) { k0 += 0x9E3779B97F4A7C15ull; k1 += 0xBB67AE8584CAA73Bull; }
    const word a = 0xD2E7470EE14C6C93ull, b = 0xCA5A826395121157ull;
    word h0 = __umul64hi(a, c[0]), l0 = a * c[0];
    word h1 = __umul64hi(b, c[2]), l1 = b * c[2];
    c[0] = h1 ^ c[1] ^ k0; c[1] = l1; c[2] = h0 ^ c[3] ^ k1; c[3] = l0;
  }
  for (int i = 0; i < 4; ++i) out[i] = c[i];
}

__device__ word nth(const word* state, word i) {
  word left = 4 - state[10], four[4];
  if (i < left) return state[6 + state[10] + i];
  block(state, 1 + (i - left) / 4, four);
  return four[(i - left) % 4];
}

extern "C" __global__ void doubles(double* out, const word* state, word count,
                                   double low, double range) {
  word i = blockIdx.x * (word)blockDim.x + threadIdx.x;
  if (i >= count) return;
  double unit = (nth(state, i) >> 11) * (1.0 / 9007199254740992.0);
  out[i] = __dadd_rn(low, __dmul_rn(range, unit));
}

extern "C" __global__ void floats(float* out, const word* state, word count) {
  word i = blockIdx.x * (word)blockDim.x + threadIdx.x;
  if (i >= count) return;
  word kept = state[11], half;
  if (i < kept) half = state[12];
  else { word w = nth(state, (i - kept) / 2); half = (i - kept) % 2 ? w >> 32 : w; }
  out[i] = ((unsigned)half >> 8) * (1.0f / 16777216.0f);
}

// Runs behind the draw, by one thread.
extern "C" __global__ void advance(word* state, word count, word halves) {
  word words = count, kept = state[11];
  if (halves) {
    word fresh = count > kept ? count - kept : 0;
    words = (fresh + 1) / 2;
    if (words) state[12] = nth(state, words - 1) >> 32;
    if (count) state[11] = fresh % 2;
  }
  word left = 4 - state[10];
  if (words <= left) { state[10] += words; return; }
  word blocks = (words - left + 3) / 4, four[4];
  block(state, blocks, four);
  word before = state[0];
  state[0] += blocks;
  for (int i = 1; i < 4 && state[i - 1] < before; ++i) before = state[i]++;
  for (int i = 0; i < 4; ++i) state[6 + i] = four[i];
  state[10] = words - left - 4 * (blocks - 1);
}
"""
_NUMPYS: Final = frozenset(dir(np.random.Generator)) - {"bit_generator", "spawn"}
_DRAWS: Final = {np.dtype(np.float64): "doubles", np.dtype(np.float32): "floats"}


class Generator:
    """A generator over ``state``, a device array of 13 words (``uint64``).

    It draws uniform numbers. Other methods of NumPy's generators raise `MisuseError`.
    """

    __slots__ = ("__weakref__", "state")

    def __init__(self, state: Array) -> None:
        if state.shape != (WORDS,) or state.dtype != np.uint64:
            raise TypeError(
                f"a generator's state is {WORDS} words of uint64, not "
                f"{state.dtype}{list(state.shape)}; make one with rt.generator(seed)"
            )
        self.state = state

    def random(self, size: Any = None, dtype: Any = np.float64) -> Array:
        """Return uniform floats in [0, 1), float32 or float64."""
        kind = np.dtype(dtype)
        if kind not in _DRAWS:
            raise TypeError(f"random() draws float32 or float64, not {kind}")
        return self._draw(kind, size, (0.0, 1.0))

    def uniform(self, low: float = 0.0, high: float = 1.0, size: Any = None) -> Array:
        """Return uniform float64 in [low, high)."""
        return self._draw(np.dtype(np.float64), size, (low, high - low))

    def _draw(self, dtype: Any, size: Any, span: tuple[float, float]) -> Array:
        shape = () if size is None else size
        out: Array = cupy.empty(shape, dtype).view(Array)
        count, state = np.uint64(out.size), self.state
        halves = dtype == np.float32
        if out.size:
            grid = (-(-out.size // _THREADS),)
            scaled = () if halves else tuple(map(np.float64, span))
            _kernel(_DRAWS[dtype])(grid, (_THREADS,), (out, state, count, *scaled))
            _kernel("advance")((1,), (1,), (state, count, np.uint64(halves)))
        return out

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name in _NUMPYS:
            raise MisuseError(
                f"generators on CUDA draw uniform numbers, there is no {name}() yet. "
                "Make it of random(), or draw on the host and pass it in"
            )
        raise AttributeError(name)

    def __repr__(self) -> str:
        return f"<Generator Philox, state at {self.state.data.ptr:#x}>"


@cache
def _kernel(name: str) -> Any:
    return cupy.RawKernel(_SOURCE, name)


def seeded(device: Device, place: Place, seed: Any = None) -> Generator:
    """Return a generator seeded as ``numpy.random.Philox(seed)``."""
    return Generator(from_host(device, place, state_words(np.random.Philox(seed))))
