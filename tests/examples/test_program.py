"""The demo's program learns, and is one program on any kind of array."""

from __future__ import annotations

import numpy as np
import pytest

from examples.digits import program as digits


@pytest.fixture(scope="module")
def data():
    return digits.load_digits(seed=0)


def _philox(seed):
    return np.random.Generator(np.random.Philox(seed))


def test_the_split_is_whole(data):
    """All 1,797 digits are used once: four fifths to train, one fifth held out."""
    assert data.images.shape == (1438, 64)
    assert data.labels.shape == (1438, 10)
    assert data.held_images.shape == (359, 64)
    assert (
        len(np.unique(np.concatenate([data.images, data.held_images]), axis=0)) > 1790
    )
    assert (data.labels.sum(axis=1) == 1).all()


def test_an_epoch_sees_every_image_at_most_once(data):
    """Batches are whole, in another order every epoch."""
    epochs = [list(digits.batches(data, 128, (0, epoch))) for epoch in range(2)]
    for epoch in epochs:
        assert [len(images) for images, _ in epoch] == [128] * 11
        seen = np.concatenate([images for images, _ in epoch])
        assert len(np.unique(seen, axis=0)) > 1400
    assert not np.array_equal(epochs[0][0][0], epochs[1][0][0])


def test_the_gradient_is_the_slope_of_the_loss(data):
    """What a step does to a weight is what the loss does when that weight moves."""
    images, labels = next(digits.batches(data, 32, (0, 0)))
    images, labels = images.astype(np.float64), labels.astype(np.float64)
    params = {
        name: array.astype(np.float64)
        for name, array in digits.fresh_params(16, seed=1).items()
    }
    before = {name: array.copy() for name, array in params.items()}
    momenta = {name: np.zeros_like(array) for name, array in params.items()}
    digits.train_step(params, momenta, images, labels, _philox(2))
    for name, place in (("w1", (20, 3)), ("b1", (3,)), ("w2", (3, 7)), ("b2", (7,))):
        sides = []
        for move in (1e-4, -1e-4):
            moved = {key: array.copy() for key, array in before.items()}
            moved[name][place] += move
            rest = {key: np.zeros_like(array) for key, array in moved.items()}
            sides.append(digits.train_step(moved, rest, images, labels, _philox(2)))
        slope = (sides[0] - sides[1]) / 2e-4
        assert momenta[name][place] == pytest.approx(slope, rel=1e-3, abs=1e-6)


def test_it_learns(data):
    """Twenty epochs in plain NumPy tell nineteen digits of twenty."""
    params = digits.fresh_params(256, seed=0)
    momenta, rng = digits.fresh_momenta(params), _philox(0)
    for epoch in range(20):
        for images, labels in digits.batches(data, 128, (0, epoch)):
            loss = digits.train_step(params, momenta, images, labels, rng)
    told = digits.evaluate(params, data.held_images)
    assert np.mean(told == data.held_digits) >= 0.95
    assert loss < 0.3
    assert {array.dtype for array in params.values()} == {np.dtype(np.float32)}
