"""Files of a MOSS-Image checkpoint, in the layout of diffusers. Never runs code from a file and never asks a network.

    model_index.json                    _class_name "MOSSImagePipeline"; which class reads which folder
    transformer/   config.json, diffusion_pytorch_model.safetensors or parts of it and their .index.json
    scheduler/     scheduler_config.json
    text_encoder/  transformers' Qwen3_5Model         tokenizer/  its tokenizer and chat template
    vae/           diffusers' AutoencoderKLFlux2

Owns the layout, the names of the transformer's tensors, and putting them into the network. Does not own what configs
must hold (`config`) or the parts that libraries load (`prompt`, `decode`). A refusal is a `CheckpointError`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from worldloop.core.errors import CheckpointError
from worldloop.core.files import file_hash
from worldloop.models import stored
from worldloop.models.config import ConfigError
from worldloop.models.moss.config import (
    AUTOENCODER,
    ENCODER,
    PIPELINE,
    SKIP_KEYS,
    DecoderConfig,
    ScheduleConfig,
    Skip,
    TransformerConfig,
)
from worldloop.models.moss.transformer import MossTransformer

ParsedT = TypeVar("ParsedT")

INDEX = "model_index.json"
WEIGHTS = "diffusion_pytorch_model.safetensors"
LONGEST_JSON = 64 * 2**20
SUFFIXES = (".safetensors", ".json", ".jinja", ".txt")
"""What a checkpoint's hash is taken over."""

OUTER: Mapping[str, str] = {
    "image_in": "x_embedder", "text_in": "context_embedder", "text_blocks": "context_refiner",
    "blocks": "transformer_blocks", "time_hidden": "time_embed.linear_1", "time_out": "time_embed.linear_2",
    "modulation": "modulation.linear", "head_norm": "norm_out.norm", "head_modulation": "norm_out.linear",
    "head_out": "proj_out",
}  # fmt: skip
INNER: Mapping[str, str] = {
    "attention_norm": "norm1", "ffn_norm": "norm2", "attention.q": "attn.to_q", "attention.k": "attn.to_k",
    "attention.v": "attn.to_v", "attention.out": "attn.to_out.0", "attention.q_norm": "attn.norm_q",
    "attention.k_norm": "attn.norm_k", "ffn.proj": "ff.linear_in", "ffn.out": "ff.linear_out",
}  # fmt: skip
"""Names of the network's parts in the file: outermost, and inside a block. The one place for a rename."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A folder whose configs have been read and fit each other; weights have not been read.

    Attributes:
        folder: where it is.
        transformer, schedule, skip, decoder: see `config`.
    """

    folder: Path
    transformer: TransformerConfig
    schedule: ScheduleConfig
    skip: Skip
    decoder: DecoderConfig


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read and check the configs.

    Raises:
        CheckpointError: a config is missing or refused, or two of them do not fit each other.
    """
    index = _object(folder / INDEX)
    if index.get("_class_name") != PIPELINE:
        found = index.get("_class_name")
        raise CheckpointError(
            INDEX, f"_class_name={found!r} must be {PIPELINE!r}",
            key="_class_name", found=found, allowed=PIPELINE,
        )  # fmt: skip
    for part, known in (("text_encoder", ENCODER), ("vae", AUTOENCODER)):
        if tuple(index.get(part) or ()) != known:
            raise CheckpointError(
                INDEX, f"{part}={index.get(part)!r} must be {list(known)}",
                key=part, found=index.get(part), allowed=str(list(known)),
            )  # fmt: skip
    transformer = _parsed(folder / "transformer" / "config.json", TransformerConfig.parse)
    decoder = _parsed(folder / "vae" / "config.json", DecoderConfig.parse)
    schedule = _parsed(folder / "scheduler" / "scheduler_config.json", ScheduleConfig.parse)
    said = {key: index[key] for key in SKIP_KEYS.values() if key in index}
    skip = _refusing(folder / INDEX, lambda: Skip.parse(said, transformer.layers))
    if transformer.channels != decoder.channels:
        raise CheckpointError(
            "transformer/config.json",
            f"makes {transformer.channels} channels; vae/config.json packs {decoder.channels}",
        )
    width = encoder_width(folder)
    if transformer.text_dim != width:
        raise CheckpointError(
            "transformer/config.json",
            f"reads text {transformer.text_dim} wide; text_encoder/config.json gives {width}",
        )
    return Checkpoint(folder=folder, transformer=transformer, schedule=schedule, skip=skip, decoder=decoder)


def encoder_width(folder: Path) -> int:
    """Width of an encoded token, as text_encoder/config.json says; CheckpointError when it does not."""
    path = folder / "text_encoder" / "config.json"
    text = _object(path).get("text_config")
    width = text.get("hidden_size") if isinstance(text, dict) else None
    if type(width) is not int or width < 1:
        raise CheckpointError(_name(path), f"text_config.hidden_size={width!r} must be an integer above 0")
    return width


def checkpoint_hash(folder: Path) -> str:
    """SHA-256 over names and contents of the checkpoint's files, hexadecimal. Reads all of them."""
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in SUFFIXES:
            whole.update(f"{path.relative_to(folder).as_posix()} {file_hash(path)}\n".encode())
    return whole.hexdigest()


def file_names(network: MossTransformer) -> dict[str, str]:
    """The network's tensors and what each is called in a file."""
    return {own: _renamed(own) for own in network.state_dict()}


def load_transformer(checkpoint: Checkpoint, *, dtype: torch.dtype) -> MossTransformer:
    """The network with the folder's weights in main memory, ready to serve.

    Raises:
        CheckpointError: a file cannot be read, or a tensor is missing, unexpected, twice there, or of another shape.
    """
    with torch.device("meta"):
        network = MossTransformer(checkpoint.transformer)
    own_names = {name: own for own, name in file_names(network).items()}
    shapes = {own: tensor.shape for own, tensor in network.state_dict().items()}
    network.to_serving(dtype, "meta")
    kinds = {own: tensor.dtype for own, tensor in network.state_dict().items()}
    taken: dict[str, Tensor] = {}
    for file, name, tensor in _weights(checkpoint.folder / "transformer"):
        if name not in own_names:
            raise CheckpointError(file, f"has an unknown tensor {name!r}", key=name, allowed="nothing")
        own = own_names[name]
        if own in taken:
            raise CheckpointError(file, f"has {name!r} again", key=name, allowed="one of each")
        if tensor.shape != shapes[own]:
            found, needed = tuple(tensor.shape), tuple(shapes[own])
            raise CheckpointError(
                file, f"{name!r} is {found}; {needed} is needed", key=name, found=found, allowed=str(needed)
            )
        if not tensor.is_floating_point():
            raise CheckpointError(file, f"{name!r} is {tensor.dtype}; floats are needed", key=name)
        taken[own] = tensor.to(kinds[own])
    if missing := sorted(name for name, own in own_names.items() if own not in taken):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError("transformer", f"lacks the tensor {missing[0]!r}{more}", key=missing[0])
    network.load_state_dict(taken, assign=True)
    return network.eval().requires_grad_(False)


def _weights(folder: Path) -> Iterator[tuple[str, str, Tensor]]:
    """(file, name, tensor) of every tensor."""
    index = folder / f"{WEIGHTS}.index.json"
    if not index.exists():
        for name, tensor in stored.tensors(folder / WEIGHTS).items():
            yield WEIGHTS, name, tensor
        return
    parts = _object(index).get("weight_map")
    if not isinstance(parts, dict) or not all(isinstance(file, str) for file in parts.values()):
        raise CheckpointError(index.name, "weight_map must give each tensor's file")
    for file in sorted(set(parts.values())):
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise CheckpointError(index.name, f"weight_map has {file!r}; files are .safetensors beside it")
        found = stored.tensors(folder / file)
        if odd := sorted(found.keys() ^ {name for name, at in parts.items() if at == file}):
            raise CheckpointError(file, f"does not hold what the index says of {odd[0]!r}", key=odd[0])
        for name, tensor in found.items():
            yield file, name, tensor


def _renamed(own: str) -> str:
    head, _, rest = own.partition(".")
    if head not in ("blocks", "text_blocks"):
        return f"{OUTER[head]}.{rest}"
    index, _, inner = rest.partition(".")
    part, _, kind = inner.rpartition(".")
    return f"{OUTER[head]}.{index}.{INNER[part]}.{kind}"


def _parsed(path: Path, parse: Callable[[Mapping[str, Any]], ParsedT]) -> ParsedT:
    saved = _object(path)
    return _refusing(path, lambda: parse(saved))


def _refusing(path: Path, parse: Callable[[], ParsedT]) -> ParsedT:
    try:
        return parse()
    except ConfigError as error:
        raise CheckpointError(
            _name(path), str(error), key=error.key, found=error.found, allowed=error.allowed
        ) from error


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        if path.stat().st_size > LONGEST_JSON:
            raise CheckpointError(_name(path), f"is longer than {LONGEST_JSON:,} bytes")
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(_name(path), f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(_name(path), f"is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(_name(path), f"must be a JSON object; got {type(found).__name__}")
    return found


def _name(path: Path) -> str:
    """`model_index.json`, or a file with its folder, such as `vae/config.json`."""
    return path.name if path.name == INDEX else f"{path.parent.name}/{path.name}"
