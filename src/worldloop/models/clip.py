"""Summaryformer over whole clips at once, for training: the same attention as the streaming memory, gathered.

Shapes as in `summaryformer`, plus T frames of a clip; frame 0 is the start picture. Two streams run side by side: the
clean records that later frames read, and the noisy frames that are predicted. Every frame gathers its few hundred keys
(start picture, Y raw records, summaries of ages Y + 1 to W, its own record), so no T x T mask is ever built.
Called by `trainer`; equal to the streaming form in both cache modes, which a test holds it to.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from worldloop.models.layers import film
from worldloop.models.rope import RopeTables
from worldloop.models.summaryformer import Block, Film, Summaryformer, SummaryformerConfig


class ClipGeometry:
    """Mask and rotary tables of clips of T frames, made once.

    Args:
        config: architecture.
        frames: T, the start picture included.
    """

    def __init__(self, config: SummaryformerConfig, frames: int) -> None:
        self.config = config
        self.frames = frames
        self.tables = RopeTables(config.rope)
        self.mask = _mask(config, frames)

    def rope(self, sink_gap_B: Tensor) -> tuple[Tensor, Tensor]:
        """(cos, sin) `[B, T, 1, 1, R, P]` of clips whose start picture stands `sink_gap_B` frames before frame 1.

        Frame ids are moved so that none is negative; only distances count.
        """
        base = int(sink_gap_B.max())
        ids = base + torch.arange(self.frames)[None].repeat(len(sink_gap_B), 1) - 1
        ids[:, 0] = base - sink_gap_B
        cos, sin = self.tables.records(ids.flatten())
        shape = (len(sink_gap_B), self.frames, 1, 1, self.config.record, cos.shape[-1])
        return cos.view(shape), sin.view(shape)


BlockFn = Callable[[Block, SummaryformerConfig, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def clip_v(
    model: Summaryformer,
    geometry: ClipGeometry,
    clean_BTNC: Tensor,
    noisy_BTNC: Tensor,
    timesteps_BT: Tensor,
    actions_BT5: Tensor,
    fps_B: Tensor,
    sink_gap_B: Tensor,
    *,
    focus_N: Tensor | None = None,
    record_timestep: int = 0,
    block_fn: BlockFn | None = None,
) -> Tensor:
    """v of every noisy frame, float32 `[B, T, N, C]`; that of frame 0 means nothing.

    Args:
        clean_BTNC: what the passes see that write the memory; frame 0 is the start picture.
        noisy_BTNC: x_t of every frame.
        timesteps_BT: of the noisy frames.
        actions_BT5: of every frame; that of frame 0 is not read.
        fps_B: told to the model; 0 means none.
        sink_gap_B: distance in frames from the start picture to frame 1, at least 1.
        focus_N: focus region of the start picture.
        record_timestep: of the passes that write the memory: 0 in mode `recache`, the last served one in mode
            `last_step_writes`, whose `clean_BTNC` is noised to it. The start picture's is always 0.
        block_fn: a faster `clip_block`, such as a compiled one.
    """
    config = model.config
    conditions = _condition(model, timesteps_BT, record_timestep, actions_BT5, fps_B)
    x = model.tokens(torch.stack((clean_BTNC, noisy_BTNC), dim=2))
    if focus_N is not None:
        marked = model.tokens(clean_BTNC[:, 0], focus_N)
        first = torch.stack((marked, x[:, 0, 1]), dim=1)
        x = torch.cat((first[:, None], x[:, 1:]), dim=1)
    cos, sin = geometry.rope(sink_gap_B)
    mask = geometry.mask.to(x.dtype)
    mask = mask.expand(len(x), *mask.shape).flatten(0, 1)
    run = block_fn or clip_block
    for layer, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        x = run(block, config, x, conditions.blocks[..., layer, :, :], cos, sin, mask)
    v: Tensor = model.head(x[:, :, 1, : config.raw_tokens], conditions.head[:, :, 1].unsqueeze(-3))
    return v.float()


def clip_block(
    block: Block,
    config: SummaryformerConfig,
    x: Tensor,
    film_BT26D: Tensor,
    cos: Tensor,
    sin: Tensor,
    mask: Tensor,
) -> Tensor:
    """One block over `x [B, T, 2, R, D]`; stream 0 is clean, stream 1 noisy."""
    shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = film_BT26D.unsqueeze(-2).unbind(-3)
    attention = block.visual_self_attention
    q, k, v = attention.project(film(x, shift_a, scale_a), cos, sin)  # [B, T, 2, H, R, K]
    queries = q.transpose(2, 3).flatten(3, 4).flatten(0, 1)  # [B * T, H, 2R, K]
    # Written out: under torch.compile on a CPU, forward and backward take half the time of the fused kernel.
    logits = (queries * config.head_dim**-0.5) @ _gather(k, config).transpose(-1, -2) + mask
    out = logits.softmax(dim=-1) @ _gather(v, config)
    out = out.unflatten(2, (2, x.shape[-2])).unflatten(0, x.shape[:2]).transpose(2, 3)
    x = x + (1 + gate_a) * attention.merge(out)
    result: Tensor = x + (1 + gate_f) * block.visual_feed_forward(film(x, shift_f, scale_f))
    return result


def _summary_ages(config: SummaryformerConfig, frames: int) -> range:
    return range(config.raw_window_frames + 1, min(config.summary_window_frames, frames - 2) + 1)


def _gather(rows: Tensor, config: SummaryformerConfig) -> Tensor:
    """Keys or values `[B, T, 2, H, R, K]` to what each frame reads, `[B * T, H, M, K]`."""
    clean = rows[:, :, 0]
    frames = rows.shape[1]
    parts = [clean[:, :1].expand_as(clean)]
    parts += [_back(clean, age) for age in range(1, config.raw_window_frames + 1)]
    summary = clean[..., config.raw_tokens :, :]
    parts += [_back(summary, age) for age in _summary_ages(config, frames)]
    parts += [clean, rows[:, :, 1]]
    return torch.cat(parts, dim=-2).flatten(0, 1)


def _back(rows: Tensor, age: int) -> Tensor:
    """What stood `age` frames earlier; zeros before the clip."""
    return F.pad(rows, (0, 0) * (rows.dim() - 2) + (age, 0))[:, : rows.shape[1]]


def _mask(config: SummaryformerConfig, frames: int) -> Tensor:
    """Additive mask `[T, 1, 2R, M]`: what is before the clip is not there, a stream sees its own record only."""
    r, x = config.record, config.summary_tokens
    frame = torch.arange(frames)
    there = [(frame > 0)[:, None].expand(-1, r)]
    there += [(frame - age > 0)[:, None].expand(-1, r) for age in range(1, config.raw_window_frames + 1)]
    there += [(frame - age > 0)[:, None].expand(-1, x) for age in _summary_ages(config, frames)]
    memory = torch.cat(there, dim=1)
    keys = memory.shape[1] + 2 * r
    visible = torch.zeros(frames, 2 * r, keys, dtype=torch.bool)
    visible[:, :, : memory.shape[1]] = memory[:, None]
    visible[:, :r, -2 * r : -r] = True
    visible[:, r:, -r:] = True
    return torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))[:, None]


def _condition(
    model: Summaryformer, timesteps_BT: Tensor, record_timestep: int, actions_BT5: Tensor, fps_B: Tensor
) -> Film:
    """FiLM of both streams, blocks `[B, T, 2, L, 6, D]` and head `[B, T, 2, 2, D]`."""
    batch, frames = timesteps_BT.shape
    timesteps = torch.stack((torch.full_like(timesteps_BT, record_timestep), timesteps_BT), dim=2)
    actions = actions_BT5[:, :, None].expand(-1, -1, 2, -1)
    fps = fps_B[:, None, None].expand(-1, frames, 2)
    body = model.condition(timesteps.flatten(), actions.flatten(0, 2), fps.flatten())
    start = model.condition(torch.zeros_like(fps_B), None, fps_B, start=True)
    blocks = body.blocks.unflatten(0, (batch, frames, 2))
    head = body.head.unflatten(0, (batch, frames, 2))
    start_blocks = start.blocks[:, None, None].expand(-1, 1, 2, -1, -1, -1)
    return Film(blocks=torch.cat((start_blocks, blocks[:, 1:]), dim=1), head=head)
