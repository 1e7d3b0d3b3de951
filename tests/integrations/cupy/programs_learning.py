"""Programs that learn or estimate: layers, attention, clusters, filters by hand."""

from __future__ import annotations

import numpy as np

from tests.integrations.cupy.programs_base import (
    always,
    normal,
    program,
    uniform,
    whole,
)


def softmax(xp, x):
    """Return shares along the last axis."""
    e = xp.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@program()
def two_layers_trained(xp, rng):
    """A forward pass, the gradients by hand, and a step that writes the weights."""
    w1, b1 = 0.3 * normal(xp, rng, 16, 32), xp.zeros(32, np.float32)
    w2 = 0.3 * normal(xp, rng, 32, 4)

    def train(x, labels, rate):
        hidden = xp.maximum(x @ w1 + b1, 0)
        shares = softmax(xp, hidden @ w2)
        rows = xp.arange(len(x))
        loss = -xp.log(shares[rows, labels]).mean()
        d = shares
        d[rows, labels] -= 1
        d /= len(x)
        dh = (d @ w2.T) * (hidden > 0)
        w2[...] -= rate * (hidden.T @ d)
        w1[...] -= rate * (x.T @ dh)
        b1[...] -= rate * dh.sum(axis=0)
        return loss

    return (
        train,
        lambda _: (normal(xp, rng, 24, 16), whole(xp, rng, 0, 4, 24), 0.1),
        [w1, b1, w2],
    )


@program()
def attention(xp, rng):
    """Heads of a causal attention, by batched products and a mask of minus infinity."""
    w = normal(xp, rng, 24, 72) / 5
    mask = xp.where(xp.tri(12, dtype=bool), np.float32(0), np.float32(-np.inf))

    def attend(x):
        b, t, c = x.shape
        split = (x @ w).reshape(b, t, 3, 4, c // 4).transpose(2, 0, 3, 1, 4)
        q, k, v = split
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(np.float32(c // 4))
        out = softmax(xp, scores + mask) @ v
        return x + out.transpose(0, 2, 1, 3).reshape(b, t, c)

    return attend, lambda _: (normal(xp, rng, 2, 12, 24),)


@program()
def layer_norm_and_gelu(xp, rng):
    """A block of a transformer without its attention; parameters by name."""

    def block(x, *, gain, bias, up, down):
        mean = x.mean(axis=-1, keepdims=True)
        centred = x - mean
        var = (centred * centred).mean(axis=-1, keepdims=True)
        y = centred / xp.sqrt(var + 1e-5) * gain + bias
        h = y @ up
        h = 0.5 * h * (1 + xp.tanh(0.7978845608 * (h + 0.044715 * h**3)))
        return x + h @ down

    params = {
        "gain": 1 + 0.1 * normal(xp, rng, 16),
        "bias": 0.1 * normal(xp, rng, 16),
        "up": normal(xp, rng, 16, 64) / 4,
        "down": normal(xp, rng, 64, 16) / 8,
    }
    return block, lambda _: {"x": normal(xp, rng, 3, 10, 16), **params}


@program()
def convolution_by_columns(xp, rng):
    """Convolution as one product: windows by strides, then a max over pairs."""
    kernels = normal(xp, rng, 8, 3, 3, 3)

    def convolve(x):
        (n, c, h, w), steps = x.shape, x.strides
        shape, strides = (n, c, h - 2, w - 2, 3, 3), (*steps, *steps[2:])
        windows = xp.lib.stride_tricks.as_strided(x, shape, strides)
        out = xp.einsum("nchwij,ocij->nohw", windows, kernels)
        n, o, h, w = out.shape
        pooled = out.reshape(n, o, h // 2, 2, w // 2, 2).max(axis=(3, 5))
        return xp.maximum(pooled, 0)

    return convolve, lambda _: (normal(xp, rng, 2, 3, 10, 10),)


@program()
def k_means(xp, rng):
    """Distances by a product, memberships as ones, means of them in place."""
    centres = normal(xp, rng, 5, 4)

    def refine(points):
        squares = (points**2).sum(1)[:, None] + (centres**2).sum(1)[None]
        distances = squares - 2 * points @ centres.T
        nearest = distances.argmin(axis=1)
        members = (nearest[:, None] == xp.arange(5)[None]).astype(points.dtype)
        counts = xp.maximum(members.sum(axis=0), 1)
        centres[...] = (members.T @ points) / counts[:, None]
        return nearest, distances.min(axis=1).mean()

    points = normal(xp, rng, 200, 4)
    return refine, always(points), centres


@program()
def power_iteration(xp, rng):
    """The first two axes of a cloud, one deflated for the other."""

    def axes(x, v):
        covariance = x.T @ x / len(x)
        found = []
        for k in range(2):
            u = v[k]
            for _ in range(8):
                u = covariance @ u
                u = u / xp.sqrt(u @ u)
            value = u @ covariance @ u
            covariance = covariance - value * xp.outer(u, u)
            found.append((value, u))
        return found

    start = normal(xp, rng, 2, 6, dtype=np.float64)
    return axes, lambda _: (normal(xp, rng, 80, 6, dtype=np.float64), start)


@program()
def conjugate_gradients(xp, rng):
    """A fixed number of steps on a kernel matrix with a ridge."""

    def solve(points, y, steps):
        apart = points[:, None] - points[None]
        kernel = xp.exp(-0.5 * (apart**2).sum(-1)) + 0.1 * xp.eye(len(points))
        x, r = xp.zeros_like(y), y.copy()
        p, rr = r.copy(), r @ r
        for _ in range(steps):
            kp = kernel @ p
            alpha = rr / (p @ kp)
            x += alpha * p
            r -= alpha * kp
            fresh = r @ r
            p = r + (fresh / rr) * p
            rr = fresh
        return x, xp.sqrt(rr)

    def arguments(_):
        points = normal(xp, rng, 40, 3, dtype=np.float64)
        return points, normal(xp, rng, 40, dtype=np.float64), 6

    return solve, arguments


@program()
def kalman_predict(xp, rng):
    """Predict and correct many filters at once; gains by a division of scalars."""
    motion = xp.eye(2) + xp.eye(2, k=1) * 0.1
    noise = 0.01 * xp.eye(2)

    def step(mean, cov, seen):
        ahead = mean @ motion.T
        spread = motion @ cov @ motion.T + noise
        gain = spread[:, :, 0] / (spread[:, 0, 0] + 0.5)[:, None]
        mean[...] = ahead + gain * (seen - ahead[:, 0])[:, None]
        cov[...] = spread - gain[:, :, None] * spread[:, None, 0]
        return mean[:, 0], gain

    mean, cov = xp.zeros((30, 2)), xp.zeros((30, 2, 2)) + xp.eye(2)
    return step, lambda _: (mean, cov, normal(xp, rng, 30, dtype=np.float64))


@program()
def contractions(xp, rng):
    """One contraction as einsum, tensordot, inner, dot and a batch of products."""

    def contract(a, b, m):
        return {
            "einsum": xp.einsum("bij,jk->bik", a, m),
            "trace": xp.einsum("bii->b", a[:, :, :5]),
            "tensordot": xp.tensordot(a, b, axes=([1, 2], [1, 2])),
            "inner": xp.inner(m.T, m.T),
            "dot": xp.dot(a, m),
            "matmul": xp.matmul(a, m[None]),
            "vdot": xp.vdot(m, m),
        }

    m = normal(xp, rng, 7, 6, dtype=np.float64)
    draw = lambda n: normal(xp, rng, n, 5, 7, dtype=np.float64)  # noqa: E731
    return contract, lambda _: (draw(3), draw(4), m)


@program()
def products_of_dtypes(xp, rng):
    """Products of halves, complex numbers, whole numbers, and of views of them."""

    def multiply(half, z, n, wide):
        return (
            half @ half.T,
            z.conj().T @ z,
            n @ n[::-1].T,
            wide[::2, ::3] @ wide[:6, ::3].T,
            wide[0] @ wide.T,
        )

    return multiply, lambda _: (
        normal(xp, rng, 16, 8, dtype=np.float16),
        normal(xp, rng, 9, 5, dtype=np.complex64),
        whole(xp, rng, -5, 6, (7, 7)),
        normal(xp, rng, 12, 18, dtype=np.float64)[:, :12],
    )


@program()
def markov_chain(xp, rng):
    """Shares that a matrix moves, some steps by its power."""

    def walk(shares, rates):
        moves = rates / rates.sum(axis=1, keepdims=True)
        later = shares @ xp.linalg.matrix_power(moves, 5)
        entropy = -(later * xp.log(later)).sum(axis=-1)
        shares[...] = later
        return entropy, moves

    shares = softmax(xp, normal(xp, rng, 4, 8))
    return walk, lambda _: (shares, 0.1 + uniform(xp, rng, 8, 8))


@program()
def hidden_markov_forward(xp, rng):
    """The forward pass of a chain over words that are indices, rescaled each time."""
    moves = softmax(xp, normal(xp, rng, 5, 5, dtype=np.float64))
    words = softmax(xp, normal(xp, rng, 5, 12, dtype=np.float64))

    def forward(said):
        share = words[:, said[:, 0]].T / 5
        likely = xp.zeros(len(said))
        for t in range(1, said.shape[1]):
            share = (share @ moves) * words[:, said[:, t]].T
            total = share.sum(axis=1, keepdims=True)
            likely += xp.log(total[:, 0])
            share = share / total
        return likely, share

    return forward, lambda _: (whole(xp, rng, 0, 12, (6, 9)),)


@program()
def embeddings_and_cosine(xp, rng):
    """Rows of a table by indices; the nearest others, by an order of all."""
    table = normal(xp, rng, 50, 12)

    def nearest(words):
        rows = xp.take(table, words, axis=0)
        unit = table / xp.sqrt((table**2).sum(axis=1, keepdims=True))
        scores = rows @ unit.T
        order = xp.argsort(-scores, axis=1)[:, :5]
        return order, xp.take_along_axis(scores, order, axis=1)

    return nearest, lambda _: (whole(xp, rng, 0, 50, 7),)


@program()
def logistic_newton_diagonal(xp, rng):
    """Steps with a diagonal curvature, a list of what each step lost."""

    def fit(w, x, y):
        losses = []
        for _ in range(3):
            shares = 1 / (1 + xp.exp(-(x @ w)))
            losses.append(xp.logaddexp(0, (1 - 2 * y) * (x @ w)).mean())
            slope = x.T @ (shares - y) / len(x)
            curve = (x * x).T @ (shares * (1 - shares)) / len(x)
            w -= slope / (curve + 0.1)
        return losses

    def arguments(_):
        return w, normal(xp, rng, 90, 6, dtype=np.float64), y

    w = xp.zeros(6)
    y = whole(xp, rng, 0, 2, 90).astype(np.float64)
    return fit, arguments


@program()
def recurrent_cell(xp, rng):
    """A gated unit over time, whose state is carried in an attribute."""

    class Cell:
        def __init__(self, w):
            self.w, self.h = w, xp.zeros((4, 20), np.float32)

        def __call__(self, xs):
            for x in xs:
                gates = xp.concatenate((x, self.h), axis=1) @ self.w
                r, z, n = (gates[:, k * 20 : k * 20 + 20] for k in range(3))
                z = 1 / (1 + xp.exp(-z))
                self.h += (1 - z) * (xp.tanh(n / (1 + xp.exp(-r))) - self.h)
            return self.h.copy()

    cell = Cell(normal(xp, rng, 30, 60) / 6)
    return cell.__call__, lambda _: (normal(xp, rng, 5, 4, 10),), cell.h


@program()
def mixture_responsibilities(xp, rng):
    """A step of expectation and maximisation for normals with a diagonal."""

    def step(x, means, scales, shares):
        z = (x[:, None] - means) / scales
        logs = -0.5 * (z * z).sum(-1) - xp.log(scales).sum(-1) + xp.log(shares)
        top = logs.max(axis=1, keepdims=True)
        total = top + xp.log(xp.exp(logs - top).sum(axis=1, keepdims=True))
        r = xp.exp(logs - total)
        weight = r.sum(axis=0) + 1e-6
        means[...] = r.T @ x / weight[:, None]
        shares[...] = weight / weight.sum()
        return total.sum(), r

    params = [normal(xp, rng, 3, 2), 1 + uniform(xp, rng, 3, 2), uniform(xp, rng, 3)]
    params[2] += 0.5
    return step, lambda _: (normal(xp, rng, 70, 2), *params)


@program()
def portfolio_gradient(xp, rng):
    """Weights on a simplex by multiplied steps; covariances of returns by hand."""

    def improve(weights, returns):
        mean = returns.mean(axis=0)
        centred = returns - mean
        covariance = centred.T @ centred / (len(returns) - 1)
        for _ in range(5):
            slope = mean - 3.0 * covariance @ weights
            weights *= xp.exp(0.5 * slope)
            weights /= weights.sum()
        return weights @ mean, xp.sqrt(weights @ covariance @ weights), covariance

    weights = xp.full(10, 0.1)
    return improve, lambda _: (weights, normal(xp, rng, 60, 10, dtype=np.float64))


@program()
def sinkhorn(xp, rng):
    """Two marginals are scaled in turn: transport of one cloud to another."""

    def plan(cost, a, b):
        k = xp.exp(-cost / 0.1)
        u = xp.ones_like(a)
        for _ in range(10):
            v = b / (k.T @ u)
            u = a / (k @ v)
        moved = u[:, None] * k * v[None]
        return moved, (moved * cost).sum()

    even = xp.full(24, 1 / 24)
    return plan, lambda _: (uniform(xp, rng, 24, 24, dtype=np.float64), even, even)


@program()
def target_network(xp, rng):
    """Q-learning's step: a slow copy of the weights follows the quick ones."""
    quick, slow = normal(xp, rng, 6, 3), normal(xp, rng, 6, 3)

    def learn(states, actions, rewards, after):
        best = (after @ slow).max(axis=1)
        target = rewards + 0.9 * best
        rows = xp.arange(len(states))
        error = (states @ quick)[rows, actions] - target
        chosen = (actions[:, None] == xp.arange(3)).astype(np.float32)
        quick[...] -= 0.01 * (states.T @ (error[:, None] * chosen))
        slow[...] += 0.05 * (quick - slow)
        return (error**2).mean()

    def arguments(_):
        states, after = normal(xp, rng, 32, 6), normal(xp, rng, 32, 6)
        return states, whole(xp, rng, 0, 3, 32), normal(xp, rng, 32), after

    return learn, arguments, {"quick": quick, "slow": slow}


@program()
def echo_state(xp, rng):
    """A reservoir of random weights, and a readout by recursive least squares."""
    reservoir, inward = normal(xp, rng, 30, 30) / 8, normal(xp, rng, 30)
    state, readout = xp.zeros(30, np.float32), xp.zeros(30, np.float32)
    inverse = xp.eye(30, dtype=np.float32)

    def listen(u, target):
        state[:] = xp.tanh(reservoir @ state + inward * u)
        gain = inverse @ state
        gain = gain / (1 + state @ gain)
        error = target - readout @ state
        readout[:] += gain * error
        inverse[...] -= xp.outer(gain, state @ inverse)
        return error

    return (
        listen,
        lambda _: (normal(xp, rng, 1), normal(xp, rng, 1)),
        [state, readout, inverse],
    )
