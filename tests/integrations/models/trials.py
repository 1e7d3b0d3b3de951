"""Models with random weights, what they are called with, and what becomes of it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

F = nn.functional
BATCH, LENGTH, WORDS = 2, 7, 99
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
IMAGES = {**SIZES, "image_size": 32, "patch_size": 8}


@dataclass(frozen=True)
class Trial:
    """A model and its calls: ``inputs(device)`` makes new arguments for each.

    ``prepared(model, device)`` gives the function that is tried, where that is not the
    model itself. ``skips`` is said where it is not recorded; ``needs`` are packages.
    """

    build: Callable[[], Any]
    inputs: Callable[[Any], dict[str, Any]]
    needs: tuple[str, ...] = ()
    prepared: Callable[[Any, Any], Any] = field(default=lambda model, _: model)
    skips: str = ""
    trains: bool = False


def _of(name, config, **options):
    """Return what builds a model of transformers."""

    def build():
        library = importlib.import_module("transformers")
        return getattr(library, name)(getattr(library, config)(**options))

    return build


def words(device, length=LENGTH):
    return torch.randint(3, WORDS, (BATCH, length), device=device)


def _mask(device):
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long, device=device)
    mask[1, :2] = 0
    return mask


def _asked(**more):
    """Return what makes the inputs of a model of words; callables make theirs."""

    def inputs(device):
        made = {k: v(device) if callable(v) else v for k, v in more.items()}
        return {"input_ids": words(device), **made}

    return inputs


def _pixels(device):
    return torch.randn(BATCH, 3, 32, 32, device=device)


def _speech(device):
    return torch.randn(BATCH, 80, 100, device=device)


GPT2 = _of(
    "GPT2LMHeadModel", "GPT2Config", n_layer=2, n_embd=32, n_head=4, vocab_size=WORDS
)
LLAMA = _of(
    "LlamaForCausalLM", "LlamaConfig", **SIZES, num_key_value_heads=2, vocab_size=WORDS
)
BERT = _of("BertModel", "BertConfig", **SIZES, vocab_size=WORDS)
LABELLED = _of("BertForMaskedLM", "BertConfig", **SIZES, vocab_size=WORDS)
T5 = _of(
    "T5ForConditionalGeneration",
    "T5Config",
    d_model=32,
    d_ff=64,
    num_layers=2,
    num_heads=4,
    d_kv=8,
    vocab_size=WORDS,
    decoder_start_token_id=0,
)
VIT = _of("ViTForImageClassification", "ViTConfig", **IMAGES)
CLIP = _of(
    "CLIPModel",
    "CLIPConfig",
    text_config={**SIZES, "vocab_size": WORDS, "eos_token_id": WORDS - 1},
    vision_config=IMAGES,
    projection_dim=16,
)
WHISPER = _of(
    "WhisperForConditionalGeneration",
    "WhisperConfig",
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    max_source_positions=50,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    vocab_size=WORDS,
    decoder_start_token_id=1,
)


def _with_static_cache(model, device):
    """Return one step of decoding, into a cache that stays."""
    library = importlib.import_module("transformers")
    cache = library.StaticCache(config=model.config, max_cache_len=16)
    place = torch.tensor([LENGTH], device=device)
    with torch.no_grad():
        model(words(device), past_key_values=cache)

    def step(input_ids):
        position = place.expand(BATCH, 1)
        found = model(input_ids, past_key_values=cache, position_ids=position)
        return found.logits, cache.layers[0].keys

    step.model = model
    return step


def _one_word(device):
    return {"input_ids": words(device, 1)}


def _trained(model, device, **options):
    """Return a step of training, which writes parameters and what the optimizer has."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, capturable=True, **options
    )

    def step(**inputs):
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
            loss = model(**inputs)
            loss = getattr(loss, "loss", loss)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach(), norm

    step.model, step.optimizer = model, optimizer
    return step


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.all, self.last = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, n, width = x.shape
        parts = self.all(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        return self.last(y.transpose(1, 2).reshape(b, n, width))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attend = Attention(width, 4)
        self.mix = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attend(self.norms[0](x))
        return x + self.mix(self.norms[1](x))


class Small(nn.Module):
    """A language model as people write it by hand; with targets it gives the loss."""

    def __init__(self, width=32):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(16, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, input_ids, labels=None):
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.words(input_ids) + self.places(places)
        for block in self.blocks:
            x = block(x)
        if labels is None:
            return self.head(self.norm(x[:, [-1]]))
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Residual(nn.Module):
    def __init__(self, inside, outside, time):
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(n, outside, 3, padding=1) for n in (inside, outside)
        )
        self.time, self.norm = nn.Linear(time, outside), nn.GroupNorm(4, outside)
        self.skip = nn.Conv2d(inside, outside, 1)

    def forward(self, x, time):
        y = self.first(x) + self.time(time)[:, :, None, None]
        return self.skip(x) + self.second(F.silu(self.norm(y)))


class UNet(nn.Module):
    """A denoiser: down, up, and what is held between them."""

    def __init__(self):
        super().__init__()
        self.down, self.low = Residual(4, 16, 16), Residual(16, 32, 16)
        self.up, self.last = Residual(48, 16, 16), nn.Conv2d(16, 4, 1)

    def forward(self, x, time):
        rates = torch.exp(-torch.arange(8, device=x.device) / 2.0)
        angles = time[:, None] * rates
        time = torch.cat([angles.sin(), angles.cos()], -1)
        held = self.down(x, time)
        low = self.low(F.avg_pool2d(held, 2), time)
        up = F.interpolate(low, scale_factor=2.0, mode="nearest")
        return self.last(self.up(torch.cat([up, held], 1), time))


class Scheduler:
    """Takes a step of denoising, by a table on the host."""

    def __init__(self):
        self.kept = torch.linspace(0.99, 0.1, 10, device="cpu")

    def step(self, noise, number, x):
        now, then = self.kept[number], self.kept[max(number - 1, 0)]
        clean = (x - (1 - now).sqrt() * noise) / now.sqrt()
        return then.sqrt() * clean + (1 - then).sqrt() * noise


def _denoised(model, device):
    del device
    scheduler = Scheduler()

    def step(x, time):
        return scheduler.step(model(x, time), 5, x)

    step.model = model
    return step


def _noise(device):
    x = torch.randn(BATCH, 4, 8, 8, device=device)
    return {"x": x, "time": torch.full((BATCH,), 5.0, device=device)}


HF = ("transformers",)
OFF = {"use_cache": False}
TRIALS = {
    "gpt2": Trial(GPT2, _asked(), HF),
    "gpt2 without cache": Trial(GPT2, _asked(**OFF), HF),
    "gpt2 with mask": Trial(GPT2, _asked(attention_mask=_mask, **OFF), HF),
    "gpt2 with labels": Trial(GPT2, _asked(labels=words, **OFF), HF),
    "llama": Trial(LLAMA, _asked(), HF),
    "llama without cache": Trial(LLAMA, _asked(**OFF), HF),
    "llama with mask": Trial(LLAMA, _asked(attention_mask=_mask, **OFF), HF),
    "llama static": Trial(LLAMA, _one_word, HF, _with_static_cache),
    "gpt2 static": Trial(GPT2, _one_word, HF, _with_static_cache),
    "bert": Trial(BERT, _asked(), HF),
    "bert with mask": Trial(BERT, _asked(attention_mask=_mask), HF),
    "bert with labels": Trial(LABELLED, _asked(labels=words), HF),
    "t5": Trial(T5, _asked(decoder_input_ids=words, **OFF), HF),
    "t5 with cache": Trial(T5, _asked(decoder_input_ids=words), HF),
    "t5 with labels": Trial(T5, _asked(labels=words, **OFF), HF),
    "vit": Trial(VIT, lambda device: {"pixel_values": _pixels(device)}, HF),
    "clip": Trial(CLIP, _asked(pixel_values=_pixels, attention_mask=_mask), HF),
    "whisper": Trial(
        WHISPER,
        lambda d: {"input_features": _speech(d), "decoder_input_ids": words(d), **OFF},
        HF,
    ),
    "gpt2 trained": Trial(GPT2, _asked(labels=words, **OFF), HF, _trained, trains=True),
    "llama trained": Trial(
        LLAMA, _asked(labels=words, **OFF), HF, _trained, trains=True
    ),
    "small": Trial(Small, _asked()),
    "small trained": Trial(Small, _asked(labels=words), (), _trained, trains=True),
    "unet": Trial(UNet, _noise),
    "denoising": Trial(UNet, _noise, (), _denoised),
}


def _vision(name, **options):
    def build():
        library = importlib.import_module("torchvision.models")
        return library.get_model(name, weights=None, **options)

    def inputs(device):
        return {"x": torch.randn(BATCH, 3, 64, 64, device=device)}

    return Trial(build, inputs, ("torchvision",))


for _name in ("resnet18", "mobilenet_v2", "convnext_tiny"):
    TRIALS[_name] = _vision(_name)
TRIALS["deeplab"] = _vision("deeplabv3_resnet50", weights_backbone=None)
