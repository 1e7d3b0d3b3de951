"""Programs that simulate: stencils, particles, spectra, paths of prices."""

from __future__ import annotations

import numpy as np

from tests.integrations.cupy.programs_base import (
    always,
    normal,
    program,
    uniform,
    whole,
)


@program()
def jacobi(xp, rng):
    """Laplace's equation by sweeps over the inside of a grid, in place."""

    def sweep(u, sweeps):
        before = u.copy()
        for _ in range(sweeps):
            around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
            u[1:-1, 1:-1] = 0.25 * around
        return xp.abs(u - before).max()

    return sweep, always(uniform(xp, rng, 34, 34, dtype=np.float64), 4)


@program()
def heat_with_sources(xp, rng):
    """Explicit steps; the grid of the step before is returned, too."""

    def step(u, sources, dt):
        padded = xp.pad(u, 1, mode="edge")
        laplacian = (
            padded[2:, 1:-1]
            + padded[:-2, 1:-1]
            + padded[1:-1, 2:]
            + padded[1:-1, :-2]
            - 4 * u
        )
        return u + dt * (laplacian + sources), laplacian

    u = uniform(xp, rng, 40, 40)
    return step, lambda _: (u, normal(xp, rng, 40, 40), 0.1)


@program()
def wave_leapfrog(xp, rng):
    """Two time levels that a call writes in turn, with a wall that absorbs."""
    before, now = xp.zeros((48, 48), np.float32), uniform(xp, rng, 48, 48)
    damping = xp.linspace(0.9, 1.0, 48, dtype=np.float32)[:, None]

    def step():
        middle = now[1:-1, 1:-1]
        ring = now[2:, 1:-1] + now[:-2, 1:-1] + now[1:-1, 2:] + now[1:-1, :-2]
        after = 2 * middle - before[1:-1, 1:-1] + 0.2 * (ring - 4 * middle)
        before[...] = now
        now[1:-1, 1:-1] = after * damping[1:-1]
        return (now * now).sum()

    return step, always(), [before, now]


@program()
def game_of_life(xp, rng):
    """Cells of one byte; neighbours are counted by rolls."""

    def generation(cells):
        neighbours = sum(
            xp.roll(cells, (dy, dx), axis=(0, 1))
            for dy in (-1, 0, 1)
            for dx in (-1, 0, 1)
            if dy or dx
        )
        born = (neighbours == 3) | ((cells == 1) & (neighbours == 2))
        cells[...] = born
        return cells.sum(), neighbours

    return generation, always(whole(xp, rng, 0, 2, (32, 32), np.uint8))


@program()
def gray_scott(xp, rng):
    """Two substances that react and spread, written in place."""

    def laplacian(z):
        rolled = xp.roll(z, 1, 0) + xp.roll(z, -1, 0) + xp.roll(z, 1, 1)
        return rolled + xp.roll(z, -1, 1) - 4 * z

    def step(u, v, feed=0.035, kill=0.065):
        reaction = u * v * v
        du = 0.16 * laplacian(u) - reaction + feed * (1 - u)
        dv = 0.08 * laplacian(v) + reaction - (feed + kill) * v
        u += du
        v += dv

    u, v = 0.5 + 0.5 * uniform(xp, rng, 36, 36), 0.25 * uniform(xp, rng, 36, 36)
    return step, lambda _: {"u": u, "v": v, "feed": 0.04}, [u, v]


@program()
def lattice_boltzmann(xp, rng):
    """A step of a flow on nine directions: stream, then collide."""
    ways = [(x, y) for x in (0, 1, -1) for y in (0, 1, -1)]
    weights = [(4 / 9, 1 / 9, 1 / 36)[abs(x) + abs(y)] for x, y in ways]

    def step(f):
        for k, (cx, cy) in enumerate(ways):
            f[k] = xp.roll(f[k], (cx, cy), axis=(0, 1))
        rho = f.sum(axis=0)
        ux = sum(cx * f[k] for k, (cx, _) in enumerate(ways) if cx) / rho
        uy = sum(cy * f[k] for k, (_, cy) in enumerate(ways) if cy) / rho
        square = 1.5 * (ux * ux + uy * uy)
        for k, (cx, cy) in enumerate(ways):
            along = 3 * (cx * ux + cy * uy)
            equal = weights[k] * rho * (1 + along + 0.5 * along**2 - square)
            f[k] += (equal - f[k]) * 0.6
        return xp.sqrt(ux**2 + uy**2), rho

    start = 1 + 0.05 * uniform(xp, rng, 9, 20, 24, dtype=np.float64)
    return step, always(start)


@program()
def n_body(xp, rng):
    """Gravity of all pairs, softened; positions and speeds are written."""
    masses = 0.5 + uniform(xp, rng, 48)

    def accelerations(at):
        apart = at[None] - at[:, None]
        near = (apart * apart).sum(axis=-1) + np.float32(0.05)
        pull = masses[None, :, None] * apart / (near * xp.sqrt(near))[..., None]
        return pull.sum(axis=1)

    def step(at, speed, dt):
        speed += 0.5 * dt * accelerations(at)
        at += dt * speed
        speed += 0.5 * dt * accelerations(at)
        return (masses * (speed * speed).sum(axis=1)).sum() / 2

    return step, always(normal(xp, rng, 48, 3), normal(xp, rng, 48, 3), 1e-3)


@program()
def lennard_jones_box(xp, rng):
    """Particles in a box that goes on behind its walls; forces are cut off."""

    def forces(at, box=6.0, cut=2.5):
        apart = at[:, None] - at[None]
        apart -= box * xp.rint(apart / box)
        squared = (apart**2).sum(-1) + 25 * xp.eye(len(at)) + 0.5
        inverse = xp.where(squared < cut**2, 1 / squared, 0) ** 3
        strength = 24 * inverse * (2 * inverse - 1) / squared
        return (strength[..., None] * apart).sum(axis=1), (inverse**2 - inverse).sum()

    return forces, lambda _: (6 * uniform(xp, rng, 40, 3, dtype=np.float64),)


@program()
def runge_kutta_lorenz(xp, rng):
    """Many copies of Lorenz's system, a step of the fourth order."""

    def slope(s):
        x, y, z = s
        return xp.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])

    def step(s, dt):
        k1 = slope(s)
        k2 = slope(s + dt / 2 * k1)
        k3 = slope(s + dt / 2 * k2)
        k4 = slope(s + dt * k3)
        s += dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return s, s.mean(axis=1)

    return step, always(normal(xp, rng, 3, 100, dtype=np.float64), 0.005)


@program()
def kuramoto(xp, rng):
    """Coupled oscillators: phases go round, and their order is measured."""
    speeds = normal(xp, rng, 60, dtype=np.float64)

    def step(phase, coupling=1.5):
        pulls = xp.sin(phase[None, :] - phase[:, None]).mean(axis=1)
        phase += 0.05 * (speeds + coupling * pulls)
        phase %= 2 * np.pi
        order = xp.exp(1j * phase).mean()
        return abs(order), xp.angle(order)

    return step, always(6 * uniform(xp, rng, 60, dtype=np.float64))


@program()
def advection_upwind(xp, rng):
    """A flow whose sign decides which side a difference is taken of."""

    def step(q, flow, dt):
        left, right = q - xp.roll(q, 1), xp.roll(q, -1) - q
        gradient = xp.where(flow > 0, left, right)
        limited = xp.minimum(xp.abs(left), xp.abs(right)) * (left * right > 0)
        q -= dt * flow * (gradient + 0.1 * xp.sign(left) * limited)
        return q.max(), q.min()

    q = uniform(xp, rng, 200)
    return step, lambda _: (q, normal(xp, rng, 200), 0.05)


@program()
def shallow_water(xp, rng):
    """Lax and Friedrichs' step of three conserved fields, kept in one array."""

    def flux(q):
        h, hu, hv = q
        x = xp.stack([hu, hu**2 / h + 4.9 * h**2, hu * hv / h])
        y = xp.stack([hv, hu * hv / h, hv**2 / h + 4.9 * h**2])
        return x, y

    def step(q, ratio):
        x, y = flux(q)
        spread = sum(xp.roll(q, s, a) for s in (-1, 1) for a in (1, 2)) / 4
        dx = xp.roll(x, -1, 1) - xp.roll(x, 1, 1)
        dy = xp.roll(y, -1, 2) - xp.roll(y, 1, 2)
        q[...] = spread - ratio / 2 * (dx + dy)
        return q[0], q[1:] / q[0]

    start = xp.zeros((3, 24, 24))
    start[0] = 1 + 0.1 * uniform(xp, rng, 24, 24)
    return step, always(start, 0.05)


@program()
def ising_checkerboard(xp, rng):
    """Metropolis' sweep over black fields, then white; the draws are arguments."""
    y, x = xp.arange(24)[:, None], xp.arange(24)[None]
    black = (y + x) % 2 == 0

    def sweep(spins, draws, beta):
        for fields, draw in ((black, draws[0]), (~black, draws[1])):
            around = xp.roll(spins, 1, 0) + xp.roll(spins, -1, 0)
            around = around + xp.roll(spins, 1, 1) + xp.roll(spins, -1, 1)
            flips = fields & (draw < xp.exp(-2 * beta * spins * around))
            spins[...] = xp.where(flips, -spins, spins)
        return spins.mean(), flips.sum()

    spins = 2 * whole(xp, rng, 0, 2, (24, 24), np.int8) - 1
    return sweep, lambda _: (spins, uniform(xp, rng, 2, 24, 24), 0.44)


@program()
def geometric_brownian_paths(xp, rng):
    """Paths of a price from normal draws, and what an Asian option on them pays."""

    def paths(draws, spot, volatility):
        steps = 0.01 * (0.03 - volatility**2 / 2) + 0.1 * volatility * draws
        prices = spot * xp.exp(xp.cumsum(steps, axis=1))
        worst = (prices / xp.maximum(prices[:, :1], prices) - 1).min(axis=1)
        return prices, xp.maximum(prices.mean(axis=1) - spot, 0).mean(), worst

    return paths, lambda _: (normal(xp, rng, 128, 50, dtype=np.float64), 100.0, 0.2)


@program()
def spectral_heat(xp, rng):
    """A step in the space of frequencies: FFT, decay, and back."""
    k = xp.fft.fftfreq(64) * 2 * np.pi
    decay = xp.exp(-0.3 * (k[:, None] ** 2 + k[None] ** 2))

    def step(u):
        u[...] = xp.fft.ifft2(xp.fft.fft2(u) * decay).real
        return u

    return step, always(normal(xp, rng, 64, 64, dtype=np.float64))


@program()
def schroedinger_split_step(xp, rng):
    """A wave packet: half a kick, a drift by frequencies, half a kick."""
    x = xp.linspace(-8, 8, 128)
    k = 2 * np.pi * xp.fft.fftfreq(128, 1 / 8)
    half = xp.exp(-0.005j * x**2)
    drift = xp.exp(-0.005j * k**2)

    def step(psi):
        psi *= half
        psi[:] = xp.fft.ifft(drift * xp.fft.fft(psi))
        psi *= half
        return (xp.abs(psi) ** 2).sum(), psi.copy()

    return step, always(xp.exp(-(x**2) + 1j * uniform(xp, rng, 128)))


@program()
def fft_convolution(xp, rng):
    """A room's echo on a signal, by real transforms of twice the length."""
    echo = normal(xp, rng, 100) * xp.exp(-xp.arange(100, dtype=np.float32) / 20)

    def convolve(signal):
        size = 512
        spectrum = xp.fft.rfft(signal, size) * xp.fft.rfft(echo, size)
        return xp.fft.irfft(spectrum, size)[: signal.size + 99]

    return convolve, lambda _: (normal(xp, rng, 256),)


@program()
def spectrogram(xp, rng):
    """Frames that overlap, made by strides, under a window; power in decibels."""
    window = 0.5 - 0.5 * xp.cos(2 * np.pi * xp.arange(128) / 128)

    def power(signal):
        step = signal.strides[0]
        shape, strides = (15, 128), (64 * step, step)
        frames = xp.lib.stride_tricks.as_strided(signal, shape, strides)
        bands = xp.abs(xp.fft.rfft(frames * window, axis=1)) ** 2
        return 10 * xp.log10(bands + 1e-9), bands.argmax(axis=1)

    return power, lambda _: (normal(xp, rng, 1024, dtype=np.float64),)


@program()
def poisson_solver(xp, rng):
    """A potential by the transform of its charges, and the field's components."""
    k = xp.fft.fftfreq(32)[:, None] ** 2 + xp.fft.rfftfreq(32)[None] ** 2
    inverse = 1 / xp.where(k == 0, xp.inf, k)

    def solve(charges):
        potential = xp.fft.irfft2(xp.fft.rfft2(charges) * inverse, s=(32, 32))
        return potential, xp.gradient(potential)

    return solve, lambda _: (normal(xp, rng, 32, 32, dtype=np.float64),)


@program()
def epidemic_on_a_grid(xp, rng):
    """Shares that fall ill and recover in each place, kept as a dict of arrays."""
    state = {"s": 0.9 + 0 * uniform(xp, rng, 30, 30), "i": uniform(xp, rng, 30, 30)}
    state["i"] *= 0.1
    state["r"] = xp.zeros_like(state["s"])

    def day(contacts):
        i = state["i"]
        near = i + 0.1 * (xp.roll(i, 1, 0) + xp.roll(i, -1, 0))
        ill = xp.minimum(contacts * state["s"] * near, state["s"])
        well = 0.1 * i
        state["s"] -= ill
        state["i"] += ill - well
        state["r"] += well
        return {name: each.sum() for name, each in state.items()}

    return day, lambda _: (0.2 + 0.1 * uniform(xp, rng, 30, 30),), state
