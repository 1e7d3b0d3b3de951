"""Training as people write it: losses, optimizers by hand, targets that follow."""

from __future__ import annotations

import copy
import math

import pytest

from tests.integrations.models.worlds import Trial
from tests.integrations.programs.kit import adamw, called, stepped, trial

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

TRIALS: list[Trial] = []


def layers(given=8, hidden=16, made=4, act=nn.ReLU):
    return nn.Sequential(nn.Linear(given, hidden), act(), nn.Linear(hidden, made))


def descended(optimizer, loss):
    """Step by one loss, and return it."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.detach()


@trial(TRIALS)
def contrastive(w):
    """Pairs of images and words, each the other's class, by a learned temperature."""
    model = w.model(
        lambda: nn.ModuleDict({"image": layers(12), "words": layers(6)}), train=True
    )
    model.scale = nn.Parameter(torch.tensor(2.6, device=w.place))
    optimizer = adamw(model.parameters())

    def step(images, words):
        image = F.normalize(model["image"](images), dim=-1)
        logits = model.scale.exp() * image @ F.normalize(model["words"](words)).T
        labels = torch.arange(logits.shape[0], device=logits.device)
        loss = F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)
        loss = descended(optimizer, loss / 2)
        with torch.no_grad():
            model.scale.clamp_(0, math.log(100))
        return loss, (logits.argmax(1) == labels).float().mean()

    yield from stepped(
        w, step, lambda: (w.values(6, 12), w.values(6, 6)), model.state_dict
    )


@trial(TRIALS)
def proximal_policy(w):
    """Epochs over a rollout, advantages from behind, the ratio clipped."""
    policy = w.model(lambda: layers(4, 16, 3, nn.Tanh), train=True)
    critic = w.model(lambda: layers(4, 16, 1, nn.Tanh), train=True)
    parameters = [*policy.parameters(), *critic.parameters()]
    optimizer = adamw(parameters)

    def advantages(rewards, values, done):
        found, last = [], torch.zeros_like(rewards[0])
        for t in reversed(range(len(rewards))):
            delta = rewards[t] + 0.99 * values[t + 1] * ~done[t] - values[t]
            last = delta + 0.99 * 0.95 * ~done[t] * last
            found.insert(0, last)
        return torch.stack(found)

    def step(states, actions, rewards, done):
        with torch.no_grad():
            values = critic(states)[..., 0]
            before = policy(states[:-1]).log_softmax(-1).gather(-1, actions)[..., 0]
            gained = advantages(rewards, values, done)
        wanted, shown = gained + values[:-1], []
        gained = (gained - gained.mean()) / (gained.std() + 1e-8)
        for _ in range(2):
            logs = policy(states[:-1]).log_softmax(-1)
            ratio = (logs.gather(-1, actions)[..., 0] - before).exp()
            clipped = torch.min(ratio * gained, ratio.clamp(0.8, 1.2) * gained)
            value = 0.5 * F.mse_loss(critic(states[:-1])[..., 0], wanted)
            entropy = -(logs.exp() * logs).sum(-1).mean()
            shown.append(descended(optimizer, value - clipped.mean() - 0.01 * entropy))
        return shown

    def make():
        done = w.ids(5, 3) < 20
        return w.values(6, 3, 4), w.ids(5, 3, 1) % 3, w.values(5, 3), done

    yield from stepped(w, step, make, lambda: parameters)


@trial(TRIALS)
def q_learning_with_a_target(w):
    """The greater network follows the other one slowly."""
    model = w.model(layers, train=True)
    target = copy.deepcopy(model).requires_grad_(requires_grad=False)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-2, capturable=True)

    def step(batch):
        chosen = model(batch["state"]).gather(1, batch["action"])[:, 0]
        with torch.no_grad():
            best = model(batch["after"]).argmax(1, keepdim=True)
            later = target(batch["after"]).gather(1, best)[:, 0]
            wanted = batch["reward"] + 0.99 * later * (1 - batch["done"])
        loss = descended(optimizer, F.smooth_l1_loss(chosen, wanted))
        for old, new in zip(target.parameters(), model.parameters(), strict=True):
            old.data.mul_(0.99).add_(new.data, alpha=0.01)
        return loss, (chosen - wanted).detach().abs()

    def make():
        done = (w.ids(6) < 10).float()
        pairs = {"state": w.values(6, 8), "after": w.values(6, 8)}
        pairs |= {"action": w.ids(6, 1) % 4, "reward": w.values(6), "done": done}
        return (pairs,)

    yield from stepped(w, step, make, lambda: (model.state_dict(), target.state_dict()))


@trial(TRIALS)
def variational(w):
    coder, maker = w.model(lambda: layers(9, 16, 6)), w.model(lambda: layers(3, 16, 9))
    optimizer = adamw([*coder.parameters(), *maker.parameters()])

    def step(x, share):
        mean, log = coder(x).chunk(2, -1)
        code = mean + torch.randn_like(mean) * (0.5 * log).exp()
        made = F.binary_cross_entropy_with_logits(maker(code), x.sigmoid())
        away = -0.5 * (1 + log - mean.square() - log.exp()).sum(-1).mean()
        loss = descended(optimizer, made + share * away)
        return {"loss": loss, "made": made.detach(), "away": away.detach()}

    writes = lambda: [*coder.parameters(), *maker.parameters()]  # noqa: E731
    share = torch.tensor(0.1, device=w.place)
    yield from stepped(w, step, lambda: (w.values(4, 9), share), writes)


@trial(TRIALS)
def makers_and_judges(w):
    """Hinge losses; the judge steps twice for each step of the maker, weights cut."""
    maker, judge = w.model(lambda: layers(4, 8, 6)), w.model(lambda: layers(6, 8, 1))
    first = torch.optim.RMSprop(maker.parameters(), lr=1e-2, capturable=True)
    second = torch.optim.RMSprop(judge.parameters(), lr=1e-2, capturable=True)

    def step(real):
        for _ in range(2):
            with torch.no_grad():
                made = maker(torch.randn(len(real), 4, device=real.device))
            loss = F.relu(1 - judge(real)).mean() + F.relu(1 + judge(made)).mean()
            found = descended(second, loss)
            with torch.no_grad():
                for each in judge.parameters():
                    each.clamp_(-0.2, 0.2)
        judge.requires_grad_(requires_grad=False)
        made = maker(torch.randn(len(real), 4, device=real.device))
        fooled = descended(first, -judge(made).mean())
        judge.requires_grad_(requires_grad=True)
        return found, fooled, made.detach()

    writes = lambda: (maker.state_dict(), judge.state_dict())  # noqa: E731
    yield from stepped(w, step, lambda: (w.values(5, 6),), writes)


class Lion(torch.optim.Optimizer):
    """Steps by the sign of a mean, as people write an optimizer of their own."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "decay": decay})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["mean"] = torch.zeros_like(p)
                p.mul_(1 - group["lr"] * group["decay"])
                early, late = group["betas"]
                update = state["mean"].lerp(p.grad, 1 - early).sign_()
                p.add_(update, alpha=-group["lr"])
                state["mean"].lerp_(p.grad, 1 - late)
        return loss


@trial(TRIALS)
def lion(w):
    model = w.model(layers, train=True)
    optimizer = Lion(model.parameters())

    def step(x, y):
        return descended(optimizer, F.mse_loss(model(x), y))

    def writes():
        return model.state_dict(), [dict(each) for each in optimizer.state.values()]

    yield from stepped(w, step, lambda: (w.values(4, 8), w.values(4, 4)), writes)


@trial(TRIALS)
def adam_by_hand(w):
    """Plain tensors with moments in lists, the time as a tensor."""
    weights = [w.values(8, 4).requires_grad_(), w.values(4).requires_grad_()]
    first, second = ([torch.zeros_like(p) for p in weights] for _ in range(2))
    time = torch.zeros((), device=w.place)

    def step(x, y):
        loss = F.mse_loss((x @ weights[0]).tanh() + weights[1], y)
        grads = torch.autograd.grad(loss, weights)
        time.add_(1)
        with torch.no_grad():
            for p, g, m, v in zip(weights, grads, first, second, strict=True):
                m.mul_(0.9).add_(g, alpha=0.1)
                v.mul_(0.999).addcmul_(g, g, value=0.001)
                near, far = m / (1 - 0.9**time), v / (1 - 0.999**time)
                p.sub_(1e-2 * near / (far.sqrt() + 1e-8))
        return loss.detach()

    make = lambda: (w.values(4, 8), w.values(4, 4))  # noqa: E731
    yield from stepped(w, step, make, lambda: (weights, first, second, time))


@trial(TRIALS)
def momentum_over_lists(w):
    """Descent with momentum by operations on lists of tensors, the rate a tensor."""
    model = w.model(layers, train=True)
    parameters = list(model.parameters())
    speeds = [torch.zeros_like(p) for p in parameters]
    rate = torch.tensor(0.1, device=w.place)

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            torch._foreach_mul_(speeds, 0.9)
            torch._foreach_add_(speeds, list(grads))
            torch._foreach_sub_(parameters, torch._foreach_mul(speeds, rate))
            rate.mul_(0.95)
        return loss.detach(), torch.stack(torch._foreach_norm(list(grads)))

    make = lambda: (w.values(4, 8), w.ids(4) % 4)  # noqa: E731
    yield from stepped(w, step, make, lambda: (parameters, speeds, rate))


@trial(TRIALS)
def mixed_up_batches(w):
    """Images mixed with others, labels smoothed: the shares are drawn in the step."""

    def build():
        return nn.Sequential(
            *(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(72, 5)),
        )

    model = w.model(build, train=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)

    def step(x, y):
        share = torch.rand((), device=x.device) * 0.5 + 0.5
        others = torch.rand(len(x), device=x.device).argsort()
        logits = model(share * x + (1 - share) * x[others])
        mine, theirs = (
            F.cross_entropy(logits, each, label_smoothing=0.1)
            for each in (y, y[others])
        )
        return descended(optimizer, share * mine + (1 - share) * theirs), share

    make = lambda: (w.values(4, 3, 8, 8), w.ids(4) % 5)  # noqa: E731
    yield from stepped(w, step, make, model.state_dict)


@trial(TRIALS)
def focal_and_boxes(w):
    """A detector's losses, weighted by counts of boxes that stay on the device."""
    model = w.model(lambda: nn.ModuleList([layers(8, 16, 3), layers(8, 16, 4)]))
    optimizer = adamw(model.parameters())

    def step(x, labels, boxes):
        logits, found = (head(x) for head in model)
        there = (labels > 0).float()
        wanted = F.one_hot(labels, 4)[:, 1:].float()
        chance = logits.sigmoid()
        right = chance * wanted + (1 - chance) * (1 - wanted)
        loss = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
        loss = (0.25 * (1 - right) ** 2 * loss).sum()
        apart = (F.smooth_l1_loss(found, boxes, reduction="none").sum(-1) * there).sum()
        count = there.sum().clamp(min=1)
        return descended(optimizer, (loss + 2 * apart) / count), count

    make = lambda: (w.values(12, 8), w.ids(12) % 4, w.values(12, 4))  # noqa: E731
    yield from stepped(w, step, make, model.state_dict)


@trial(TRIALS)
def taught_by_a_greater_model(w):
    teacher = w.model(lambda: layers(8, 32))
    model = w.model(lambda: layers(8, 4), train=True)
    teacher.requires_grad_(requires_grad=False)
    optimizer = adamw(model.parameters(), weight_decay=0.1)

    def step(x, y):
        logits = model(x)
        with torch.no_grad():
            soft = teacher(x) / 4
        soft, log = soft.softmax(-1), F.log_softmax(logits / 4, -1)
        told = F.kl_div(log, soft, reduction="batchmean")
        loss = 0.3 * F.cross_entropy(logits, y) + 0.7 * 16 * told
        return descended(optimizer, loss), told.detach()

    make = lambda: (w.values(4, 8), w.ids(4) % 4)  # noqa: E731
    yield from stepped(w, step, make, model.state_dict)


@trial(TRIALS)
def a_queue_of_keys(w):
    """A mean of the model makes keys; a queue on the device keeps the last ones."""
    model = w.model(layers, train=True)
    slow = copy.deepcopy(model).requires_grad_(requires_grad=False)
    queue = F.normalize(w.values(12, 4))
    place = torch.zeros(1, dtype=torch.int64, device=w.place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, other):
        with torch.no_grad():
            torch._foreach_lerp_([*slow.parameters()], [*model.parameters()], 0.1)
            keys = F.normalize(slow(other))
        asked = F.normalize(model(x))
        near = (asked * keys).sum(-1, keepdim=True)
        logits = torch.cat([near, asked @ queue.clone().T], 1) / 0.07
        nothing = torch.zeros(len(x), dtype=torch.long, device=x.device)
        loss = descended(optimizer, F.cross_entropy(logits, nothing))
        rows = (place + torch.arange(len(x), device=x.device)) % len(queue)
        queue.index_copy_(0, rows, keys)
        place.add_(len(x)).remainder_(len(queue))
        return loss

    writes = lambda: (model.state_dict(), slow.state_dict(), queue, place)  # noqa: E731
    yield from stepped(w, step, lambda: (w.values(4, 8), w.values(4, 8)), writes)


@trial(TRIALS)
def steps_aware_of_sharpness(w):
    """Two passes: one up to where the loss is worst, one down from there."""
    model = w.model(layers, train=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x, y):
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            norms = [p.grad.norm() for p in model.parameters()]
            scale = 0.05 / (torch.stack(norms).norm() + 1e-12)
            moves = [p.grad * scale for p in model.parameters()]
            for p, move in zip(model.parameters(), moves, strict=True):
                p.add_(move)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves, strict=True):
                p.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    make = lambda: (w.values(4, 8), w.ids(4) % 4)  # noqa: E731
    yield from stepped(w, step, make, model.state_dict)


def orthogonal(g, steps=5):
    """Return what is nearly the nearest orthogonal matrix, by Newton and Schulz."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16()
    x = x.mT if g.shape[0] > g.shape[1] else x
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        y = x @ x.mT
        x = a * x + (b * y + c * y @ y) @ x
    return (x.mT if g.shape[0] > g.shape[1] else x).to(g.dtype)


@trial(TRIALS)
def muon(w):
    """Matrices step orthogonally, vectors by AdamW; the rate warms up on the device."""
    model = w.model(layers, train=True)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    means = [torch.zeros_like(p) for p in matrices]
    optimizer = adamw([p for p in model.parameters() if p.ndim < 2])
    time = torch.zeros((), device=w.place)

    def step(x, y):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        time.add_(1)
        rate = 0.02 * torch.clamp(time / 4, max=1) * (0.5 + 0.5 * torch.cos(time / 4))
        for p, mean in zip(matrices, means, strict=True):
            mean.lerp_(p.grad, 0.05)
            update = orthogonal(p.grad.lerp(mean, 0.95))
            p.data.sub_(rate * max(1, p.shape[0] / p.shape[1]) ** 0.5 * update)
        optimizer.step()
        model.zero_grad()
        return loss.detach(), rate

    make = lambda: (w.values(4, 8), w.values(4, 4))  # noqa: E731
    yield from stepped(w, step, make, lambda: (model.state_dict(), means, time))


@trial(TRIALS)
def hardest_of_a_batch(w):
    """Triplets of the farthest alike and the nearest that is not."""
    model = w.model(layers, train=True)
    optimizer = adamw(model.parameters())

    def step(x, y):
        z = F.normalize(model(x))
        apart = (2 - 2 * z @ z.T).clamp(min=1e-9).sqrt()
        alike = y[:, None] == y[None]
        far = apart.masked_fill(~alike, 0).amax(1)
        near = apart.masked_fill(alike, 9.0).amin(1)
        loss = F.softplus(far - near + 0.2)
        return descended(optimizer, loss.mean()), loss.detach()

    make = lambda: (w.values(9, 8), w.ids(9) % 3)  # noqa: E731
    yield from stepped(w, step, make, model.state_dict)


@trial(TRIALS)
def images_made_other(w):
    """Turned, scaled, cut and coloured by random numbers, each image on its own."""

    def fn(x):
        b = x.shape[0]
        angle = (torch.rand(b, device=x.device) - 0.5) * math.pi / 4
        scale = torch.empty(b, device=x.device).uniform_(0.8, 1.2)
        flip = torch.where(torch.rand(b, device=x.device) < 0.5, -1.0, 1.0)
        cos, sin = angle.cos() * scale, angle.sin() * scale
        shift = torch.rand(b, 2, device=x.device) * 0.2 - 0.1
        rows = torch.stack([cos * flip, -sin, sin * flip, cos], 1).view(b, 2, 2)
        grid = F.affine_grid(torch.cat([rows, shift[..., None]], 2), x.shape, False)
        y = F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)
        grey = y.mean(1, keepdim=True)
        y = grey + (y - grey) * torch.empty(b, 1, 1, 1, device=x.device).uniform_(
            0.5, 1.5
        )
        corner = torch.randint(0, 5, (b, 2, 1), device=x.device)
        at = torch.arange(8, device=x.device)
        cut = (at >= corner) & (at < corner + 3)
        return y.masked_fill((cut[:, 0, :, None] & cut[:, 1, None])[:, None], 0.5)

    yield from called(w, fn, lambda: (w.values(3, 3, 8, 8),), last=None)
