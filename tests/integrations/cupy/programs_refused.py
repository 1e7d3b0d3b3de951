"""Programs that CuPy cannot capture as a whole, or that need a value on the host."""

from __future__ import annotations

import numpy as np

from tests.integrations.cupy.programs_base import always, normal, program, whole


@program(decides=True)
def scaled_by_a_number(xp, rng):
    """The sum of an array, as a number of Python's."""

    def scale(x):
        return x / float(xp.abs(x).sum())

    return scale, lambda _: (normal(xp, rng, 40),)


@program(decides=True)
def a_branch(xp, rng):
    """What is computed depends on values."""

    def clip(x, limit):
        if (xp.abs(x) > limit).any():
            x *= 0.5
        return x + 1

    return clip, always(4 * normal(xp, rng, 40), 1.0)


@program(decides=True)
def newton_until_it_is_near(xp, rng):
    """As many steps as it takes."""

    def roots(a):
        x, steps = a.copy(), 0
        while float(xp.abs(x * x - a).max()) > 1e-6 and steps < 30:
            x, steps = (x + a / x) / 2, steps + 1
        return x, steps

    return roots, lambda _: (1 + xp.abs(normal(xp, rng, 20, dtype=np.float64)),)


@program(decides=True)
def selected_by_a_mask(xp, rng):
    """How long the result is depends on values."""

    def positive(x):
        return x[x > 0].sum(), x[x <= 0]

    return positive, lambda _: (normal(xp, rng, 60),)


@program(decides=True)
def places_that_are_not_zero(xp, rng):
    def places(x):
        rows, columns = xp.nonzero(x)
        return rows, columns, x[rows, columns]

    return places, lambda _: (whole(xp, rng, 0, 2, (7, 8)),)


@program(decides=True)
def counted_numbers(xp, rng):
    """Counts of whole numbers: CuPy asks for the largest."""

    def count(x):
        return xp.bincount(x, minlength=12)

    return count, lambda _: (whole(xp, rng, 0, 12, 200),)


@program(decides=True)
def each_number_once(xp, rng):
    def once(x):
        return xp.unique(x)

    return once, lambda _: (whole(xp, rng, 0, 30, 50),)


@program()
def a_linear_system(xp, rng):
    def solve(a, b):
        return xp.linalg.solve(a + 9 * xp.eye(8), b)

    def arguments(_):
        a = normal(xp, rng, 8, 8, dtype=np.float64)
        return a, normal(xp, rng, 8, dtype=np.float64)

    return solve, arguments


@program()
def low_rank(xp, rng):
    """The singular values of a matrix, and what the first two leave of it."""

    def approximate(a):
        u, s, v = xp.linalg.svd(a, full_matrices=False)
        return s, (u[:, :2, None] * s[:2, None] * v[None, :2]).sum(axis=1)

    return approximate, lambda _: (normal(xp, rng, 9, 6, dtype=np.float64),)


@program()
def correlated_draws(xp, rng):
    """Draws that a factor of their covariances makes depend on each other."""

    def correlate(draws, covariance):
        factor = xp.linalg.cholesky(covariance)
        return (draws[:, None] * factor).sum(axis=-1)

    def arguments(_):
        return normal(xp, rng, 50, 5, dtype=np.float64), covariance

    root = normal(xp, rng, 5, 5, dtype=np.float64)
    covariance = (root[:, None] * root[None]).sum(axis=-1) + xp.eye(5)
    return correlate, arguments


@program()
def modes_of_a_chain(xp, rng):
    """Frequencies of masses between springs."""

    def modes(stiffness):
        chain = xp.diag(stiffness[1:] + stiffness[:-1])
        chain = chain - xp.diag(stiffness[1:-1], 1) - xp.diag(stiffness[1:-1], -1)
        return xp.sqrt(xp.linalg.eigh(chain)[0])

    return modes, lambda _: (1 + whole(xp, rng, 0, 5, 12).astype(np.float64),)


@program()
def dropout_by_a_state(xp, rng):
    """Random numbers of the older interface, from a state that lies outside."""
    state = xp.random.RandomState(3)

    def drop(x):
        return x * (state.random_sample(x.shape) > 0.5) * 2

    return drop, lambda _: (normal(xp, rng, 30, 4),)


@program(skips="neither an argument nor reachable|[Rr]andom|host", either=True)
def noise_of_a_generator(xp, rng):
    """Random numbers of the newer interface: kernels with a state on the device."""
    generator = xp.random.default_rng(3)

    def noisy(x):
        return x + 0.1 * generator.random(x.shape)

    return noisy, lambda _: (normal(xp, rng, 64, dtype=np.float64),)


@program(skips="cuSPARSE|host|writ", gpu_only=True)
def a_sparse_product(xp, rng):
    """A graph's neighbours are summed by a matrix of few elements."""
    from cupyx.scipy import sparse

    dense = whole(xp, rng, 0, 8, (40, 40)) == 0
    matrix = sparse.csr_matrix(dense.astype(np.float64))

    def spread(x):
        return 0.5 * x + 0.1 * (matrix @ x)

    return spread, lambda _: (normal(xp, rng, 40, dtype=np.float64),)


@program(skips="host", either=True, gpu_only=True)
def a_gaussian_filter(xp, rng):
    """CuPy makes the weights on the host in every call."""
    from cupyx.scipy import ndimage

    def blur(image):
        return ndimage.gaussian_filter(image, 1.5), ndimage.sobel(image, axis=0)

    return blur, lambda _: (normal(xp, rng, 32, 32),)


@program(skips="host", either=True)
def a_median_of_nine(xp, rng):
    """CuPy joins more than eight arrays by a list of their addresses."""

    def median(image):
        shifted = [
            xp.roll(image, (y, x), (0, 1)) for y in (-1, 0, 1) for x in (-1, 0, 1)
        ]
        return xp.sort(xp.stack(shifted), axis=0)[4]

    return median, lambda _: (normal(xp, rng, 20, 20),)
