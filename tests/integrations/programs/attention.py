"""Attention of many kinds, and what decoders do with the words that they find."""

from __future__ import annotations

import math

import pytest

from tests.integrations.models.worlds import Trial
from tests.integrations.programs.kit import CALLS, called, trial

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

TRIALS: list[Trial] = []


def turned(x, angles):
    """Turn pairs of features by angles, as Llama does."""
    left, right = x.chunk(2, -1)
    both = torch.cat([-right, left], -1)
    return x * angles.cos() + both * angles.sin()


class Grouped(nn.Module):
    """Attention whose keys are shared by groups of queries, turned by their places."""

    def __init__(self, width=32, heads=4, shared=2):
        super().__init__()
        self.size = width // heads
        self.q, self.o = nn.Linear(width, width), nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * shared * self.size)
        steps = torch.arange(0, self.size, 2) / self.size
        self.register_buffer("speeds", 10_000**-steps, persistent=False)

    def angles(self, places):
        angles = places[..., None].float() * self.speeds
        return torch.cat([angles, angles], -1)

    def heads(self, x):
        return x.unflatten(-1, (-1, self.size)).transpose(1, 2)

    def forward(self, x):
        angles = self.angles(torch.arange(x.shape[1], device=x.device))
        k, v = self.kv(x).chunk(2, -1)
        q, k = turned(self.heads(self.q(x)), angles), turned(self.heads(k), angles)
        y = F.scaled_dot_product_attention(
            q, k, self.heads(v), is_causal=True, enable_gqa=True
        )
        return self.o(y.transpose(1, 2).flatten(2))


@trial(TRIALS)
def attention_grouped_and_rotary(w):
    yield from called(w, w.model(Grouped), lambda: (w.values(2, 9, 32),))


class Decoder(Grouped):
    """The same, one word at a time: keys and values are kept in buffers."""

    def __init__(self):
        super().__init__()
        for name in ("keys", "seen"):
            self.register_buffer(name, torch.zeros(1, 2, 16, 8))

    def forward(self, x, place):
        angles = self.angles(place)
        k, v = self.kv(x).chunk(2, -1)
        self.keys.index_copy_(2, place, turned(self.heads(k), angles))
        self.seen.index_copy_(2, place, self.heads(v))
        mask = torch.arange(16, device=x.device) <= place
        keys, seen = (each.repeat_interleave(2, 1) for each in (self.keys, self.seen))
        scores = turned(self.heads(self.q(x)), angles) @ keys.mT / math.sqrt(8)
        scores = scores.masked_fill(~mask, -math.inf).softmax(-1)
        return self.o((scores @ seen).transpose(1, 2).flatten(2))


@trial(TRIALS)
def attention_with_a_static_cache(w):
    model = w.model(Decoder)
    f, kept = w.graph(model), []
    for i in range(CALLS):
        place = torch.full((1,), i, device=w.place)
        with torch.no_grad():
            kept.append(f(w.values(1, 1, 32), place))
        yield kept, dict(model.named_buffers())


@trial(TRIALS)
def attention_with_alibi(w):
    project = w.model(lambda: nn.Linear(16, 48))
    slopes = (2.0 ** -torch.arange(1, 5)).to(w.place)

    def fn(x):
        q, k, v = project(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        places = torch.arange(x.shape[1], device=x.device)
        behind = (places[None] - places[:, None]).float()
        bias = slopes[:, None, None] * behind
        bias = bias.masked_fill(behind > 0, torch.finfo(x.dtype).min)
        return torch.baddbmm(
            bias.expand(x.shape[0], -1, -1, -1).flatten(0, 1),
            q.flatten(0, 1),
            k.flatten(0, 1).mT,
            alpha=0.5,
        ).softmax(-1) @ v.flatten(0, 1)

    yield from called(w, fn, lambda: (w.values(2, 7, 16),))


@trial(TRIALS)
def attention_in_a_window(w):
    model = w.model(lambda: nn.MultiheadAttention(16, 2, batch_first=True))

    def fn(x, pad):
        n = x.shape[1]
        far = torch.ones(n, n, dtype=torch.bool, device=x.device)
        far = far.triu(1) | far.tril(-3)
        y, weights = model(x, x, x, attn_mask=far, average_attn_weights=False)
        return y.masked_fill(pad[..., None], 0), weights

    def make():
        return w.values(2, 8, 16), w.ids(2, 8) < 20

    yield from called(w, fn, make, last=None)


@trial(TRIALS)
def attention_of_few_on_many(w):
    """Learned queries look at many places, as in a perceiver."""
    model = w.model(lambda: nn.TransformerDecoderLayer(16, 2, 32, 0.0, "gelu"))
    asked = nn.Parameter(w.values(3, 1, 16))

    def fn(x):
        found = asked.expand(-1, x.shape[1], -1)
        for _ in range(2):
            found = model(found, x)
        return found.mean(0), found

    yield from called(w, fn, lambda: (w.values(20, 2, 16),))


@trial(TRIALS)
def beam_search_step(w):
    """The best of all continuations: beams change places."""
    embed, cell = (
        w.model(lambda: nn.Embedding(20, 8)),
        w.model(lambda: nn.GRUCell(8, 8)),
    )

    def fn(words, scores, h, at):
        h = cell(embed(words.gather(1, at.expand(3, 1))[:, 0]), h)
        logits = (h @ embed.weight.T).log_softmax(-1)
        scores, flat = (scores[:, None] + logits).flatten().topk(3)
        beams, following = flat // 20, flat % 20
        words = words.index_select(0, beams)
        words = words.scatter(1, at.expand(3, 1) + 1, following[:, None])
        return words, scores, h.index_select(0, beams)

    f, h = w.graph(fn), w.values(3, 8)
    words = torch.zeros(3, CALLS + 1, dtype=torch.int64, device=w.place)
    scores = w.values(3)
    for i in range(CALLS):
        with torch.no_grad():
            at = torch.full((1, 1), i, device=w.place)
            words, scores, h = f(words, scores, h, at)
        yield words, scores, h


@trial(TRIALS)
def drafts_that_are_accepted(w):
    """How many words of a draft the model would say, too, and which it says next."""
    head = w.model(lambda: nn.Linear(8, 12))

    def fn(x, draft):
        likeliest = head(x).argmax(-1)
        right = (likeliest[:, :-1] == draft).to(torch.int64)
        run = torch.cumprod(right, 1).sum(1)
        following = likeliest.gather(1, run[:, None])
        places = torch.arange(draft.shape[1], device=x.device)
        return torch.where(places < run[:, None], draft, -1), following, run

    yield from called(w, fn, lambda: (w.values(3, 6, 8), w.ids(3, 5, below=12)))
