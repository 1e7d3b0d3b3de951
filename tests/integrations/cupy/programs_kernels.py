"""Programs of kernels that users write, of sorts, indices and constants, of images."""

from __future__ import annotations

import numpy as np

from tests.integrations.cupy.programs_base import (
    always,
    normal,
    program,
    uniform,
    whole,
)

GAMMA = np.sqrt(np.arange(256) / 255)
"""A table that images are looked up in."""

COLUMNS = [3, 0, 1]

SHIFT = r"""
extern "C" __global__ void shifted(const float* x, float* out, float by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] += by * x[(i + 1) % n];
}
"""
SUMS = r"""
template <typename T> __global__ void sums(const T* x, T* out) {
  __shared__ T part[64];
  part[threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x];
  for (int half = 32; half; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
  }
  if (!threadIdx.x) out[blockIdx.x] = part[0];
}
"""


@program(gpu_only=True)
def an_elementwise_kernel(xp, rng):
    """Two outputs of one kernel, of which one is an argument that is written."""
    kernel = xp.ElementwiseKernel(
        "T x, T y, float32 a",
        "T z, T w",
        "z = a * x + y; w = x > y ? x : w",
        "axpy_and_larger",
    )

    def apply(x, y, kept):
        z, _ = kernel(x, y, 1.5, xp.empty_like(x), kept)
        return z - y

    y, kept = normal(xp, rng, 8, 9), xp.zeros((8, 9), np.float32)
    return apply, lambda _: (normal(xp, rng, 8, 9), y, kept)


@program(gpu_only=True)
def a_stencil_of_raw_arguments(xp, rng):
    """A kernel that indexes its neighbours by itself, in a ring."""
    kernel = xp.ElementwiseKernel(
        "raw T x, int64 n",
        "T y",
        "y = x[(i + 1) % n] - 2 * x[i] + x[(i + n - 1) % n]",
        "ring",
    )

    def diffuse(x):
        for _ in range(3):
            x += 0.2 * kernel(x, x.size, size=x.size)
        return x.max()

    return diffuse, always(normal(xp, rng, 100, dtype=np.float64))


@program(gpu_only=True)
def a_reduction_kernel(xp, rng):
    norm = xp.ReductionKernel(
        "T x, T y", "T z", "abs(x - y)", "max(a, b)", "z = a", "0", "farthest"
    )

    def farthest(x, y):
        return norm(x, y, axis=1), norm(x, y), norm(x.T, y.T, axis=0, keepdims=True)

    return farthest, lambda _: (normal(xp, rng, 20, 30), normal(xp, rng, 20, 30))


@program(gpu_only=True)
def a_raw_kernel(xp, rng):
    """A kernel in CUDA's language adds to what it is given, twice."""
    kernel = xp.RawKernel(SHIFT, "shifted")

    def shift(x):
        out = xp.zeros_like(x)
        for by in (1.0, -0.5):
            size = np.int32(x.size)
            kernel((3,), (64,), (x, out, np.float32(by), size))
        return out

    return shift, lambda _: (normal(xp, rng, 150),)


@program(gpu_only=True)
def a_raw_module(xp, rng):
    """A template of a module, with shared memory: sums of blocks, then of those."""
    options = {"options": ("-std=c++17",), "name_expressions": ["sums<double>"]}
    kernel = xp.RawModule(code=SUMS, **options).get_function("sums<double>")

    def total(x, parts):
        kernel((64,), (64,), (x, parts))
        out = xp.empty(1, np.float64)
        kernel((1,), (64,), (parts, out))
        return out

    parts = xp.zeros(64)
    return total, lambda _: (normal(xp, rng, 4096, dtype=np.float64), parts)


@program(gpu_only=True)
def fused(xp, rng):
    """A chain of ufuncs in one kernel, and one with a sum at its end."""

    @xp.fuse()
    def swish(x, slope):
        return x / (1 + xp.exp(-slope * x))

    @xp.fuse(kernel_name="energy")
    def energy(x):
        return xp.sum(x * x + 1, axis=1)

    def apply(x):
        y = swish(x, 1.7)
        return y, energy(y)

    return apply, lambda _: (normal(xp, rng, 12, 40),)


@program(gpu_only=True)
def a_kernel_of_python(xp, rng):
    """A kernel that is compiled of Python when it is first called."""
    from cupyx import jit

    @jit.rawkernel()
    def blend(x, y, out, share, size):
        start = jit.blockIdx.x * jit.blockDim.x + jit.threadIdx.x
        step = jit.gridDim.x * jit.blockDim.x
        for k in range(start, size, step):
            out[k] = share * x[k] + y[k]

    def apply(x, y):
        out = xp.empty_like(x)
        blend((2,), (64,), (x, y, out, np.float32(0.3), np.uint32(x.size)))
        return out

    return apply, lambda _: (normal(xp, rng, 300), normal(xp, rng, 300))


@program()
def vectorized(xp, rng):
    """A function of two numbers, made one of arrays."""

    @xp.vectorize
    def shrink(a, b):
        if a > b:
            return a - b
        if a < -b:
            return a + b
        return a - a

    def threshold(x):
        return shrink(x, np.float32(0.25)), shrink(x, xp.abs(x[::-1]))

    return threshold, lambda _: (normal(xp, rng, 90),)


@program()
def lists_of_indices(xp, rng):
    """Rows and columns by lists, written down, named, and written to."""

    def pick(x):
        x[[0, 5]] = x[[5, 0]]
        x[1, [2, 4]] += 1
        return x[:, [0, 2]], x[[1, 0]], x[:, COLUMNS], x[[2, 1, 2], [0, 0, 3]]

    return pick, always(normal(xp, rng, 6, 5))


@program()
def constants_made_inside(xp, rng):
    """Arrays of lists, of numbers and of a table of the host's, in every call."""

    def apply(x):
        mix = xp.array([[0.299, 0.587, 0.114], [0.5, -0.4, -0.1], [-0.2, -0.3, 0.5]])
        offset = xp.asarray([0.0, 0.5, 0.5], dtype=np.float64)
        channels = (x[:, :, None, :] * mix).sum(axis=-1) + offset
        ramp = xp.arange(0, 256, 16)
        return channels, xp.asarray(GAMMA)[ramp], xp.array(3.0) * ramp

    return apply, lambda _: (uniform(xp, rng, 7, 8, 3, dtype=np.float64),)


@program()
def looked_up_in_a_table(xp, rng):
    """Bytes of images as indices of a table, and where they are brightest."""
    table = xp.asarray((255 * GAMMA).astype(np.uint8))

    def correct(image):
        bright = table[image]
        flat = bright.reshape(len(image), -1)
        return bright, flat.argmax(axis=1), table.take(image[0], axis=0)

    return correct, lambda _: (whole(xp, rng, 0, 256, (3, 20, 20), np.uint8),)


@program()
def sorted_and_ranked(xp, rng):
    """Ranks by two sorts, the values between, and a sum that runs in their order."""

    def rank(x, marks):
        order = xp.argsort(x)
        ranks = xp.empty_like(order)
        ranks[order] = xp.arange(x.size)
        ascending = xp.sort(x)
        share = xp.cumsum(ascending) / ascending.sum()
        return (
            ranks,
            xp.searchsorted(ascending, marks),
            share,
            xp.digitize(marks, marks),
        )

    marks = xp.asarray(np.linspace(0.1, 0.9, 9))
    return rank, lambda _: (uniform(xp, rng, 500, dtype=np.float64), marks)


@program()
def sorts_of_dtypes(xp, rng):
    """Sorts along both axes, of floats, integers, and of what is not contiguous."""

    def sort(x, n):
        n.sort(axis=0)
        return xp.sort(x, axis=0), xp.sort(x[:, ::2], axis=1)[:, ::-1], n[-1], n.copy()

    def arguments(_):
        return normal(xp, rng, 30, 20), whole(xp, rng, -99, 99, (25, 10), np.int16)

    return sort, arguments


@program()
def choices(xp, rng):
    """One of several arrays for each element: choose, select, where, clip."""

    def pick(which, a, b, c):
        chosen = xp.choose(which, xp.stack([a, b, c]))
        selected = xp.select([a > 0.5, b > 0], [a, b * 2], default=-1.0)
        clipped = xp.clip(c, xp.minimum(a, b), xp.maximum(a, b))
        return chosen, selected, xp.where(which == 1, clipped, 0), xp.sign(a) * clipped

    def arguments(_):
        three = [normal(xp, rng, 6, 9, dtype=np.float64) for _ in range(3)]
        return whole(xp, rng, 0, 3, (6, 9)), *three

    return pick, arguments


@program()
def edges_of_images(xp, rng):
    """Sobel's operator by slices, thinned where a neighbour along it is stronger."""

    def edges(image, threshold):
        p = xp.pad(image, ((0, 0), (1, 1), (1, 1)), mode="reflect")
        smooth = p[:, :-2] + 2 * p[:, 1:-1] + p[:, 2:]
        across = smooth[:, :, 2:] - smooth[:, :, :-2]
        smooth = p[:, :, :-2] + 2 * p[:, :, 1:-1] + p[:, :, 2:]
        down = smooth[:, 2:] - smooth[:, :-2]
        size = xp.hypot(across, down)
        left, right = xp.roll(size, 1, 2), xp.roll(size, -1, 2)
        thin = (size >= left) & (size >= right) & (size > threshold)
        return thin, size * thin, xp.arctan2(down, across + 1e-3)

    return edges, lambda _: (uniform(xp, rng, 2, 18, 22), 0.8)


@program()
def resampled_images(xp, rng):
    """Bilinear samples at places that a matrix turns the grid to."""
    grid = xp.stack(xp.meshgrid(xp.arange(16.0), xp.arange(16.0), indexing="ij"))

    def sample(image, turn):
        y, x = xp.einsum("ij,jhw->ihw", turn, grid - 7.5) + 7.5
        y, x = xp.clip(y, 0, 14.99), xp.clip(x, 0, 14.99)
        top, left = xp.floor(y).astype(np.int64), xp.floor(x).astype(np.int64)
        dy, dx = y - top, x - left
        upper = image[top, left] * (1 - dx) + image[top, left + 1] * dx
        lower = image[top + 1, left] * (1 - dx) + image[top + 1, left + 1] * dx
        return upper * (1 - dy) + lower * dy

    def arguments(_):
        return uniform(xp, rng, 16, 16), normal(xp, rng, 2, 2, dtype=np.float64)

    return sample, arguments


@program()
def equalised_histograms(xp, rng):
    """Counts of levels by comparison, their running sum, and a look-up in it."""

    def equalise(image):
        levels = xp.arange(32, dtype=image.dtype)
        counts = (image.ravel()[:, None] == levels).sum(axis=0)
        share = xp.cumsum(counts) / image.size
        return share[image], counts, xp.cumprod(1 + share[::8])

    return equalise, lambda _: (whole(xp, rng, 0, 32, (24, 24), np.uint8),)


@program()
def bollinger_bands(xp, rng):
    """Moving means and deviations by differences of running sums."""

    def bands(prices, span):
        zero = xp.zeros((len(prices), 1))
        sums = xp.cumsum(xp.concatenate([zero, prices], axis=1), axis=1)
        squares = xp.cumsum(xp.concatenate([zero, prices**2], axis=1), axis=1)
        mean = (sums[:, span:] - sums[:, :-span]) / span
        var = (squares[:, span:] - squares[:, :-span]) / span - mean**2
        width = 2 * xp.sqrt(xp.maximum(var, 0))
        late = prices[:, span - 1 :]
        signals = (late > mean + width).astype(np.int8) - (late < mean - width)
        return mean, mean - width, mean + width, xp.diff(signals, axis=1)

    return bands, lambda _: (10 + normal(xp, rng, 5, 80, dtype=np.float64), 20)


@program(gpu_only=True)
def special_functions(xp, rng):
    """Distributions by special functions, and a softmax of CuPy's own."""
    from cupyx.scipy import special

    def densities(x, a):
        gamma = xp.exp((a - 1) * xp.log(x) - x - special.gammaln(a))
        normal_share = special.ndtr(x) + special.erf(x) * special.expit(-x)
        return gamma, normal_share, special.logsumexp(x, axis=1)

    def arguments(_):
        x = 0.1 + uniform(xp, rng, 9, 30, dtype=np.float64)
        return x, 1 + uniform(xp, rng, 30, dtype=np.float64)

    return densities, arguments


@program(gpu_only=True)
def a_filter_of_an_image(xp, rng):
    """A convolution whose weights are an array on the device."""
    from cupyx.scipy import ndimage

    weights = uniform(xp, rng, 3, 5)

    def sharpen(image):
        blurred = ndimage.convolve(image, weights / weights.sum(), mode="nearest")
        return image + 0.5 * (image - blurred)

    return sharpen, lambda _: (uniform(xp, rng, 32, 40),)


@program(gpu_only=True)
def a_convolution_of_signals(xp, rng):
    from cupyx.scipy import signal

    taps = normal(xp, rng, 33, dtype=np.float64)

    def convolve(x):
        return signal.fftconvolve(x, taps, mode="same")

    return convolve, lambda _: (normal(xp, rng, 400, dtype=np.float64),)
