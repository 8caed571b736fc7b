"""A tiny random MOSS-Image checkpoint in the layout of the real one, made in a moment. Needs the extra `moss`.

Owns weights that mean nothing. Called by tests, and by users who test their own code against this model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from worldloop.models.moss.config import SCHEDULE_KEYS, SKIP_KEYS, TransformerConfig
from worldloop.models.moss.files import INDEX, WEIGHTS, file_names
from worldloop.models.moss.transformer import MossTransformer

TINY = TransformerConfig(
    layers=3, text_layers=2, heads=2, head_dim=16, ffn_dim=40, channels=16, text_dim=32, time_dim=16,
    rope_axes=(4, 4, 4, 4), rope_base=10_000.0, eps=1e-6, bias=False,
)  # fmt: skip
SKIPPED = (1,)
"""The block that the pass without the prompt leaves out."""

MARKERS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
THINKING = ("<think>", "</think>")
"""Added to the vocabulary, but not special."""

TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + (message.content | trim) + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}"
    "{%- else %}{{- '<think>\\n' }}{%- endif %}{%- endif %}"
)
MERGES = (
    ("l", "a"),
    ("la", "k"),
    ("lak", "e"),
    ("Ċ", "Ċ"),
    ("Ġ", "a"),
    ("u", "s"),
    ("us", "e"),
    ("use", "r"),
)


def tiny_moss(folder: Path, *, seed: int = 0, transformer: TransformerConfig = TINY) -> Path:
    """Write a checkpoint of random weights into `folder`; returns the folder.

    Pictures are 64 x 64 by default, at most 6,144 pixels, sides multiples of 16. The same seed gives the same
    weights on one build.

    Args:
        transformer: its architecture; `text_dim` is 32 and `channels` 16, as the other parts have it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        _save_transformer(folder / "transformer", transformer)
        _save_encoder(folder / "text_encoder")
        _save_decoder(folder / "vae")
    _save_tokenizer(folder / "tokenizer")
    schedule = {SCHEDULE_KEYS["train_steps"]: 1000, SCHEDULE_KEYS["shift"]: 5.0}
    _write(folder / "scheduler" / "scheduler_config.json", {"_class_name": "MOSSImageScheduler", **schedule})
    _write(
        folder / INDEX,
        {
            "_class_name": "MOSSImagePipeline",
            "transformer": ["moss_image", "MOSSImageTransformer2DModel"],
            "scheduler": ["moss_image", "MOSSImageScheduler"],
            "text_encoder": ["transformers", "Qwen3_5Model"],
            "tokenizer": ["transformers", "Qwen2Tokenizer"],
            "vae": ["diffusers", "AutoencoderKLFlux2"],
            SKIP_KEYS["layers"]: list(SKIPPED),
        },
    )
    return folder


def random_transformer(config: TransformerConfig = TINY) -> MossTransformer:
    """A network of random weights in which every input shapes the output, drawn from torch's generator."""
    network = MossTransformer(config)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return network.to_serving(torch.float32)


def _save_transformer(folder: Path, config: TransformerConfig) -> None:
    network = random_transformer(config)
    own = network.state_dict()
    named = [(name, own[key].contiguous()) for key, name in file_names(network).items()]
    half = len(named) // 2
    parts = {
        WEIGHTS.replace(".safetensors", f"-{number:05}-of-00002.safetensors"): dict(tensors)
        for number, tensors in ((1, named[:half]), (2, named[half:]))
    }
    folder.mkdir(exist_ok=True)
    for file, tensors in parts.items():
        save_file(tensors, folder / file, metadata={"format": "pt"})
    weight_map = {name: file for file, tensors in parts.items() for name in tensors}
    size = sum(tensor.nbytes for _, tensor in named)
    _write(folder / f"{WEIGHTS}.index.json", {"metadata": {"total_size": size}, "weight_map": weight_map})
    _write(folder / "config.json", {"_class_name": "MOSSImageTransformer2DModel", **config.saved()})


def _save_encoder(folder: Path) -> None:
    from transformers import Qwen3_5Config, Qwen3_5Model

    vision = {
        "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32,
        "num_position_embeddings": 16, "patch_size": 4,
    }  # fmt: skip
    rope = {
        "rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1], "mrope_interleaved": True,
    }  # fmt: skip
    text = {
        "vocab_size": 512, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "max_position_embeddings": 8192, "rope_parameters": rope,
    }  # fmt: skip
    model = Qwen3_5Model(Qwen3_5Config(text_config=text, vision_config=vision))
    _spread(model)
    model.save_pretrained(folder)


def _save_decoder(folder: Path) -> None:
    from diffusers import AutoencoderKLFlux2

    vae = AutoencoderKLFlux2(
        block_out_channels=(8, 8, 16, 16), decoder_block_out_channels=(4, 8, 8, 16), layers_per_block=1,
        latent_channels=4, norm_num_groups=4, sample_size=64,
    )  # fmt: skip
    vae.bn.running_mean.normal_(std=0.5)
    vae.bn.running_var.uniform_(0.3, 2.0)
    vae.save_pretrained(folder)


def _spread(model: nn.Module) -> None:
    """Weights wide enough that every token matters."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=parameter.shape[1] ** -0.5)


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in MERGES)]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(MERGES)))
    tokenizer.normalizer = normalizers.NFC()
    pattern = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in MARKERS])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in THINKING])
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
        },
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")


def _write(path: Path, saved: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(saved, indent=2) + "\n", encoding="utf-8")
