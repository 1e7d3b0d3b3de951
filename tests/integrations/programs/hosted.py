"""Values read on the host, data that comes from there, and tensors that stay there."""

from __future__ import annotations

import copy
import random

import pytest

import sapwood as sw
from tests.integrations.models.worlds import Trial
from tests.integrations.programs.kit import CALLS, adamw, called, stepped, trial
from tests.integrations.programs.training import descended, layers

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

TRIALS: list[Trial] = []
READ = "on the host"


def batches(w):
    """Return what makes inputs and classes for `layers`."""
    return lambda: (w.values(4, 8), w.ids(4) % 4)


# Reads.


@trial(TRIALS, skips=READ)
def losses_as_numbers(w):
    model = w.model(layers, train=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        logits = model(x)
        loss = descended(optimizer, F.cross_entropy(logits, y))
        right = (logits.argmax(1) == y).sum()
        return {"loss": loss.item(), "accuracy": right.item() / len(x)}

    yield from stepped(w, step, batches(w), model.state_dict)


@trial(TRIALS, reads=True)
def losses_as_numbers_by_an_eager_region(w):
    """The same between two recorded parts."""
    model = w.model(layers, train=True)
    optimizer, told = torch.optim.SGD(model.parameters(), lr=0.1), []

    @sw.eager
    def log(loss):
        told.append(f"{loss.item():.6f}")

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        log(loss.detach())
        loss.backward()
        optimizer.step()
        return loss.detach()

    for shown in stepped(w, step, batches(w), model.state_dict):
        yield shown, list(told)


@trial(TRIALS, skips=READ)
def boxes_above_a_score(w):
    def fn(boxes, scores):
        chosen = scores > 0
        return boxes[chosen], scores[chosen], chosen.nonzero()[:, 0]

    yield from called(w, fn, lambda: (w.values(9, 4), w.values(9)))


@trial(TRIALS)
def boxes_without_overlaps(w):
    """The best boxes of a fixed number; those that overlap are struck out by masks."""

    def fn(corners, scores):
        scores, order = scores.topk(6)
        low, high = corners[order].unflatten(1, (2, 2)).sort(1).values.unbind(1)
        inner = torch.minimum(high[:, None], high) - torch.maximum(low[:, None], low)
        inner = inner.clamp(min=0).prod(-1)
        area = (high - low).prod(-1)
        overlaps = (inner / (area[:, None] + area - inner) > 0.1).triu(1)
        kept = torch.ones_like(scores, dtype=torch.bool)
        for i in range(6):
            kept = kept & ~(overlaps[i] & kept[i])
        return torch.where(kept[:, None], corners[order], 0), scores * kept, kept.sum()

    yield from called(w, fn, lambda: (w.values(12, 4), w.values(12)))


@trial(TRIALS, skips=READ)
def losses_of_what_is_labelled(w):
    """Rows without a label are taken out by a mask."""
    model = w.model(layers, train=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        there = y != 3
        return descended(optimizer, F.cross_entropy(model(x)[there], y[there]))

    yield from stepped(w, step, batches(w), model.state_dict)


@trial(TRIALS, skips=READ)
def policies_that_check_themselves(w):
    """Distributions look at their parameters unless they are told not to."""
    model = w.model(layers)

    def fn(x):
        # Said outright: a compiler that was used before has switched it off.
        policy = torch.distributions.Categorical(logits=model(x), validate_args=True)
        action = policy.sample()
        return action, policy.log_prob(action), policy.entropy()

    yield from called(w, fn, lambda: (w.values(4, 8),))


@trial(TRIALS, skips=READ)
def inverse_of_a_covariance(w):
    def fn(x, y):
        centred = x - x.mean(0)
        spread = centred.T @ centred / len(x) + 0.1 * torch.eye(4, device=x.device)
        apart = y - x.mean(0)
        return torch.einsum("ni,ij,nj->n", apart, torch.linalg.inv(spread), apart)

    yield from called(w, fn, lambda: (w.values(9, 4), w.values(5, 4)))


@trial(TRIALS)
def processes_of_gauss(w):
    """A root that is not checked, solved by triangles, and a draw with it."""

    def fn(x, y, at):
        near = lambda a, b: (-0.5 * (a[:, None] - b[None]) ** 2).exp()  # noqa: E731
        root = torch.linalg.cholesky_ex(
            near(x, x) + 0.1 * torch.eye(6, device=x.device)
        )
        half = torch.linalg.solve_triangular(root.L, near(x, at), upper=False)
        rest = torch.linalg.solve_triangular(root.L, y[:, None], upper=False)
        mean, spread = (half.T @ rest)[:, 0], 1 - half.square().sum(0)
        return mean, spread, mean + spread.clamp(min=0).sqrt() * torch.randn_like(mean)

    yield from called(w, fn, lambda: (w.values(6), w.values(6), w.values(4)))


@trial(TRIALS, skips=READ)
def scaled_losses_with_a_plain_optimizer(w):
    """Whether a step is left out is found out on the host, but for fused optimizers."""
    model = w.model(layers, train=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    kind = "cuda" if w.place == "meta" else w.place
    scaler = torch.amp.GradScaler(kind, init_scale=256.0, growth_interval=3)

    def step(x, y):
        optimizer.zero_grad()
        with w.autocast(torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    scaler.scale(torch.ones(1, device=w.place))
    yield from stepped(w, step, batches(w), model.state_dict)


@trial(TRIALS)
def steps_left_out_on_the_device(w):
    """Where a gradient is not finite, the step is by nothing."""
    model = w.model(layers, train=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y, scale):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x * scale), y)
        loss.backward()
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
        fine = torch.isfinite(norm)
        for p in model.parameters():
            p.grad.copy_(torch.where(fine, p.grad, 0))
        optimizer.step()
        return loss.detach(), fine

    scale, i = torch.ones((), device=w.place), iter(range(CALLS))

    def make():
        scale.fill_(float("inf") if next(i) % 3 == 1 else 1.0)
        return *batches(w)(), scale

    yield from stepped(w, step, make, model.state_dict)


# Data of the host.


@trial(TRIALS)
def anchors_from_numbers(w):
    """Boxes at each place of a map, made of plain numbers in each call."""
    sizes = ((1.0, 2.0), (2.0, 1.0), (1.5, 1.5))

    def fn(moves, stride):
        h, wide = moves.shape[-2:]
        sides = torch.tensor(sizes, device=moves.device) * stride
        at = torch.meshgrid(torch.arange(h), torch.arange(wide), indexing="ij")
        centres = (torch.stack(at, -1).view(-1, 1, 2) + 0.5).to(moves.device) * stride
        moved = moves.flatten(1).T.view(-1, 3, 4)
        middle, side = centres + moved[..., :2] * sides, sides * moved[..., 2:].exp()
        boxes = torch.cat([middle - side / 2, middle + side / 2], -1)
        return boxes.clamp(0, stride * h), boxes[:, [0, -1]][..., [1, 0, 3, 2]]

    yield from called(w, fn, lambda: (w.values(12, 3, 4), 8))


@trial(TRIALS)
def weights_of_classes(w):
    """A loss with weights from a list, and the last place of each row."""
    model = w.model(lambda: nn.GRUCell(6, 4), train=True)
    optimizer = adamw(model.parameters())
    shares = {"rare": 0.7, "common": 0.1}

    def step(x, y):
        h, seen = x.new_zeros(len(x), 4), []
        for t in range(x.shape[1]):
            h = model(x[:, t], h)
            seen.append(h)
        last = torch.stack(seen, 1)[:, [-1, 0]].sum(1)
        weight = torch.tensor([shares["rare"]] + [shares["common"]] * 3)
        loss = F.cross_entropy(last, y, weight=weight.to(last))
        return descended(optimizer, loss)

    make = lambda: (w.values(3, 5, 6), w.ids(3) % 4)  # noqa: E731
    yield from stepped(w, step, make, model.state_dict)


@trial(TRIALS, reads=True, skips="on the host")
def sentences_of_many_lengths(w):
    """Packed by a list of lengths, of which there are two."""
    model = w.model(lambda: nn.LSTM(6, 5, batch_first=True, bidirectional=True))

    def fn(x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        out, (h, _) = model(packed)
        padded, sizes = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        return padded, torch.cat([h[-2], h[-1]], -1), sizes.tolist()

    f = w.graph(fn)
    for i in range(CALLS):
        with torch.no_grad():
            found = f(w.values(3, 5, 6), [3, 5, 2] if i < 5 else [4, 1, 5])
        yield found


@trial(TRIALS, skips="host")
def noise_from_the_host(w):
    """Numbers that are drawn there, as data loaders do."""

    def fn(x):
        noise = torch.rand(x.shape[-1]).to(x.device)
        return x + noise

    yield from called(w, fn, lambda: (w.values(3, 4),))


@trial(TRIALS, skips="the state of drawn moved")
def chances_of_the_host(w):
    """Whether an image is turned around is drawn by Python."""
    drawn = random.Random(5)

    def fn(x):
        return (
            x.flip(-1) * drawn.random() if drawn.random() < 0.5 else x + drawn.random()
        )

    yield from called(w, fn, lambda: (w.values(3, 4),))


@trial(TRIALS, reads=True)  # no device without memory is brought anything
def batches_moved_inside(w):
    """A loader's batch is brought to the device by the function."""
    model = w.model(layers)

    def fn(batch):
        batch = {name: each.to(w.place) for name, each in batch.items()}
        return F.cross_entropy(model(batch["x"]), batch["y"])

    source = torch.Generator().manual_seed(2)

    def make():
        x = torch.randn(4, 8, generator=source)
        return ({"x": x, "y": torch.randint(0, 4, (4,), generator=source)},)

    yield from called(w, fn, make)


# Tensors that stay there.


@trial(TRIALS, live=True)
def steps_counted_on_the_host(w):
    """An optimizer that has no other way: its steps run live."""
    model = w.model(layers, train=True)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)

    def step(x, y):
        return descended(optimizer, F.cross_entropy(model(x), y))

    yield from stepped(w, step, batches(w), model.state_dict)


@trial(TRIALS, skips="CPU tensor")
def averages_that_count(w):
    """Torch's own mean of a model counts on the host how many there were."""
    model = w.model(layers, train=True)
    decay = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    mean = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=decay)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        loss = descended(optimizer, F.cross_entropy(model(x), y))
        mean.update_parameters(model)
        return loss

    yield from stepped(w, step, batches(w), mean.state_dict)


@trial(TRIALS)
def averages_that_start_slowly(w):
    """A mean by hand, buffers, too: its decay grows with a count on the device."""
    build = lambda: nn.Sequential(nn.BatchNorm1d(8), layers())  # noqa: E731
    model = w.model(build, train=True)
    mean = copy.deepcopy(model).eval().requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-2)
    count = torch.zeros((), device=w.place)

    @torch.no_grad()
    def update():
        count.add_(1)
        decay = torch.minimum((1 + count) / (10 + count), count.new_tensor(0.99))
        for old, new in zip(mean.parameters(), model.parameters(), strict=True):
            old.lerp_(new, 1 - decay)
        for old, new in zip(mean.buffers(), model.buffers(), strict=True):
            old.copy_(new)

    def step(x, y):
        loss = descended(optimizer, F.cross_entropy(model(x), y))
        update()
        return loss, mean(x)

    yield from stepped(w, step, batches(w), mean.state_dict)


@trial(TRIALS)
def rates_by_epochs(w):
    """A scheduler of torch's, once in five steps: the rate is a number."""
    model = w.model(layers, train=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)

    def step(x, y):
        return descended(optimizer, F.cross_entropy(model(x), y))

    f, make = w.graph(step, reads=model.state_dict), batches(w)
    for i in range(CALLS):
        yield f(*make()), model.state_dict(), scheduler.get_last_lr()
        if i == 4:
            scheduler.step()


@trial(TRIALS, reads=True)
def rates_in_a_tensor(w):
    """A scheduler of torch's after each step, which fills a tensor."""
    model = w.model(layers, train=True)
    rate = torch.tensor(1e-2, device=w.place)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, capturable=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 0.9**i)

    def step(x, y):
        return descended(optimizer, F.cross_entropy(model(x), y))

    f, make = w.graph(step, reads=model.state_dict), batches(w)
    for _ in range(CALLS):
        loss = f(*make())
        scheduler.step()
        yield loss, model.state_dict(), optimizer.param_groups[0]["lr"]


@trial(TRIALS)
def temperature_on_the_host(w):
    """A number in a tensor that nobody has moved, and that changes once."""
    model = w.model(layers)
    model.temperature = torch.tensor(0.5)

    def fn(x):
        return (model(x) / model.temperature).softmax(-1)

    f = w.graph(fn)
    for i in range(CALLS):
        if i == 5:
            model.temperature.mul_(2)
        with torch.no_grad():
            found = f(w.values(4, 8))
        yield found
