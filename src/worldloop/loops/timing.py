"""How long one latent frame takes on this machine, and how much work it is by the config.

Owns a session filled to its steady state without hours of play, the clocking of its units, and the count of operations
and bytes. Does not own the machine's limits (`bench.roofline`) or a server's figures (`bench.play`). Called by the
command line and by `bench`.

Of one body frame with P passes (K denoising, and a clean one in mode recache), each over R rows that read E keys:

    operations  P * (L R (4 D^2 + 3 D F + 2 D E) + 2 D C N)  +  P * film weights  +  N * decoder weights
    bytes       P * (trunk weights + 2 L E D)  +  conditioning weights  +  decoder weights, each in its own format
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from worldloop.core.types import Controls
from worldloop.engine.contract import Plan
from worldloop.loops.model import WorldModel
from worldloop.loops.world import WorldLoop, WorldRequest, WorldState
from worldloop.models.autoencoder import GROUP
from worldloop.models.device import synchronize
from worldloop.models.summaryformer import ISLANDS

OPS = ("denoise", "decode", "write_memory")
STREAM_FPS = 35
"""Pictures a second of the published stream, which the real-time factor counts against."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameTimes:
    """Measured latents.

    Attributes:
        seconds: one entry a latent: seconds by op, passes of one frame added up.
        encode_s: seconds of encoding one start picture.
        keys: rows that every pass read.
    """

    seconds: tuple[dict[str, float], ...]
    encode_s: float
    keys: int

    def median_ms(self, *ops: str) -> float:
        """Median over the latents of the time of `ops` (all of them when none is named), milliseconds."""
        return 1000 * statistics.median(sum(one[op] for op in ops or OPS) for one in self.seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameWork:
    """What one body frame costs by the config.

    Attributes:
        passes: denoising and clean.
        pass_operations, pass_bytes: of all passes of the frame, conditioning included; multiply-adds and bytes read.
        decode_operations, decode_bytes: of the decoder.
    """

    passes: int
    pass_operations: int
    pass_bytes: int
    decode_operations: int
    decode_bytes: int

    @classmethod
    def of(cls, model: WorldModel, keys: int) -> FrameWork:
        """The work of a frame whose passes read `keys` rows; the formula stands at the top of this module."""
        config, network = model.config.model, model.network
        passes = len(model.config.timesteps) + (model.config.cache_mode == "recache")
        islands: list[nn.Module] = [getattr(network, name) for name in ISLANDS]
        condition = sum(p.numel() for module in islands for p in module.parameters())
        trunk = _bytes(network.parameters()) - sum(_bytes(module.parameters()) for module in islands)
        memory = 2 * config.num_layers * keys * config.dim * model.dtype.itemsize
        decoder = list(model.autoencoder.dec.parameters())
        return cls(
            passes=passes,
            pass_operations=passes * (config.pass_operations(keys) + condition),
            pass_bytes=passes * (trunk + memory) + sum(_bytes(module.parameters()) for module in islands),
            decode_operations=config.raw_tokens * sum(p.numel() for p in decoder),
            decode_bytes=_bytes(decoder),
        )


def steady_session(loop: WorldLoop, *, seed: int = 0) -> WorldState:
    """A session whose memory is as full as it gets: the start picture is real, the frames after it one random record.

    The next unit is the first pass of a body frame.
    """
    model = loop.model
    config = model.config.model
    generator = torch.Generator(device=model.device).manual_seed(seed)
    latent = torch.randn(1, *model.latent_shape, generator=generator, device=model.device)
    state = loop.init(WorldRequest(latent=latent, seed=seed))
    loop.offer(state, Controls())
    clock_frame(loop, state, lambda: 0.0)
    shape = (2, 1, config.num_heads, config.record, config.head_dim)
    keys, values = torch.randn(shape, generator=generator, device=model.device).to(model.dtype)
    for _ in range(config.summary_window_frames + 1):
        for layer in range(config.num_layers):
            state.memory.write(layer, keys, values)
        state.memory.advance()
        state.frame += 1
    return state


def time_frames(
    model: WorldModel, *, frames: int, warmup: int = 1, clock: Callable[[], float] = time.perf_counter
) -> FrameTimes:
    """Clock body frames of a session in its steady state.

    Args:
        frames: how many are measured, at least 1.
        warmup: how many run before.

    Raises:
        ValueError: no frame to measure.
    """
    if frames < 1:
        raise ValueError(f"frames={frames} must be at least 1")
    loop = WorldLoop(model)
    state = steady_session(loop)
    picture = torch.zeros(*model.picture_hw, 3, dtype=torch.uint8)
    began = clock()
    model.encode(picture)
    synchronize(model.device)
    encode_s = clock() - began
    seconds = []
    for _ in range(warmup + frames):
        loop.offer(state, Controls(pressed=frozenset({"w"})))
        seconds.append(clock_frame(loop, state, clock))
    return FrameTimes(seconds=tuple(seconds[warmup:]), encode_s=encode_s, keys=state.memory.end)


def report(name: str, model: WorldModel, times: FrameTimes) -> str:
    """The times of a world as a table of text, one row a part."""
    work = FrameWork.of(model, times.keys)
    total = times.median_ms()
    play_ms = 1000 * GROUP / STREAM_FPS
    rows = [
        (f"model passes ({work.passes})", f"{times.median_ms('denoise', 'write_memory'):.2f} ms"),
        ("decode", f"{times.median_ms('decode'):.2f} ms"),
        ("one latent frame", f"{total:.2f} ms"),
        ("start picture", f"{1000 * times.encode_s:.2f} ms"),
        (
            "operations",
            f"{(work.pass_operations + work.decode_operations) / 1e9:.3f} G multiply-adds a latent frame",
        ),
        (
            "real-time factor",
            f"{play_ms / total:.3g} (4 pictures last {play_ms:.1f} ms at {STREAM_FPS} a second)",
        ),
    ]
    height, width = model.picture_hw
    head = f"{name}: {width} x {height}, {str(model.dtype).removeprefix('torch.')}, {_place(model)}"
    note = (
        f"median of {len(times.seconds)} frames of a full memory ({times.keys} rows); no server, no encoder"
    )
    return "\n".join([head, *(f"  {label:<18} {value}" for label, value in rows), f"  ({note})"])


def _place(model: WorldModel) -> str:
    threads = torch.get_num_threads()
    return f"{threads} threads" if model.device.type == "cpu" else str(model.device)


def clock_frame(loop: WorldLoop, state: WorldState, clock: Callable[[], float]) -> dict[str, float]:
    """Make the latent frame whose controls were offered; seconds by op."""
    spent = dict.fromkeys(OPS, 0.0)
    frame = state.frame
    while state.frame == frame:
        plan = loop.next(state)
        if not isinstance(plan, Plan):
            raise RuntimeError(f"a session with an input has nothing to do: {plan}")
        began = clock()
        result = loop.ops[plan.op](plan)
        synchronize(loop.model.device)
        spent[plan.op] += clock() - began
        loop.advance(state, result)
    return spent


def _bytes(parameters: Iterable[torch.Tensor]) -> int:
    return sum(p.numel() * p.element_size() for p in parameters)
