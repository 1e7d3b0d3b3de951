"""Models of transformers of many families: small, with random weights, as they are."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from tests.integrations.models.language import (
    GPT2,
    READING,
    SEEING,
    WORDS,
    called,
    images,
    images_and_labels,
    labelled,
    masked,
    torch,
    trained,
    trial,
    words,
)

GROUPED = {**READING, "num_key_value_heads": 2}
WIDE = {**GROUPED, "head_dim": 8}
BLOCKS = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": WORDS}
ROTARY = {**BLOCKS, "rotary_dim": 4}
STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1]}
PAIR = {
    "d_model": 32,
    "vocab_size": WORDS,
    "pad_token_id": WORDS - 1,
    **{
        f"{side}_{what}": number
        for side in ("encoder", "decoder")
        for what, number in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))
    },
}
HEARING = {
    **READING,
    "conv_dim": (8, 8),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
STATES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "vocab_size": WORDS,
    "state_size": 4,
}


def causal(name, sizes, config=None):
    return f"{name}ForCausalLM", config or f"{name}Config", sizes


def filled(name, sizes):
    return f"{name}ForMaskedLM", f"{name}Config", sizes


def scripted(module):
    """Return why a model is skipped where transformers compiles it to TorchScript.

    Tensors that such code makes of plain values on the host are told to nobody.
    """
    found = find_spec("transformers")
    if found is None:
        return None
    source = Path(found.origin).parent / "models" / module / f"modeling_{module}.py"
    return "host data enters" if "@torch.jit.script" in source.read_text() else None


def classes(name, sizes):
    return f"{name}ForImageClassification", f"{name}Config", sizes


TEXTS = {
    "mistral": causal("Mistral", GROUPED),
    "qwen2": causal("Qwen2", GROUPED),
    "qwen3": causal("Qwen3", WIDE),
    "gemma2": causal("Gemma2", WIDE),
    "gemma3": causal("Gemma3", WIDE, "Gemma3TextConfig"),
    "phi": causal("Phi", READING),
    "falcon": causal("Falcon", READING),
    "opt": causal(
        "OPT",
        {
            "hidden_size": 32,
            "ffn_dim": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "vocab_size": WORDS,
            "word_embed_proj_dim": 32,
        },
    ),
    "bloom": causal(
        "Bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": WORDS}
    ),
    "gpt-neox": causal("GPTNeoX", READING),
    "gpt-neo": causal(
        "GPTNeo",
        {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": WORDS,
            "attention_types": [[["global", "local"], 1]],
        },
    ),
    "gpt-j": causal("GPTJ", ROTARY),
    "starcoder2": causal("Starcoder2", GROUPED),
    "olmo2": causal("Olmo2", GROUPED),
    "stablelm": causal("StableLm", GROUPED),
    "cohere": causal("Cohere", GROUPED),
    "mamba": causal("Mamba", STATES),
    "mamba2": causal(
        "Mamba2",
        {**STATES, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8},
    ),
    "roberta": filled("Roberta", READING),
    "distilbert": filled(
        "DistilBert",
        {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4, "vocab_size": WORDS},
    ),
    "albert": filled("Albert", {**READING, "embedding_size": 16}),
    "mpnet": filled("MPNet", READING),
    "deberta": filled(
        "DebertaV2",
        {
            **READING,
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_buckets": 8,
        },
    ),
    "xlnet": (
        "XLNetLMHeadModel",
        "XLNetConfig",
        {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64, "vocab_size": WORDS},
    ),
    "bart": ("BartForConditionalGeneration", "BartConfig", PAIR),
}
IMAGES = {
    "deit": classes("DeiT", SEEING),
    "swin": classes(
        "Swin",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [1, 1],
            "num_heads": [2, 2],
            "window_size": 4,
        },
    ),
    "convnext": classes("ConvNext", {**STAGES, "num_stages": 2}),
    "resnet of transformers": classes("ResNet", {**STAGES, "embedding_size": 8}),
    "dinov2": classes("Dinov2", SEEING),
    "masked autoencoder": (
        "ViTMAEForPreTraining",
        "ViTMAEConfig",
        {
            **SEEING,
            "decoder_hidden_size": 16,
            "decoder_num_hidden_layers": 1,
            "decoder_num_attention_heads": 2,
            "decoder_intermediate_size": 32,
        },
    ),
}


# What models are called with.


def translated(w):
    return {**words(w), "decoder_input_ids": w.ids(2, 5)}


def waves(w):
    return {"input_values": w.values(2, 400)}


def films(w):
    return {"pixel_values": w.values(2, 2, 3, 32, 32)}


def captioned(w):
    return {**words(w), **images(w)}


def embedded(w):
    return {"inputs_embeds": w.values(2, 7, 32)}


def placed(w):
    return {**words(w), "position_ids": torch.zeros_like(w.ids(2, 7))}


def spans(w):
    ends = {f"{at}_positions": w.ids(2, below=5) for at in ("start", "end")}
    return {**words(w), **ends}


def sounds(w):
    return {"input_features": w.values(2, 80, 100)}


LLAMA, GPT = causal("Llama", GROUPED), ("GPT2LMHeadModel", "GPT2Config", GPT2)
STATES_TOO = {"output_hidden_states": True}
LONG = {"factor": 2.0, "rope_theta": 10000.0}
SKIPS = {"deberta": scripted("deberta_v2")}
CALLED = [
    *(
        trial(name, called, spec, words, skips=SKIPS.get(name))
        for name, spec in TEXTS.items()
    ),
    *(trial(name, called, spec, images) for name, spec in IMAGES.items()),
    *(
        trial(name, called, (model, f"{name.capitalize()}Config", PAIR), translated)
        for name, model in (
            ("pegasus", "PegasusForConditionalGeneration"),
            ("marian", "MarianMTModel"),
        )
    ),
    trial("wav2vec2", called, ("Wav2Vec2ForCTC", "Wav2Vec2Config", HEARING), waves),
    trial("hubert", called, ("HubertModel", "HubertConfig", HEARING), waves),
    trial(
        "blip",
        called,
        (
            "BlipForConditionalGeneration",
            "BlipConfig",
            {
                "text_config": {
                    **READING,
                    "encoder_hidden_size": 32,
                    "bos_token_id": 1,
                    "pad_token_id": 0,
                },
                "vision_config": SEEING,
            },
        ),
        captioned,
    ),
    trial(
        "siglip",
        called,
        (
            "SiglipModel",
            "SiglipConfig",
            {"text_config": READING, "vision_config": SEEING},
        ),
        captioned,
    ),
    trial(
        "timesformer",
        called,
        (
            "TimesformerForVideoClassification",
            "TimesformerConfig",
            {**SEEING, "num_frames": 2},
        ),
        films,
    ),
    trial(
        "segformer",
        called,
        (
            "SegformerForSemanticSegmentation",
            "SegformerConfig",
            {
                **STAGES,
                "num_encoder_blocks": 2,
                "sr_ratios": [2, 1],
                "num_attention_heads": [1, 2],
                "patch_sizes": [7, 3],
                "strides": [4, 2],
                "mlp_ratios": [2, 2],
                "decoder_hidden_size": 16,
            },
        ),
        images,
    ),
    trial(
        "sounds by class",
        called,
        (
            "WhisperForAudioClassification",
            "WhisperConfig",
            {
                **{key: size for key, size in PAIR.items() if key != "pad_token_id"},
                "max_source_positions": 50,
                "pad_token_id": 0,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "decoder_start_token_id": 1,
                "classifier_proj_size": 16,
            },
        ),
        sounds,
    ),
    trial(
        "longformer",
        called,
        filled("Longformer", {**READING, "attention_window": 4}),
        words,
        skips="on the host",
    ),
    trial(
        "beit",
        called,
        classes("Beit", {**SEEING, "use_relative_position_bias": True}),
        images,
        skips="CPU tensor",
    ),
    # The same model, asked for more, or in other ways.
    trial("gpt2, hidden states", called, GPT, words, **STATES_TOO),
    trial("llama, hidden states", called, LLAMA, words, **STATES_TOO),
    trial(
        "llama, attentions",
        called,
        LLAMA,
        words,
        config={"attn_implementation": "eager"},
        output_attentions=True,
    ),
    trial("llama, a tuple", called, LLAMA, words, return_dict=False),
    trial("llama, embedded", called, LLAMA, embedded),
    trial("llama, places", called, LLAMA, placed),
    trial("llama, the last word", called, LLAMA, masked, logits_to_keep=1),
    trial(
        "llama, yarn",
        called,
        LLAMA,
        words,
        config={"rope_scaling": {**LONG, "rope_type": "yarn"}},
    ),
    trial(
        "llama, dynamic places",
        called,
        LLAMA,
        words,
        skips="on the host",
        config={"rope_scaling": {**LONG, "rope_type": "dynamic"}},
    ),
    trial(
        "llama, classes",
        called,
        ("LlamaForSequenceClassification", "LlamaConfig", {**GROUPED, **GPT2}),
        words,
        config={"pad_token_id": 0},
    ),
    trial(
        "bert, spans",
        called,
        ("BertForQuestionAnswering", "BertConfig", READING),
        spans,
    ),
]
LEARNING = ("mistral", "gemma2", "opt", "bloom", "gpt-neox", "roberta", "distilbert")
TRAINED = [
    *(
        trial(
            f"{name}, training",
            trained,
            TEXTS[name],
            labelled,
            skips=SKIPS.get(name),
        )
        for name in (*LEARNING, "deberta", "bart")
    ),
    *(
        trial(
            f"{name}, training",
            trained,
            IMAGES[name],
            images_and_labels,
        )
        for name in ("swin", "convnext")
    ),
]
TRIALS = [*CALLED, *TRAINED]
