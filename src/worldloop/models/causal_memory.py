"""The memory of one branch of a video rollout: a rolling K/V buffer of latent frames, and positions inside it.

    | sink: S frames | recent: W - S frames, rotating |        read = every slot that is filled

Shapes: L blocks, H heads, K head width, h x w tokens of a latent frame, N = h w, W window frames, S sink frames, F
frames of a chunk. The window holds everything that a chunk reads: the sink, what is recent, and the chunk itself, so
the sink is counted inside it. Frames beyond it are overwritten; nothing grows.

Keys are kept unrotated. A chunk reads them turned to their rank in the window, 0 to W - 1, and its own queries stand on
the last ranks. Until the window is full, ranks are frame numbers; from then on they stay, so distances are always those
of training and a rollout has no longest length. Positions: rotary over time, row and column as in Wan 2.1 (complex
pairs interleaved, base 10,000); ranks after "relativistic" rotary caches of streaming video models.

Owned by a `loops.video` state, written by `causal`. Does not own what a chunk is conditioned on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BASE = 10_000.0


@dataclass(frozen=True, kw_only=True, slots=True)
class CausalMemoryConfig:
    """Geometry of the buffer.

    Attributes:
        layers, heads, head_dim: of the network.
        grid: (h, w) tokens of a latent frame.
        chunk: F, latent frames that are made together.
        window: W, latent frames that a chunk reads, sink and itself included.
        sink: S, frames from the start that never leave.
    """

    layers: int
    heads: int
    head_dim: int
    grid: tuple[int, int]
    chunk: int
    window: int
    sink: int

    def __post_init__(self) -> None:
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even: positions turn pairs of channels")
        if not 1 <= self.chunk <= self.window:
            raise ValueError(f"chunk_frames={self.chunk} must be in 1..window_frames={self.window}")
        if not 0 <= self.sink <= self.window - self.chunk:
            raise ValueError(
                f"sink_frames={self.sink} must be in 0..{self.window - self.chunk}: the window of {self.window} "
                f"frames also holds the chunk of {self.chunk}"
            )

    @property
    def tokens(self) -> int:
        """N."""
        return self.grid[0] * self.grid[1]

    @property
    def capacity(self) -> int:
        """Rows a block."""
        return self.window * self.tokens

    def kept(self, end: int) -> list[int]:
        """Frames that a chunk reads which ends before frame `end`, itself included, oldest first."""
        recent = max(min(self.sink, end), end - (self.window - self.sink))
        return [*range(min(self.sink, end)), *range(recent, end)]

    def slot(self, frame: int) -> int:
        """Where a frame is kept, in frames."""
        return frame if frame < self.sink else self.sink + (frame - self.sink) % (self.window - self.sink)


def causal_memory_bytes(config: CausalMemoryConfig, dtype: torch.dtype) -> int:
    """Bytes of a `CausalMemory` in use, without making one."""
    rows = 2 * config.layers * config.heads * config.head_dim * config.capacity * dtype.itemsize
    angle = torch.promote_types(dtype, torch.float32).itemsize * config.head_dim * config.tokens
    return rows + angle * (config.window + config.chunk) + 8 * config.chunk * config.tokens


class GridRope:
    """Rotary positions of whole frames.

    Args:
        head_dim: K; K - 4 * (K // 6) channels turn with time, 2 * (K // 6) each with row and column.
        grid: (h, w).
        dtype, device: of the cosines and sines; angles are made in float64.
    """

    def __init__(
        self,
        head_dim: int,
        grid: tuple[int, int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        side = head_dim // 6
        self._time = _frequencies(head_dim // 2 - 2 * side)
        row = torch.arange(grid[0], dtype=torch.float64).repeat_interleave(grid[1])
        column = torch.arange(grid[1], dtype=torch.float64).repeat(grid[0])
        turns = _frequencies(side)
        place = torch.cat((row[:, None] * turns, column[:, None] * turns), dim=1)
        self._place = place.cos().to(device, dtype), place.sin().to(device, dtype)

    def frames(self, positions: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """(cos, sin) of all tokens of frames that stand at `positions` (any whole numbers), `[T * N, K / 2]`."""
        at = torch.as_tensor(positions, dtype=torch.float64).reshape(-1, 1)
        angle = at * self._time
        cos, sin = (self._spread(part, i) for i, part in enumerate((angle.cos(), angle.sin())))
        return cos, sin

    def _spread(self, time: Tensor, index: int) -> Tensor:
        place = self._place[index]
        rows = time.to(place)[:, None].expand(-1, len(place), -1)
        return torch.cat((rows, place.expand(len(time), -1, -1)), dim=-1).flatten(0, 1)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (x[2p], x[2p + 1]) of `[..., R, K]` by angles `[..., R, K / 2]`; in their dtype, then back."""
    a, b = x.to(cos.dtype).unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2).to(x.dtype)


class CausalMemory:
    """K/V of one branch.

    Args:
        config: geometry.
        rope: positions, shared by sessions.
        dtype, device: of keys and values.

    Attributes:
        frame: frames that are committed; the chunk in the making begins here.
        making: frames of the chunk in the making.
    """

    def __init__(
        self,
        config: CausalMemoryConfig,
        rope: GridRope,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config = config
        self._rope = rope
        shape = (config.layers, 1, config.heads, config.capacity, config.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.reset()

    def reset(self) -> None:
        """Forget everything; the next chunk is the first."""
        self.frame = 0
        self.making = 0
        self._at: tuple[int, int] | None = None

    @property
    def bytes(self) -> int:
        """Bytes held once a chunk has begun, constant when the window is full."""
        held = [self.keys, self.values]
        if self._at is not None:
            held += [*self._read_angles, *self._own_angles, self._rows]
        return sum(t.numel() * t.element_size() for t in held)

    def begin(self, frames: int) -> None:
        """Make room for a chunk of `frames` after what is committed. May be called again for the same chunk."""
        if not 1 <= frames <= self.config.chunk:
            raise ValueError(f"a chunk of {frames} frames: 1..{self.config.chunk} fit")
        if self._at == (self.frame, frames):
            return
        self.making, self._at = frames, (self.frame, frames)
        c = self.config
        by_slot = sorted(c.kept(self.frame + frames), key=c.slot)
        self._read_angles = self._rope.frames(self.positions(by_slot))
        self._own_angles = self._rope.frames(self.positions(range(self.frame, self.frame + frames)))
        slots = torch.tensor([c.slot(frame) for frame in range(self.frame, self.frame + frames)])
        rows = slots[:, None] * c.tokens + torch.arange(c.tokens)
        self._rows = rows.flatten().to(self.keys.device)

    def positions(self, frames: Sequence[int]) -> list[int]:
        """Where frames of the window stand: their rank in it."""
        rank = {frame: i for i, frame in enumerate(self.config.kept(self.frame + self.making))}
        return [rank[frame] for frame in frames]

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store the chunk in the making, unrotated `[1, H, F * N, K]`; overwrites what an earlier pass stored."""
        self.keys[layer].index_copy_(2, self._rows, keys.to(self.keys.dtype))
        self.values[layer].index_copy_(2, self._rows, values.to(self.values.dtype))

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """(turned keys, values) of everything that the chunk sees, `[1, H, rows, K]`."""
        cos, sin = self._read_angles
        end = len(cos)
        return turn(self.keys[layer, :, :, :end], cos, sin), self.values[layer, :, :, :end]

    def turn_queries(self, queries: Tensor) -> Tensor:
        """The chunk's queries `[1, H, F * N, K]` at their own positions, in the buffer's dtype."""
        return turn(queries.to(self.keys.dtype), *self._own_angles)

    def advance(self) -> None:
        """The chunk in the making is committed."""
        self.frame += self.making
        self.making = 0
        self._at = None


def _frequencies(count: int) -> Tensor:
    """Radians a step of `count` pairs, fastest first, float64."""
    return BASE ** -(torch.arange(count, dtype=torch.float64) / max(count, 1))
