"""Programs of arrays: chains of ufuncs, reductions, views, dtypes, nests of results."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from tests.integrations.cupy.programs_base import (
    always,
    normal,
    program,
    uniform,
    whole,
    windows,
)


@program()
def black_scholes(xp, rng):
    """European calls and puts, the normal distribution by a rational approximation."""
    strike, years = 20 + 60 * uniform(xp, rng, 512), 0.1 + uniform(xp, rng, 512)

    def phi(d):
        k = 1 / (1 + 0.2316419 * xp.abs(d))
        poly = k * (0.319381530 + k * (-0.356563782 + k * (1.781477937 - k * 1.8212)))
        tail = xp.exp(-d * d / 2) * 0.39894228 * poly
        return xp.where(d > 0, 1 - tail, tail)

    def price(spot, rate, volatility):
        root = volatility * xp.sqrt(years)
        d1 = (xp.log(spot / strike) + (rate + volatility**2 / 2) * years) / root
        d2 = d1 - root
        discounted = strike * xp.exp(-rate * years)
        call = spot * phi(d1) - discounted * phi(d2)
        return {"call": call, "put": call - spot + discounted}

    return price, lambda _: (30 + 40 * uniform(xp, rng, 512), 0.02, 0.3)


@program()
def exponential_average(xp, rng):
    """A state that every call moves towards a new array, in place."""
    mean = xp.zeros((32, 8), np.float32)

    def update(x):
        kept = mean
        kept *= 0.9
        kept += 0.1 * x
        return kept / (1 - 0.9)

    return update, lambda _: (normal(xp, rng, 32, 8),), mean


@program()
def standardised_columns(xp, rng):
    def standardise(x, eps=1e-6):
        mean, var = x.mean(axis=0, keepdims=True), x.var(axis=0, keepdims=True)
        return (x - mean) / xp.sqrt(var + eps), mean[0], var[0]

    return standardise, lambda _: (normal(xp, rng, 100, 16, dtype=np.float64),)


@program()
def all_reductions(xp, rng):
    """Sums, products, extremes, norms and places of them, over each axis."""

    def reduce(x):
        by_axis = [
            (x.sum(axis=a), x.max(axis=a), x.argmin(axis=a), x.std(axis=a))
            for a in range(x.ndim)
        ]
        whole_array = xp.sqrt((x * x).sum()), x.max() - x.min()
        return by_axis, whole_array, (x > 0).any(axis=1), (x > -9).all()

    return reduce, always(normal(xp, rng, 6, 7, 8))


@program()
def pairwise_distances(xp, rng):
    """Broadcast differences of two clouds of points."""

    def distances(a, b):
        between = a[:, None, :] - b[None, :, :]
        squared = (between**2).sum(axis=-1)
        return xp.sqrt(squared), squared.argmin(axis=1)

    targets = normal(xp, rng, 40, 3)
    return distances, lambda _: (normal(xp, rng, 64, 3), targets)


@program()
def windows_of_one_buffer(xp, rng):
    """A signal comes in pieces, each a view of the buffer that holds all of it."""
    buffer = normal(xp, rng, 10 * 1024)
    taps = normal(xp, rng, 5)

    def filtered(piece):
        out = xp.zeros(piece.size - 4, piece.dtype)
        for k in range(5):
            out += taps[k] * piece[k : piece.size - 4 + k]
        return out

    return filtered, windows(buffer, 1024)


@program()
def written_through_views(xp, rng):
    """Strided views of an argument are written; nothing is returned but a part."""

    def stripe(board, ink):
        board[::2, 1::2] += ink
        board[-1, ::-1] = board[0]
        board.T[3:5] *= 0.5
        return board[1:-1, 1:-1]

    board = xp.zeros((16, 12), np.float32)
    return stripe, lambda _: (board, normal(xp, rng, 8, 6))


@program()
def reshaped_and_transposed(xp, rng):
    """Patches of images, as a vision model cuts them, and back again."""

    def patches(images):
        n, h, w, c = images.shape
        cut = images.reshape(n, h // 4, 4, w // 4, 4, c).transpose(0, 1, 3, 2, 4, 5)
        flat = cut.reshape(n, -1, 16 * c)
        back = flat.reshape(cut.shape).swapaxes(2, 3).reshape(images.shape)
        return flat, back, xp.moveaxis(images, -1, 1), images.ravel()[::7]

    return patches, lambda _: (uniform(xp, rng, 2, 16, 16, 3),)


class Moments(NamedTuple):
    first: object
    second: object


@dataclasses.dataclass
class Summary:
    moments: Moments
    extremes: dict
    count: int


@program()
def a_dataclass_of_results(xp, rng):
    """A dataclass holds a named tuple and a dict; one of its fields is no array."""

    def summarise(x):
        moments = Moments(x.mean(axis=1), (x * x).mean(axis=1))
        extremes = {"low": x.min(axis=1), "high": x.max(axis=1)}
        return Summary(moments, extremes, x.shape[1])

    return summarise, lambda _: (normal(xp, rng, 9, 33),)


@program()
def nested_parameters(xp, rng):
    """Arguments in nests, by name; results come from a generator."""

    def layer(params, x):
        hidden = (xp.tanh(x * w + b) for w, b in params["layers"])
        return tuple(h * params["scale"] for h in hidden)

    layers = [(normal(xp, rng, 20), normal(xp, rng, 20)) for _ in range(3)]
    params = {"layers": layers, "scale": 0.5}
    return layer, lambda _: {"x": normal(xp, rng, 4, 20), "params": params}


@program()
def its_own_argument(xp, rng):
    """What comes back is the argument itself, a view of it, and a copy."""

    def clip_in_place(x, low, high):
        xp.clip(x, low, high, out=x)
        x *= 1.01
        return x, x[2:5], x.copy()

    x = normal(xp, rng, 50, dtype=np.float64)
    return clip_in_place, always(x, -1.5, 1.5)


@program()
def half_precision_loss_scaling(xp, rng):
    """Gradients of 16 bits, unscaled in 32, that count where they overflow."""

    def unscale(grad, scale):
        wide = grad.astype(np.float32) / scale
        bad = ~xp.isfinite(wide)
        return xp.where(bad, np.float32(0), wide).astype(np.float16), bad.sum()

    return unscale, lambda _: (normal(xp, rng, 64, 16, dtype=np.float16), 1024.0)


@program()
def complex_rotations(xp, rng):
    """Phasors that are turned in place, and what can be read off them."""
    turn = xp.exp(1j * xp.arange(32) * 0.1)

    def rotate(z):
        z *= turn
        return z.real + z.imag, xp.abs(z), xp.angle(z), z.conj() * z

    return rotate, always(normal(xp, rng, 4, 32, dtype=np.complex128))


@program()
def xorshift(xp, rng):
    """A generator of random bits that anybody writes: shifts of unsigned words."""

    def draw(state):
        state ^= state << np.uint32(13)
        state ^= state >> np.uint32(17)
        state ^= state << np.uint32(5)
        return (state >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)

    return draw, always(whole(xp, rng, 1, 2**31, 256, np.uint32))


@program()
def bits_of_floats(xp, rng):
    """The inverse root that a game made famous: floats seen as whole numbers."""

    def inverse_root(x):
        bits = np.int32(0x5F3759DF) - (x.view(np.int32) >> 1)
        y = bits.view(np.float32)
        for _ in range(2):
            y = y * (1.5 - 0.5 * x * y * y)
        return y

    return inverse_root, lambda _: (uniform(xp, rng, 300) + 0.5,)


@program(skips="on the host", either=True)
def masks_and_logic(xp, rng):
    """Votes of boolean arrays; where none is for it, a value is written by a mask."""

    def vote(a, b, c, values):
        majority = (a & b) | (b & c) | (a & c)
        odd = xp.logical_xor(a, xp.logical_xor(b, c))
        values[majority & ~odd] = 7
        return majority, odd, xp.count_nonzero(majority, axis=0), values * odd

    def arguments(_):
        votes = [whole(xp, rng, 0, 2, (5, 40), np.bool_) for _ in range(3)]
        return *votes, whole(xp, rng, 0, 5, (5, 40), np.int64)

    return vote, arguments


class Adam:
    """An optimiser whose moments and weights are attributes."""

    def __init__(self, xp, weights):
        self.xp, self.weights, self.rate = xp, weights, 1e-2
        self.m, self.v = xp.zeros_like(weights), xp.zeros_like(weights)
        self.steps = xp.zeros((), np.float32)

    def step(self, grad):
        self.steps += 1
        self.m *= 0.9
        self.m += 0.1 * grad
        self.v[...] = 0.999 * self.v + 0.001 * grad**2
        m = self.m / (1 - 0.9**self.steps)
        v = self.v / (1 - 0.999**self.steps)
        self.weights -= self.rate * m / (self.xp.sqrt(v) + 1e-8)


@program()
def adam_of_attributes(xp, rng):
    """The function is a method; it returns nothing."""
    adam = Adam(xp, normal(xp, rng, 200))
    state = [adam.weights, adam.m, adam.v, adam.steps]
    return adam.step, lambda _: (normal(xp, rng, 200),), state


@program()
def a_plain_number_per_call(xp, rng):
    """A number that changes once: each of its values has recordings of its own."""

    def scaled(x, power):
        return x * 2**power + xp.full(x.shape, power, x.dtype)

    return scaled, lambda i: (normal(xp, rng, 31), 0 if i < 1 else 3)


@program()
def shapes_made_inside(xp, rng):
    """Grids, identities and ramps that the function makes, of no argument."""

    def field(phase):
        ys, xs = xp.meshgrid(xp.linspace(-1, 1, 24), xp.arange(32) / 16 - 1)
        wave = xp.sin(6 * xp.hypot(xs, ys) + phase)
        square = wave[:24, :24] * xp.tri(24) + xp.eye(24) + xp.ones((24, 1))
        return wave, square, xp.diag(square), xp.zeros(3, np.int8)

    return field, lambda _: (normal(xp, rng, 1, dtype=np.float64),)


@program()
def joined_and_split(xp, rng):
    """Arrays that are stacked, tiled, padded, rolled and cut again."""

    def mix(a, b):
        rows = xp.concatenate([a, b[:2], a[::-1]], axis=0)
        layers = xp.stack((a, b), axis=-1)
        padded = xp.pad(a, ((1, 1), (2, 2)), mode="edge")
        rolled = xp.roll(padded, (1, -2), axis=(0, 1))
        halves = xp.split(rolled, 2, axis=1)
        return rows, layers, halves, xp.tile(b, (2, 1)), xp.repeat(a, 3, axis=1)

    return mix, lambda _: (normal(xp, rng, 4, 6), normal(xp, rng, 4, 6))


@program(gpu_only=True)
def blurred_edges(xp, rng):
    """Filters whose weights are computed on the host, of a plain number."""
    from cupyx.scipy import ndimage

    def edges(image, sigma):
        smooth = ndimage.gaussian_filter(image, sigma)
        return xp.hypot(ndimage.sobel(smooth, 0), ndimage.sobel(smooth, 1))

    return edges, lambda _: (uniform(xp, rng, 32, 48), 1.5)


@program()
def several_percentiles(xp, rng):
    """A list of what is asked for, which becomes an array."""
    return (
        lambda x: xp.percentile(x, [25, 50, 75], axis=0),
        lambda _: (normal(xp, rng, 32, 8, dtype=np.float64),),
    )


@program()
def a_cached_table(xp, rng):
    """Twiddles that a first call computes for each length, and later ones find."""

    @functools.cache
    def table(n):
        at = xp.arange(n, dtype=np.float64)
        return xp.cos(at[:, None] * at * (2 * np.pi / n))

    def transform(x):
        return table(x.shape[0]) @ x

    return transform, lambda i: (normal(xp, rng, 8 + i // 8, 3, dtype=np.float64),)


@program(skips="neither an argument nor reachable", either=True)
def a_spectrum_of_a_prime_length(xp, rng):
    """A transform whose plan reads a table that cuFFT allocates and tells nobody of."""

    def spectrum(x):
        return xp.abs(xp.fft.fft(x, axis=-1)) ** 2

    return spectrum, lambda _: (normal(xp, rng, 4, 1021, dtype=np.complex128),)


@program()
def a_state_bound_anew(xp, rng):
    """A filter whose two states are new arrays after each call, results kept."""
    z = [xp.zeros(4), xp.zeros(4)]

    def step(x):
        y = 0.2 * x + z[0]
        z[0] = 0.3 * x + 0.4 * y + z[1]
        z[1] = 0.2 * x - 0.1 * y
        return y

    return step, lambda _: (normal(xp, rng, 4, dtype=np.float64),), z
