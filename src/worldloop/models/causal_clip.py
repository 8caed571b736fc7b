"""The causal video transformer over whole clips at once, for training: the streaming attention, gathered.

Shapes as in `causal`, plus T latent frames of a clip in G chunks. Two streams run side by side: clean frames, which
later chunks read, and noisy ones, whose velocity is predicted (teacher forcing). A chunk gathers what the memory would
hold: the sink, the recent frames of the window and itself, so no T x T mask is ever built.

Called by trainers; equal to the streaming form, inside the window and past it, which a test holds it to.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from worldloop.models.causal import Block, CausalTransformer, modulated
from worldloop.models.causal_memory import CausalMemoryConfig, GridRope, turn


class CausalClip:
    """Which frames every chunk of a clip reads, and where they stand; made once.

    Args:
        config: the memory that is served.
        frames: T, a multiple of the chunk; one more when `first`.
        first: whether frame 0 is a chunk of its own, as a start picture is.
        dtype: of angles and mask.

    Attributes:
        lead: empty frames before frame 0 that make its chunk whole.
        chunks: G.

    Raises:
        ValueError: the frames are no whole number of chunks.
    """

    def __init__(
        self,
        config: CausalMemoryConfig,
        frames: int,
        *,
        first: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.config = config
        self.lead = config.chunk - 1 if first else 0
        self.chunks, left = divmod(frames + self.lead, config.chunk)
        if left or not self.chunks:
            raise ValueError(
                f"{frames} frames are not {'1 and ' if first else ''}a whole number of chunks of {config.chunk}"
            )
        ends = torch.arange(1, self.chunks + 1) * config.chunk - self.lead  # by the clip's own numbers
        starts = ends - config.chunk
        reach = min(config.window - config.sink - config.chunk, frames)
        recent = starts[:, None] + torch.arange(-reach, 0)
        sink = torch.arange(min(config.sink, frames)).expand(self.chunks, -1)
        own = starts[:, None] + torch.arange(config.chunk)
        # Past the window the sink follows: it stays as far from the chunk as it was when the window became full.
        moved = sink + (ends - config.window).clamp_min(0)[:, None]
        seen = torch.cat((sink < starts[:, None], recent >= config.sink, own >= 0), dim=1)
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, float("-inf"))
        self.mask = mask.repeat_interleave(config.tokens, dim=1)[:, None, None, None]
        rope = GridRope(config.head_dim, config.grid, dtype=dtype)
        self._own, self._moved = self._angles(rope, own), self._angles(rope, moved)
        self._recent = (recent + self.lead).clamp_min(0)
        self._sink = sink[0] + self.lead

    def turned(self, x: Tensor) -> Tensor:
        """Queries or keys `[B, G, 2, H, R, K]` at their own frames."""
        return turn(x, *self._own)

    def gather(self, rows: Tensor, turned: Tensor | None = None) -> Tensor:
        """Keys or values `[B, G, 2, H, R, K]` to what each chunk reads, `[B, G, 2, H, M, K]`.

        Args:
            rows: unrotated.
            turned: the same at their own frames, for keys.
        """
        own = rows if turned is None else turned
        clean = self._by_frame(own[:, :, 0])
        recent = self._chunked(clean[:, self._recent])
        sink = self._chunked(self._by_frame(rows[:, :, 0])[:, self._sink][:, None])
        sink = sink.expand(-1, self.chunks, -1, -1, -1)
        if turned is not None:
            cos, sin = self._moved
            sink = turn(sink, cos[:, 0], sin[:, 0])
        memory = torch.cat((sink, recent), dim=-2)[:, :, None].expand(-1, -1, 2, -1, -1, -1)
        return torch.cat((memory, own), dim=-2)

    def _angles(self, rope: GridRope, positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = rope.frames(positions.flatten())
        shape = (self.chunks, 1, 1, positions.shape[1] * self.config.tokens, cos.shape[-1])
        return cos.view(shape), sin.view(shape)

    def _by_frame(self, rows: Tensor) -> Tensor:
        """`[B, G, H, F * N, K]` to `[B, G * F, H, N, K]`."""
        frames: Tensor = rows.unflatten(3, (self.config.chunk, -1)).transpose(2, 3).flatten(1, 2)
        return frames

    def _chunked(self, frames: Tensor) -> Tensor:
        """`[B, G, f, H, N, K]` to `[B, G, H, f * N, K]`."""
        rows: Tensor = frames.transpose(2, 3).flatten(3, 4)
        return rows


BlockFn = Callable[[Block, CausalClip, Tensor, Tensor, Tensor, Tensor], Tensor]


def clip_velocity(
    model: CausalTransformer,
    clip: CausalClip,
    clean: Tensor,
    noisy: Tensor,
    timesteps: Tensor,
    text: Tensor,
    *,
    block_fn: BlockFn | None = None,
) -> Tensor:
    """Velocity of every noisy chunk that reads clean chunks before it, float32 at least, `[B, T, C, y, x]`.

    Args:
        clean: what passes see that write the memory, `[B, T, C, y, x]`.
        noisy: x at `timesteps`, the same shape.
        timesteps: one a chunk, `[B, G]`.
        text: as of `CausalTransformer.text`.
        block_fn: a faster `clip_block`, such as a compiled one.
    """
    both = torch.stack((clean, noisy), dim=1)
    both = F.pad(both, (0, 0) * 3 + (clip.lead, 0))
    batch, height, width = len(clean), *clean.shape[-2:]
    x = model.rows(both.flatten(0, 1))  # [B * 2, G * R, D]
    x = x.unflatten(0, (batch, 2)).unflatten(2, (clip.chunks, -1)).transpose(1, 2)
    told = torch.stack((torch.zeros_like(timesteps), timesteps), dim=2)
    condition = model.condition(told)
    cross = model.cross(text)
    run = block_fn or clip_block
    for layer, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        x = run(block, clip, x, condition.blocks, cross.keys[layer], cross.values[layer])
    patches = model.head(x[:, :, 1], condition.head[:, :, 1]).flatten(1, 2)
    return model.latents(patches, (height, width))[:, clip.lead :]


def clip_block(
    block: Block, clip: CausalClip, x: Tensor, condition: Tensor, text_keys: Tensor, text_values: Tensor
) -> Tensor:
    """One block over `x [B, G, 2, R, D]`; stream 0 is clean, stream 1 noisy. `condition` is `[B, G, 2, 6, D]`."""
    shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = block.modulations(condition, x.dtype)
    attention = block.self_attn
    h = modulated(x, shift_a, scale_a, block.eps)
    queries, (keys, values) = clip.turned(attention.queries(h)), attention.keys_values(h)
    keys, values = clip.gather(keys, clip.turned(keys)), clip.gather(values)
    # Four axes: with more, the fused kernel steps aside and every logit is kept for the backward pass.
    mask = clip.mask.to(x.dtype).expand(len(x), -1, 2, -1, -1, -1)
    q, k, v, m = (part.flatten(0, 2) for part in (queries, keys, values, mask))
    seen = F.scaled_dot_product_attention(q, k, v, attn_mask=m)
    x = x + gate_a * attention.merge(seen.unflatten(0, x.shape[:3]))
    x = block.read_text(x.flatten(1, 3), text_keys, text_values).view_as(x)
    result: Tensor = x + gate_f * block.ffn(modulated(x, shift_f, scale_f, block.eps))
    return result
