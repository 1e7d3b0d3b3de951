"""Physics, filters and solvers: states that are written in place, or fed back."""

from __future__ import annotations

import math

import pytest

from tests.integrations.models.worlds import Trial
from tests.integrations.programs.kit import CALLS, called, stepped, trial

torch = pytest.importorskip("torch")
F = torch.nn.functional

TRIALS: list[Trial] = []


@trial(TRIALS)
def heat_on_a_plate(w):
    """Jacobi's steps between two fields that change places, edges held."""
    fields = [w.values(10, 10), w.values(10, 10)]
    source = 0.1 * w.values(8, 8)

    def step(field, other):
        for _ in range(4):
            inner = field[:-2, 1:-1] + field[2:, 1:-1]
            inner += field[1:-1, :-2]
            inner += field[1:-1, 2:]
            torch.mul(inner + source, 0.25, out=other[1:-1, 1:-1])
            field, other = other, field
        return (field - other)[1:-1, 1:-1].abs().amax()

    yield from stepped(w, step, lambda: fields, lambda: fields)


@trial(TRIALS)
def heat_that_changes_places(w):
    """The caller swaps the two fields after each call."""
    fields = [w.values(6, 6), w.values(6, 6)]

    def step(field, other):
        near = F.pad(field[None, None], (1, 1, 1, 1), mode="circular")
        other.copy_(F.avg_pool2d(near, 3, 1)[0, 0])

    f = w.graph(step)
    for _ in range(CALLS):
        f(*fields)
        fields.reverse()
        yield fields


@trial(TRIALS)
def filters_by_fourier(w):
    """Convolution by spectra, the filter's spectrum made anew in each call."""

    def fn(x, taps):
        n = x.shape[-1] + taps.shape[-1] - 1
        size = 2 ** math.ceil(math.log2(n))
        spectrum = torch.fft.rfft(x, size) * torch.fft.rfft(taps, size)
        y = torch.fft.irfft(spectrum, size)[..., :n]
        power = spectrum.abs().square().mean(0)
        return y, torch.view_as_real(spectrum), power.add(1e-6).log10()

    yield from called(w, fn, lambda: (w.values(3, 20), w.values(7)))


@trial(TRIALS)
def waves_in_spectra(w):
    """A split step of Schroedinger's equation; the wave is complex, and fed back."""
    n = 16
    k = torch.fft.fftfreq(n, 1 / n).to(w.place)
    hill = w.values(n).square()

    def fn(wave, dt=0.01):
        half = torch.polar(torch.ones_like(hill), -0.5 * dt * hill)
        turn = torch.exp(-0.5j * dt * k**2)
        wave = torch.fft.ifft(turn * torch.fft.fft(half * wave)) * half
        return wave, (wave.abs() ** 2).sum()

    f, kept = w.graph(fn), []
    wave = torch.complex(w.values(n), w.values(n))
    for _ in range(CALLS):
        wave, norm = f(wave)
        kept.append((wave, norm))
        yield kept


@trial(TRIALS)
def bodies_that_attract(w):
    """Leapfrog in double precision; energies are told each time."""
    mass = w.values(5).abs().double()
    x, v = w.values(5, 3).double(), w.values(5, 3).double()

    def pull(x):
        apart = x[None] - x[:, None]
        cubed = (apart.square().sum(-1) + 0.01).rsqrt() ** 3
        return torch.einsum("ijk,ij,j->ik", apart, cubed, mass)

    def step(dt):
        v.add_(pull(x) * (dt / 2))
        x.add_(v * dt)
        v.add_(pull(x) * (dt / 2))
        moving = 0.5 * (mass * v.square().sum(-1)).sum()
        near = (x[None] - x[:, None]).square().sum(-1).add(0.01).rsqrt()
        return moving, moving - 0.5 * (mass[:, None] * mass * near).triu(1).sum()

    yield from stepped(w, step, lambda: (0.01,), lambda: (x, v), last=None)


@trial(TRIALS)
def particles_that_are_chosen_again(w):
    """A bootstrap filter: weights, a stratified choice by a search, noise."""
    below = torch.ones(16, 16, device=w.place).tril()

    def fn(particles, seen):
        particles = particles * 0.9 + 0.3 * torch.randn_like(particles)
        logs = -0.5 * (particles[:, 0] - seen) ** 2
        weights = logs.softmax(0)
        places = torch.arange(16, device=seen.device) + torch.rand(
            16, device=seen.device
        )
        chosen = torch.searchsorted(below @ weights, places / 16).clamp(max=15)
        mean = weights @ particles
        enough = 1 / weights.square().sum()
        return particles[chosen], mean, enough

    f, kept, particles = w.graph(fn), [], w.values(16, 2)
    for _ in range(CALLS):
        particles, mean, enough = f(particles, w.values())
        kept = [*kept[-2:], (mean, enough)]
        yield kept, particles


@trial(TRIALS)
def filtered_by_kalman(w):
    """Foretell and correct, the state in a dict that is written in place."""
    move = torch.eye(4, device=w.place) + 0.1 * torch.eye(4, device=w.place).roll(2, 1)
    look = torch.eye(4, device=w.place)[:2]
    state = {"mean": w.values(4), "spread": torch.eye(4, device=w.place)}

    def step(seen):
        mean = move @ state["mean"]
        spread = move @ state["spread"] @ move.T + 0.01 * torch.eye(4, device=w.place)
        rest = seen - look @ mean
        sure = look @ spread @ look.T + 0.1 * torch.eye(2, device=w.place)
        gain = torch.linalg.solve_ex(sure, look @ spread)[0].T
        state["mean"].copy_(mean + gain @ rest)
        state["spread"].copy_(spread - gain @ look @ spread)
        return rest, sure.diagonal().log().sum()

    yield from stepped(w, step, lambda: (w.values(2),), lambda: state)


@trial(TRIALS)
def roots_by_newton(w):
    """Implicit Euler: a few steps of Newton with a Jacobian by hand."""

    def fn(x, dt=0.1):
        new = x
        for _ in range(3):
            rest = new - x - dt * (new - new**3 - new.roll(1))
            slope = torch.diag(1 - dt * (1 - 3 * new**2))
            slope = slope + dt * torch.eye(5, device=x.device).roll(1, 0)
            new = new - torch.linalg.solve_ex(slope, rest, check_errors=False)[0]
        return new, torch.linalg.vector_norm(rest)

    f, x = w.graph(fn), w.values(5)
    for _ in range(CALLS):
        x, rest = f(x)
        yield x, rest


@trial(TRIALS)
def gas_on_a_lattice(w):
    """Nine speeds collide and stream; walls throw them back."""
    ways = torch.tensor([(x, y) for x in (0, 1, -1) for y in (0, 1, -1)])
    share = torch.where(ways == 0, 4, 1).prod(1) / 36
    ways, share = ways.float().to(w.place), share.to(w.place)
    back = [0, 2, 1, 6, 8, 7, 3, 5, 4]
    gas = share[:, None, None] * (1 + 0.1 * w.values(9, 6, 8))
    wall = w.values(6, 8) > 1.5

    def step():
        density = gas.sum(0)
        speed = torch.einsum("qd,qxy->dxy", ways, gas) / density
        along = torch.einsum("qd,dxy->qxy", ways, speed)
        rest = 1 + 3 * along + 4.5 * along**2 - 1.5 * speed.square().sum(0)
        after = gas.lerp(share[:, None, None] * density * rest, 0.6)
        after = torch.where(wall, gas[back], after)
        shifts = ((x, y) for x in (0, 1, -1) for y in (0, 1, -1))
        for q, shift in enumerate(shifts):
            gas[q] = after[q].roll(shift, (0, 1))
        return speed

    yield from stepped(w, step, tuple, lambda: gas)


@trial(TRIALS)
def spots_that_grow(w):
    """Gray and Scott's reaction under convolutions, many steps in one call."""
    kernel = w.values(3, 3).abs()
    kernel = ((kernel + kernel.flip(0, 1)) / kernel.sum()).view(1, 1, 3, 3)
    pair = w.values(2, 1, 12, 12).sigmoid()

    def step():
        u, v = pair
        for _ in range(5):
            both = F.pad(torch.stack([u, v]), (1, 1, 1, 1), mode="circular")
            du, dv = 0.1 * (F.conv2d(both, kernel) - torch.stack([u, v]))
            eaten = u * v * v
            u = (u + du - eaten + 0.04 * (1 - u)).clamp(0, 1)
            v = (v + 0.5 * dv + eaten - 0.1 * v).clamp(0, 1)
        pair[0], pair[1] = u, v
        return torch.stack([u.mean(), v.mean()])

    yield from stepped(w, step, tuple, lambda: pair, last=None)


@trial(TRIALS)
def magnets_in_two_colours(w):
    """Metropolis on a checkerboard: black fields, then white ones, flip by chance."""
    spins = torch.where(w.values(8, 8) > 0, 1.0, -1.0)
    at = torch.arange(8, device=w.place)
    black = (at[:, None] + at) % 2 == 0

    def step(cold):
        for colour in (black, ~black):
            near = sum(spins.roll(way, axis) for way in (1, -1) for axis in (0, 1))
            chance = (-2 * cold * spins * near).exp()
            flips = (torch.rand_like(spins) < chance) & colour
            spins.copy_(torch.where(flips, -spins, spins))
        return spins.mean(), flips.sum()

    cold = torch.tensor(0.4, device=w.place)
    yield from stepped(w, step, lambda: (cold,), lambda: spins)


@trial(TRIALS)
def prices_by_chance(w):
    """Paths with antithetic draws; an average price decides what is paid."""

    def fn(start, strike, spread):
        drawn = torch.randn(8, 32, device=start.device)
        drawn = torch.cat([drawn, -drawn], 1)
        path, total = start.expand(64), 0
        for noise in drawn:
            path = path * torch.exp(
                (0.05 - spread**2 / 2) / 8 + spread * noise / 8**0.5
            )
            total = total + path
        paid = (total / 8 - strike).relu()
        worst = torch.quantile(paid, 0.9)
        return paid.mean(), paid.std(unbiased=False), worst

    def make():
        return w.values().abs() + 1, w.values().abs() + 1, w.values().abs() * 0.3

    yield from called(w, fn, make, last=None)


@trial(TRIALS)
def solved_by_conjugate_gradients(w):
    """A fixed number of steps; those that are done early are masked."""

    def apply(a, x):
        return a.mT @ (a @ x) + 0.5 * x

    def fn(a, b):
        x, r = torch.zeros_like(b), b
        p, size = r, r.square().sum(0)
        for _ in range(4):
            q = apply(a, p)
            going = size > 1e-10
            step = torch.where(going, size / (p * q).sum(0), 0)
            x, r = x + step * p, r - step * q
            new = r.square().sum(0)
            p, size = r + torch.where(going, new / size, 0) * p, new
        return x, size, going

    yield from called(w, fn, lambda: (w.values(6, 6), w.values(6, 3)))


@trial(TRIALS)
def moved_at_the_least_cost(w):
    """Sinkhorn's scaling in logarithms, and the plan's barycentres."""

    def fn(x, y):
        cost = (x[:, None] - y[None]).square().sum(-1)
        left, right = x.new_zeros(len(x)), y.new_zeros(len(y))
        for _ in range(5):
            left = -0.1 * torch.logsumexp((right - cost) / 0.1, 1) - math.log(len(x))
            right = -0.1 * torch.logsumexp((left[:, None] - cost) / 0.1, 0)
        plan = ((left[:, None] + right - cost) / 0.1).exp()
        return plan @ y / plan.sum(1, keepdim=True), (plan * cost).sum()

    yield from called(w, fn, lambda: (w.values(6, 2), w.values(5, 2)))


@trial(TRIALS)
def means_of_clusters(w):
    """Lloyd's steps by products with one-hot rows; empty clusters stay."""
    centres = w.values(4, 3)

    def step(points):
        near = torch.cdist(points, centres).argmin(1)
        members = F.one_hot(near, 4).to(points.dtype)
        counts = members.sum(0)
        means = members.T @ points / counts.clamp(min=1)[:, None]
        centres.copy_(torch.where(counts[:, None] > 0, means, centres))
        return near, counts

    yield from stepped(w, step, lambda: (w.values(20, 3),), lambda: centres)
