"""The causal video transformer over single frames, many at once, for training pictures.

Shapes as in `causal`. A picture is the first latent frame of a rollout: nothing is before it, so no memory and no clean
stream is needed, which halves the work of `causal_clip`. Called by trainers; equal to the streaming form, which a test
holds it to.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from worldloop.models.causal import Block, CausalTransformer, modulated
from worldloop.models.causal_memory import GridRope, turn
from worldloop.models.flow import latent_dtype

StillBlockFn = Callable[[Block, tuple[Tensor, Tensor], Tensor, Tensor, Tensor, Tensor], Tensor]


def still_velocity(
    model: CausalTransformer,
    noisy: Tensor,
    timesteps: Tensor,
    text: Tensor,
    *,
    block_fn: StillBlockFn | None = None,
) -> Tensor:
    """Velocity of single frames `[B, C, y, x]`, float32 at least.

    Args:
        noisy: x at `timesteps`, `[B, C, y, x]`.
        timesteps: `[B]`.
        text: as of `CausalTransformer.text`.
        block_fn: a faster `still_block`, such as a compiled one.
    """
    hw = (noisy.shape[-2], noisy.shape[-1])
    grid = model.config.token_grid(hw)
    rope = GridRope(model.config.head_dim, grid, dtype=latent_dtype(model.dtype), device=noisy.device)
    angles = rope.frames([0])
    condition, cross = model.condition(timesteps), model.cross(text)
    x = model.rows(noisy[:, None])
    run = block_fn or still_block
    for layer, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        x = run(block, angles, x, condition.blocks, cross.keys[layer], cross.values[layer])
    return model.latents(model.head(x, condition.head), hw)[:, 0]


def still_block(
    block: Block,
    angles: tuple[Tensor, Tensor],
    x: Tensor,
    condition: Tensor,
    text_keys: Tensor,
    text_values: Tensor,
) -> Tensor:
    """One block over frames `x [B, R, D]` that see only themselves; `condition` is `[B, 6, D]`."""
    shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = block.modulations(condition, x.dtype)
    attention = block.self_attn
    h = modulated(x, shift_a, scale_a, block.eps)
    keys, values = attention.keys_values(h)
    seen = F.scaled_dot_product_attention(turn(attention.queries(h), *angles), turn(keys, *angles), values)
    x = x + gate_a * attention.merge(seen)
    x = block.read_text(x, text_keys, text_values)
    result: Tensor = x + gate_f * block.ffn(modulated(x, shift_f, scale_f, block.eps))
    return result
