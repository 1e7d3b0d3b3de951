"""What is called in every way: models and steps of torch's, one for each row."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, NamedTuple

import torch
from torch import nn

__all__ = ["ROWS", "Row", "transformer"]

Call = Callable[..., Any]
Args = tuple[Any, ...]

TOKENS: Final = 64


def once(call: Call, args: Args) -> Any:
    """Call once."""
    return call(*args)


class Row(NamedTuple):
    """A function and its arguments.

    ``drive(call, args)`` is what is timed, ``count`` times in a row: one call, or the
    many ``calls`` that hand results on. ``quick`` ones take torch little to compile.
    """

    title: str
    fn: Call
    args: Args
    count: int
    grad: bool = False
    drive: Call = once
    calls: int = 1
    quick: bool = True


def mlp() -> Row:
    """A chain of linear layers and activations, at batch 8."""
    layers: list[nn.Module] = []
    for _ in range(8):
        layers += [nn.Linear(256, 256), nn.GELU()]
    model = nn.Sequential(*layers).cuda().eval()
    return Row("8 x [Linear, GELU]", model, (torch.randn(8, 256, device="cuda"),), 200)


def inputs(n: int) -> Callable[[], Row]:
    """Many arguments, and as many results."""

    def made() -> Row:
        def add(*each: Any) -> list[Any]:
            return [t + 1 for t in each]

        args = tuple(torch.randn(64, device="cuda") for _ in range(n))
        return Row(f"{n} inputs", add, args, 100)

    return made


class Block(nn.Module):
    """One layer of a decoder, its keys and values in a cache of fixed length."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        for name in ("keys", "values"):
            shape = (1, heads, length, width // heads)
            self.register_buffer(name, torch.zeros(shape))

    def forward(self, x: Any, position: Any, mask: Any) -> Any:
        """Return the layer's output for one token."""
        parts = self.mixed(self.before(x)).split(self.width, dim=-1)
        shape = (1, 1, self.heads, self.width // self.heads)
        query, key, value = (part.view(shape).transpose(1, 2) for part in parts)
        self.keys.index_copy_(2, position, key)
        self.values.index_copy_(2, position, value)
        seen = nn.functional.scaled_dot_product_attention(
            query, self.keys, self.values, attn_mask=mask
        )
        x = x + self.out(seen.transpose(1, 2).reshape(1, 1, self.width))
        return x + self.down(nn.functional.gelu(self.up(self.behind(x))))


class Decoder(nn.Module):
    """Layers one after another, each with a cache."""

    def __init__(self, layers: int = 12, width: int = 768, length: int = 512) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(width, 12, length) for _ in range(layers))
        self.register_buffer("places", torch.arange(length))

    def forward(self, x: Any, position: Any) -> Any:
        """Return the output for one token at a position."""
        mask = (self.places <= position).view(1, 1, 1, -1)
        for layer in self.layers:
            x = layer(x, position, mask)
        return x


def decoder() -> Row:
    """One token through a decoder with a cache."""
    model = Decoder().cuda().bfloat16().eval()
    token = torch.randn(1, 1, 768, device="cuda", dtype=torch.bfloat16)
    position = torch.zeros(1, dtype=torch.long, device="cuda")
    return Row("decoder step, 12 layers", model, (token, position), 50)


def resnet50() -> Row:
    """The network of torchvision, at batch 1."""
    from torchvision.models import resnet50 as network

    model = network(weights=None).cuda().eval()
    image = torch.randn(1, 3, 224, 224, device="cuda")
    return Row("ResNet-50, batch 1", model, (image,), 30, quick=False)


def gpt2() -> Row:
    """A model of transformers' with a static cache, 64 greedy tokens.

    Mask and position are tensors of the device: nothing is needed on the host.
    """
    from transformers import GPT2Config, GPT2LMHeadModel, StaticCache

    config = GPT2Config(attn_implementation="sdpa")
    with torch.device("cuda"):
        model = GPT2LMHeadModel(config).bfloat16().eval()
        cache = StaticCache(config=config, max_cache_len=2 * TOKENS)
        places = torch.arange(2 * TOKENS)
        positions = [torch.full((1, 1), i) for i in range(TOKENS)]
        first = torch.full((1, 1), 464)
    heads = config.num_attention_heads
    cache.early_initialization(
        1, heads, config.hidden_size // heads, torch.bfloat16, first.device
    )
    lengths = [layer.cumulative_length for layer in cache.layers]

    def step(token: Any, position: Any) -> Any:
        mask = (places <= position).view(1, 1, 1, -1)
        found = model(
            input_ids=token,
            past_key_values=cache,
            attention_mask=mask,
            position_ids=position,
            use_cache=True,
        )
        return found.logits[:, -1].argmax(-1, keepdim=True)

    def generate(call: Call, args: Args) -> Any:
        token, _ = args
        torch._foreach_zero_(lengths)
        for position in positions:
            token = call(token, position)
        return token

    title = f"GPT-2 small of transformers, {TOKENS} tokens"
    args = first, positions[0]
    return Row(title, step, args, 2, drive=generate, calls=TOKENS, quick=False)


def training() -> Row:
    """A whole step of a small network: forward, backward, AdamW."""
    layers: list[nn.Module] = []
    for width, after in pairwise((128, 256, 256, 10)):
        layers += [nn.Linear(width, after), nn.ReLU()]
    model = nn.Sequential(*layers[:-1]).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    batch = torch.randn(64, 128, device="cuda")
    labels = torch.randint(0, 10, (64,), device="cuda")
    return Row("training step, AdamW", step, (batch, labels), 50, grad=True)


ROWS: Final[dict[str, Callable[[], Row]]] = {
    "mlp": mlp,
    "inputs-1": inputs(1),
    "inputs-4": inputs(4),
    "inputs-16": inputs(16),
    "inputs-64": inputs(64),
    "decoder": decoder,
    "resnet50": resnet50,
    "gpt2": gpt2,
    "training": training,
}
"""What makes each row, by the name that selects it."""


def transformer() -> nn.Module:
    """Return four blocks of width 1024."""
    layer = nn.TransformerEncoderLayer(
        1024, 16, 4096, dropout=0.0, batch_first=True, norm_first=True
    )
    encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return encoder.cuda().bfloat16().eval()
