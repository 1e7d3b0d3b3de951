"""Models of transformers and torchvision, side by side: eager, trees, by hand, graphed.

Weights are random, sizes are those of small models (four layers of width 256), so that
the host is what decides. Columns and units are those of `torch_gpu.py`: *trees* is
``torch.compile(mode="reduce-overhead")``, which may compile for ``--compile`` seconds.
Whether a graphed model equals its eager self is what tests/integrations/models is for.

Run it by path for a table; ``--out`` keeps the figures as models.json, by default in
$OUT.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch
from torch_gpu import about, alternating, by_hand, by_torch, eager, timed
from torch_limit import Figures, tried
from torch_rows import Row

import sapwood as sw

WORDS: Final = 1000
SIZES: Final = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
}
T5: Final = {"d_model": 256, "d_ff": 1024, "num_layers": 4, "num_heads": 8, "d_kv": 32}
GPT2: Final = {"n_layer": 4, "n_embd": 256, "n_head": 8, "vocab_size": WORDS}
COLUMNS: Final = ("eager", "trees", "by hand", "same inputs", "other inputs")
COMPILING: Final = 40


def words(length: int = 64) -> Any:
    """Return a batch of texts."""
    return torch.randint(0, WORDS, (2, length), device="cuda")


def of(library: str, name: str, config: str, sizes: Mapping[str, Any]) -> Any:
    """Return a model of a library's, with random weights."""
    found = import_module(library)
    return getattr(found, name)(getattr(found, config)(**sizes)).cuda().eval()


def called(title: str, model: Any, count: int = 30, **given: Any) -> Row:
    """Return the row of a model that is called by keywords."""
    names = tuple(given)

    def fn(*args: Any) -> Any:
        return model(**dict(zip(names, args, strict=True)), **fixed)

    fixed = {} if "pixel_values" in given else {"use_cache": False}
    return Row(title, fn, tuple(given.values()), count)


def gpt2() -> Row:
    """Read a text."""
    model = of("transformers", "GPT2LMHeadModel", "GPT2Config", GPT2)
    return called("GPT-2, prefill", model, input_ids=words())


def llama_config() -> dict[str, Any]:
    """Return the sizes of a Llama."""
    return {**SIZES, "vocab_size": WORDS, "num_key_value_heads": 4}


def llama() -> Row:
    """Read a text."""
    model = of("transformers", "LlamaForCausalLM", "LlamaConfig", llama_config())
    return called("Llama, prefill", model, input_ids=words())


def llama_decode() -> Row:
    """Go on by one word, with a static cache."""
    library = import_module("transformers")
    model = of("transformers", "LlamaForCausalLM", "LlamaConfig", llama_config())
    cache = library.StaticCache(config=model.config, max_cache_len=4096)
    place = torch.full((2, 1), 64, device="cuda")
    model(input_ids=words(), past_key_values=cache, use_cache=True)

    def step(word: Any, place: Any) -> Any:
        given = {"past_key_values": cache, "use_cache": True}
        return model(input_ids=word, position_ids=place, **given).logits

    return Row("Llama, static cache, a token", step, (words(1), place), 30)


def bert() -> Row:
    """Read texts whose mask says nothing."""
    model = of(
        "transformers", "BertModel", "BertConfig", {**SIZES, "vocab_size": WORDS}
    )
    mask = torch.ones(2, 64, dtype=torch.long, device="cuda")
    return called("BERT, with a mask", model, input_ids=words(), attention_mask=mask)


def vit() -> Row:
    """Look at images."""
    sizes = {**SIZES, "image_size": 96, "patch_size": 16}
    model = of("transformers", "ViTModel", "ViTConfig", sizes)
    return called("ViT", model, pixel_values=torch.randn(2, 3, 96, 96, device="cuda"))


def t5() -> Row:
    """Read a text, and score another."""
    sizes = {**T5, "vocab_size": WORDS, "decoder_start_token_id": 0}
    model = of("transformers", "T5ForConditionalGeneration", "T5Config", sizes)
    given = {"input_ids": words(), "decoder_input_ids": words(16)}
    return called("T5", model, **given)


def mixtral() -> Row:
    """Read a text; which experts do is decided for each word."""
    sizes = {**llama_config(), "num_local_experts": 4}
    model = of("transformers", "MixtralForCausalLM", "MixtralConfig", sizes)
    return called("Mixtral, prefill", model, input_ids=words())


def clip() -> Row:
    """Hold two texts against two images."""
    sizes = {
        "text_config": {
            **SIZES,
            "vocab_size": WORDS,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        "vision_config": {**SIZES, "image_size": 96, "patch_size": 16},
    }
    model = of("transformers", "CLIPModel", "CLIPConfig", sizes)
    images = torch.randn(2, 3, 96, 96, device="cuda")
    return called("CLIP", model, input_ids=words(), pixel_values=images)


def whisper() -> Row:
    """Hear ten seconds, and score a text."""
    both = {"layers": 4, "attention_heads": 8, "ffn_dim": 1024}
    sizes = {
        f"{part}_{key}": n for part in ("encoder", "decoder") for key, n in both.items()
    }
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    sizes |= {"d_model": 256, "vocab_size": WORDS, "max_source_positions": 500, **ends}
    sizes["decoder_start_token_id"] = 1
    name, config = "WhisperForConditionalGeneration", "WhisperConfig"
    model = of("transformers", name, config, sizes)
    sound = torch.randn(2, 80, 1000, device="cuda")
    return called("Whisper", model, input_features=sound, decoder_input_ids=words(16))


def resnet18() -> Row:
    """Look at one image."""
    network = import_module("torchvision.models").resnet18(weights=None).cuda().eval()
    return Row("ResNet-18", network, (torch.randn(1, 3, 96, 96, device="cuda"),), 30)


ROWS: Final[dict[str, Callable[[], Row]]] = {
    each.__name__: each
    for each in (
        *(gpt2, llama, llama_decode, mixtral, bert),
        *(t5, vit, clip, whisper, resnet18),
    )
}


def graphed(row: Row) -> Figures:
    """Time a graphed model, and say why it is skipped, if it is."""
    with sw.Runtime(device="cuda:0", arrays="torch") as rt:
        call = rt.graph(row.fn)
        columns = {
            "same inputs": timed(lambda: call(*row.args), row.count),
            "other inputs": timed(alternating(row, call), row.count),
        }
        stats = call.stats()
        told = {"replays": stats.replays, "skipped": [why for why, _ in stats.skipped]}
        return {"columns": columns, **told}


def measured(row: Row, seconds: int) -> Figures:
    """Return the columns of a row; the compiler comes last."""
    found: Figures = {"title": row.title, "columns": {"eager": eager(row)}}
    found["columns"]["by hand"] = tried(lambda: by_hand(row))
    ours = tried(lambda: graphed(row))
    found["columns"] |= ours.pop("columns", dict.fromkeys(COLUMNS[3:], ours))
    trees = tried(lambda: by_torch(row, "reduce-overhead", seconds))
    found["columns"]["trees"] = trees
    return found | ours


def shown(figures: Figures) -> str:
    """Return host and total microseconds, or why there are none."""
    if "host" not in figures:
        return str(figures.get("says", "-"))[:24]
    return f"{figures['host']:,.0f} / {figures['total']:,.0f}"


def main() -> None:
    """Measure, print a table, and keep the figures."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", nargs="+", choices=[*ROWS], default=[*ROWS])
    arguments.add_argument("--compile", type=int, default=COMPILING, metavar="SECONDS")
    arguments.add_argument("--out", default=os.environ.get("OUT", ""))
    options = arguments.parse_args()
    warnings.simplefilter("ignore")
    kept: Figures = {"about": about(), "rows": {}}
    print(f"{'host / total us':30}", *[f"{each:>16}" for each in COLUMNS])
    for name in options.rows:
        with torch.no_grad():
            found = tried(lambda name=name: measured(ROWS[name](), options.compile))
        kept["rows"][name] = found
        cells = [shown(found.get("columns", {}).get(each, found)) for each in COLUMNS]
        why = "; ".join(found.get("skipped", []))[:60]
        title = found.get("title", name)
        print(f"{title:30}", *[f"{each:>16}" for each in cells], why, flush=True)
        if options.out:
            (Path(options.out) / "models.json").write_text(json.dumps(kept))


if __name__ == "__main__":
    main()
