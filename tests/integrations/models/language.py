"""Models of transformers, with random weights, as they are and as they are used."""

from __future__ import annotations

from functools import partial
from importlib import import_module

import pytest

from tests.integrations.models.plain import CALLS, written
from tests.integrations.models.worlds import Trial

torch = pytest.importorskip("torch")

WORDS = 99
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
SEEING = {**SMALL, "image_size": 32, "patch_size": 8}
READING = {**SMALL, "vocab_size": WORDS}
GPT2 = {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": WORDS}
T5 = {
    "d_model": 32,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "d_kv": 8,
    "vocab_size": WORDS,
    "decoder_start_token_id": 0,
}
WHISPER = {
    "d_model": 32,
    "vocab_size": WORDS,
    "max_source_positions": 50,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    **{
        f"{side}_{what}": number
        for side in ("encoder", "decoder")
        for what, number in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))
    },
}
CLIP = {
    "text_config": {**READING, "eos_token_id": 98},
    "vision_config": SEEING,
    "projection_dim": 16,
}
EXPERTS = {**READING, "num_key_value_heads": 2, "num_local_experts": 4}

MODELS = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {**READING, "num_key_value_heads": 2}),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", EXPERTS),
    "bert": ("BertModel", "BertConfig", READING),
    "bert, masked words": ("BertForMaskedLM", "BertConfig", READING),
    "bert, classes": ("BertForSequenceClassification", "BertConfig", READING),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5),
    "vit": ("ViTForImageClassification", "ViTConfig", SEEING),
    "clip": ("CLIPModel", "CLIPConfig", CLIP),
    "whisper": ("WhisperForConditionalGeneration", "WhisperConfig", WHISPER),
}


def transformers():
    """Return the library, which says nothing of what it finds odd."""
    library = import_module("transformers")
    library.logging.set_verbosity_error()
    return library


def build(which, **options):
    """Return what builds a model of `MODELS`, or of a class, a config and sizes."""
    model, config, sizes = MODELS[which] if isinstance(which, str) else which

    def made():
        library = transformers()
        return getattr(library, model)(getattr(library, config)(**sizes, **options))

    return made


# What models are called with.


def words(w):
    return {"input_ids": w.ids(2, 7)}


def masked(w):
    return {**words(w), "attention_mask": torch.ones_like(w.ids(2, 7))}


def padded(w):
    """Return words of two lengths: the mask has holes."""
    mask = torch.ones_like(w.ids(2, 7))
    mask[1, :3] = 0
    return {**words(w), "attention_mask": mask}


def labelled(w):
    return {**masked(w), "labels": w.ids(2, 7)}


def classed(w):
    return {**padded(w), "labels": w.ids(2, below=5) % 2}


def both(w):
    return {**words(w), "decoder_input_ids": w.ids(2, 5)}


def images(w):
    return {"pixel_values": w.values(2, 3, 32, 32)}


def images_and_labels(w):
    return {**images(w), "labels": w.ids(2, below=5) % 2}


def images_and_words(w):
    return {**masked(w), **images(w)}


def sounds(w):
    return {
        "input_features": w.values(2, 80, 100),
        "decoder_input_ids": w.ids(2, 5),
    }


def sounds_and_labels(w):
    return {"input_features": w.values(2, 80, 100), "labels": w.ids(2, 5)}


def called(w, name, make, *, dtype=torch.float32, config=None, **options):
    """Call a model as it is, without gradients."""
    model = w.model(build(name, **(config or {}))).to(dtype)
    # Models for classes find that out of their first labels, and write it down.
    f = w.graph(model, reads=lambda: getattr(model.config, "problem_type", None))
    for _ in range(CALLS):
        given = make(w)
        with torch.no_grad():
            out = f(**given, **options)
        yield out


def decoded(w, name, *, static, calls=CALLS):
    """Read a text at once, then go on word by word with its cache."""
    model = w.model(build(name))
    kind = "StaticCache" if static else "DynamicCache"
    sizes = {"max_cache_len": 32} if static else {}
    cache = getattr(transformers(), kind)(config=model.config, **sizes)
    f, at = w.graph(model), 7
    places = torch.arange(at, device=w.place)[None].expand(2, -1)
    given = {"past_key_values": cache, "use_cache": True}
    with torch.no_grad():
        yield f(w.ids(2, at), position_ids=places, **given).logits
    for _ in range(calls):
        place = torch.full((2, 1), at, device=w.place)
        with torch.no_grad():
            out = f(w.ids(2, 1), position_ids=place, **given)
        yield out.logits
        at += 1
    yield cache


def generated(w, name, make=words, *, whole=False, **options):
    """Generate with a graphed forward, or with generating graphed as a whole."""
    model = w.model(build(name))
    if whole:
        generate = w.graph(model.generate)
    else:
        model.forward = w.graph(model.forward)
        generate = model.generate
    for _ in range(5):
        with torch.no_grad():
            out = generate(
                **make(w),
                max_new_tokens=6,
                min_new_tokens=6,
                pad_token_id=0,
                disable_compile=True,
                **options,
            )
        yield out


def trained(w, name, make=labelled, *, dtype=None, scaled=False, **options):
    """Train a model as people do, gradients clipped."""
    model = w.model(build(name), train=True)
    options = {"capturable": True, **options}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
    kind = "cuda" if w.place == "meta" else w.place
    scaler = torch.amp.GradScaler(kind, init_scale=1024.0, enabled=scaled)
    if scaled:
        scaler.scale(torch.ones(1, device=w.place))

    def step(batch):
        optimizer.zero_grad()
        if dtype is None:
            loss = model(**batch).loss
        else:
            with w.autocast(dtype):
                loss = model(**batch).loss
        scaler.scale(loss).backward()
        if not scaled:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    f = w.graph(step, reads=lambda: written(model, optimizer))
    for _ in range(CALLS):
        yield f(make(w))
    yield (
        written(model, optimizer),
        [vars(scaler).get(each) for each in ("_scale", "_growth_tracker")],
    )


def trial(
    name, run, *args, skips=None, moves=False, reads=False, live=False, **options
):
    program = partial(run, **options)
    needs = ("transformers",)
    return Trial(name, lambda w: program(w, *args), skips, moves, reads, live, needs)


OFF = {"use_cache": False}
HALF = {"dtype": torch.bfloat16}
CALLED = [
    *(trial(f"{n}", called, n, words) for n in ("gpt2", "llama", "bert")),
    *(trial(f"{n}, no cache", called, n, words, **OFF) for n in ("gpt2", "llama")),
    *(trial(f"{n}, mask", called, n, masked) for n in ("gpt2", "llama", "bert")),
    *(trial(f"{n}, holes", called, n, padded) for n in ("gpt2", "llama", "bert")),
    *(trial(f"{n}, labels", called, n, labelled) for n in ("gpt2", "llama")),
    trial("bert, masked words", called, "bert, masked words", labelled),
    trial("bert, classes", called, "bert, classes", classed),
    trial("mixtral", called, "mixtral", words, **HALF),
    trial("mixtral, mask and no cache", called, "mixtral", masked, **HALF, **OFF),
    trial(
        "mixtral, experts one by one",
        called,
        "mixtral",
        words,
        skips="on the host",
        config={"experts_implementation": "eager"},
    ),
    trial("t5", called, "t5", both),
    trial("t5, no cache", called, "t5", both, **OFF),
    trial("t5, labels", called, "t5", labelled),
    trial("vit", called, "vit", images),
    trial("vit, labels", called, "vit", images_and_labels),
    trial("clip", called, "clip", images_and_words),
    trial("clip, loss", called, "clip", images_and_words, return_loss=True),
    trial("whisper", called, "whisper", sounds),
    trial("whisper, no cache", called, "whisper", sounds, **OFF),
    trial("whisper, labels", called, "whisper", sounds_and_labels),
]
DECODED = [
    *(
        trial(f"{name}, static decode", decoded, name, static=True)
        for name in ("gpt2", "llama")
    ),
    *(
        trial(
            f"{name}, dynamic decode",
            decoded,
            name,
            static=False,
            moves=True,
        )
        for name in ("gpt2", "llama")
    ),
]
WAYS = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "top_k": 10},
    "greedy, static": {"do_sample": False, "cache_implementation": "static"},
    "sampling, static": {"do_sample": True, "cache_implementation": "static"},
}
GENERATED = [
    *(
        trial(f"{name}, {how}", generated, name, moves=True, reads=True, **options)
        for name in ("gpt2", "llama")
        for how, options in WAYS.items()
    ),
    trial("t5, greedy", generated, "t5", moves=True, reads=True, do_sample=False),
    trial(
        "llama, all of greedy",
        generated,
        "llama",
        whole=True,
        skips="on the host",
        do_sample=False,
    ),
]
TRAINED = [
    *(trial(f"{name}, training", trained, name) for name in ("gpt2", "llama", "t5")),
    trial("bert, training", trained, "bert, classes", classed),
    trial("vit, training", trained, "vit", images_and_labels),
    trial("gpt2, training fused", trained, "gpt2", fused=True),
    trial("llama, training in half", trained, "llama", fused=True, **HALF),
    trial(
        "gpt2, training scaled",
        trained,
        "gpt2",
        scaled=True,
        fused=True,
        dtype=torch.float16,
    ),
    trial(
        "llama, not capturable",
        trained,
        "llama",
        live=True,
        capturable=False,
    ),
]
TRIALS = [*CALLED, *DECODED, *GENERATED, *TRAINED]
