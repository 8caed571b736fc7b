"""A prompt to encoded tokens: the checkpoint's chat template and tokenizer, and the text part of its Qwen3.5.

    one user message, add_generation_prompt, thinking on -> at most 4,096 tokens, no padding -> last_hidden_state [T, E]

The template is rendered around a stand-in, so nothing that a prompt says can change the message's form; the prompt is
put in its place and tokenised together with the template's text around it, with markers of the template as plain text.
For a prompt without markers the tokens are those of the template rendered with it.

Owns tokens and the encoder's bytes. transformers runs the encoder; it is imported when a checkpoint is loaded.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from worldloop.core.errors import CheckpointError

MAX_TOKENS = 4096
"""Of a prompt in its template."""

_STAND_IN = "\ue000"
"""A private character that templates have no use for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompts:
    """Prompts to token ids.

    Attributes:
        ahead, behind: ids of the template up to its last marker before the prompt, and from the first one after it.
        before, after: the template's text between those markers and the prompt.
        strips: whether the template leaves out white space at a prompt's ends.
        plain: a `tokenizers.Tokenizer` that knows no markers.
    """

    ahead: tuple[int, ...]
    behind: tuple[int, ...]
    before: str
    after: str
    strips: bool
    plain: Any

    @classmethod
    def load(cls, folder: Path) -> Prompts:
        """Read tokenizer/ of a checkpoint.

        Raises:
            CheckpointError: there is no fast tokenizer or no chat template, or the template shows no prompt.
        """
        from transformers import AutoTokenizer

        try:
            loaded = AutoTokenizer.from_pretrained(
                folder / "tokenizer", local_files_only=True, trust_remote_code=False
            )
            shown = loaded.apply_chat_template(
                [{"role": "user", "content": f" {_STAND_IN} "}],
                tokenize=False, add_generation_prompt=True, enable_thinking=True,
            )  # fmt: skip
            whole = loaded.backend_tokenizer
            described = json.loads(whole.to_str())
        except Exception as error:
            raise CheckpointError("tokenizer", f"cannot be used: {short(error)}") from error
        if shown.count(_STAND_IN) != 1:
            raise CheckpointError("tokenizer", "the chat template must show a user's message once")
        strips = f" {_STAND_IN} " not in shown
        ahead, behind = shown.split(_STAND_IN if strips else f" {_STAND_IN} ")
        markers = sorted((token["content"] for token in described["added_tokens"]), key=len, reverse=True)
        found = re.compile("|".join(map(re.escape, markers)) or r"(?!)")
        cut = max((match.end() for match in found.finditer(ahead)), default=0)
        first = found.search(behind)
        end = first.start() if first else len(behind)
        plain = type(whole).from_str(json.dumps({**described, "added_tokens": []}))
        return cls(
            ahead=tuple(whole.encode(ahead[:cut], add_special_tokens=False).ids),
            behind=tuple(whole.encode(behind[end:], add_special_tokens=False).ids),
            before=ahead[cut:],
            after=behind[:end],
            strips=strips,
            plain=plain,
        )

    def token_ids(self, prompt: str) -> tuple[int, ...]:
        """Ids of the whole message.

        Raises:
            ValueError: it is no text, or too long; the message says how long it is and may be.
        """
        text = prompt.strip() if self.strips else prompt
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise ValueError("prompt holds half of a surrogate pair, which is no character")
        middle = self.plain.encode(self.before + text + self.after, add_special_tokens=False).ids
        ids = (*self.ahead, *middle, *self.behind)
        if len(ids) > MAX_TOKENS:
            form = len(ids) - len(self.plain.encode(text, add_special_tokens=False).ids)
            raise ValueError(
                f"prompt has {len(ids) - form:,} tokens; it may have at most {MAX_TOKENS - form:,}"
            )
        return ids


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoder:
    """Token ids to rows.

    Attributes:
        model: the text part of transformers' Qwen3_5Model.
    """

    model: nn.Module

    @classmethod
    def load(cls, folder: Path, *, dtype: torch.dtype) -> Encoder:
        """Read text_encoder/ of a checkpoint into main memory; what it has to look at pictures with is let go.

        Raises:
            CheckpointError: a file is refused, or a tensor is missing, unexpected or of another shape.
        """
        from transformers import Qwen3_5Model

        try:
            model, report = Qwen3_5Model.from_pretrained(
                folder / "text_encoder", dtype=dtype, local_files_only=True, use_safetensors=True,
                trust_remote_code=False, output_loading_info=True, ignore_mismatched_sizes=True,
            )  # fmt: skip
        except Exception as error:
            raise CheckpointError("text_encoder", f"cannot be loaded: {short(error)}") from error
        check_report("text_encoder", report)
        return cls(model=model.language_model.eval().requires_grad_(False))

    def encode(self, ids: tuple[int, ...]) -> Tensor:
        """`last_hidden_state` after the final norm, `[T, E]`, in the model's dtype."""
        device = next(self.model.parameters()).device
        with torch.inference_mode():
            made = self.model(input_ids=torch.tensor([ids], device=device), use_cache=False)
        rows: Tensor = made.last_hidden_state[0]
        return rows


def check_report(part: str, report: Any) -> None:
    """CheckpointError unless a library's loading report says that every tensor was there and fitted."""
    for key, problem in (
        ("missing_keys", "lacks the tensor"),
        ("unexpected_keys", "has an unknown tensor"),
        ("mismatched_keys", "has another shape for"),
    ):
        names = sorted(name if isinstance(name, str) else name[0] for name in report.get(key, ()))
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise CheckpointError(part, f"{problem} {names[0]!r}{more}", key=names[0])


def scratch_bytes(config: Any, dtype: torch.dtype) -> int:
    """Bytes beside the weights while `MAX_TOKENS` tokens are encoded, of transformers' text config.

    A row has the stream and its copies, the feed-forward, and in a layer of linear attention its float32 queries, keys
    and values (repeated for every head), several copies of each, with the products of a chunk of 64 rows.
    """
    heads = config.linear_num_value_heads
    linear = 4 * heads * (2 * config.linear_key_head_dim + config.linear_value_head_dim) + 4 * 64 * heads
    full = 6 * config.num_attention_heads * config.head_dim
    row = dtype.itemsize * (8 * config.hidden_size + 4 * config.intermediate_size)
    return MAX_TOKENS * int(row + torch.float32.itemsize * max(linear, full))


def short(error: Exception) -> str:
    """The first line of a library's message."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"
