"""The video loop: text to latent frames, one chunk after another, with or without an end.

    before:         encode_text (each branch), write_memory (each chunk of earlier context, each branch)
    first frame:    its drawing (`first_frame`), unless its latent is given; decode, write_memory (each branch)
    chunk:          denoise x steps, decode, write_memory (each branch)         emits the chunk's pictures
    prompt change:  encode_text, write_memory (each chunk of the window)        before the next chunk

A denoise unit asks both branches, with and without the prompt; at guidance 1 there is only one. Each branch has its own
memory and its own text. The clean pass that writes a chunk's memory is told timestep 0; after the last chunk there is
none. Decode comes before it so that pictures leave as early as they can. Noise is a function of (seed, latent frame,
step). Shapes: F latent frames of a chunk, C channels, y x x cells, T frames of something longer.

Owns the order of work and the state. Does not own the network (`models.causal`), steps (`models.flow`), how a first
frame is drawn (`first_frame`) or threads (`engine`).
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from worldloop.engine.contract import BatchOp, Done, Emit, Idle, Op, Plan, Price, Result, Work
from worldloop.loops.first_frame import FirstFrame
from worldloop.loops.picture import PictureState
from worldloop.loops.rollout import Step
from worldloop.loops.units import inference
from worldloop.loops.video_model import VideoModel, pictures_before
from worldloop.loops.video_request import PromptChange, Sampling, VideoRequest, check_request
from worldloop.models.autoencoder import GROUP
from worldloop.models.causal import Cross, cross_bytes
from worldloop.models.causal_memory import CausalMemory, causal_memory_bytes
from worldloop.models.flow import guide, predict_clean, solve, timestep
from worldloop.models.noise import normal

CLEAN = 0.0
"""Timestep of the passes that write the memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoResult:
    """What a rollout leaves: its latents `[T, C, y, x]` on the CPU (None without an end), and how many were made."""

    latents: Tensor | None
    frames: int


@dataclass(kw_only=True, slots=True)
class Branch:
    """One of the two predictions that guidance combines.

    Attributes:
        name: `cond` or `uncond`.
        text: what it is told.
        memory: its K/V.
        cross: the text's K/V; None until it is encoded.
        rewrite: chunks of latent frames that are still to be written to the memory, oldest first.
    """

    name: str
    text: Tensor
    memory: CausalMemory
    cross: Cross | None = None
    rewrite: deque[tuple[int, ...]] = field(default_factory=deque)


@dataclass(kw_only=True, slots=True)
class VideoState:
    """Everything about one rollout.

    Attributes:
        sampling: passes, solver and guidance.
        branches: with the prompt first.
        start, end: latent frame numbers that it makes; `end` None for no end.
        drawing: the first frame in the making, or None.
        first: its latent `[C, y, x]`, given or drawn; None when there is none, or not yet.
        frame: first latent frame of the chunk in the making.
        unit: units of that chunk that are done.
        x: the chunk's latents, `[F, C, y, x]`.
        past: clean latents that the memory may have to be written from again, by latent frame number.
        decoder: the autoencoder's cache.
        made: finished chunks on the CPU, when there is an end.
        pending: prompt changes that wait for the next chunk, by input id.
        applied: ids of those that the chunk in the making is the first to see.
        done: units done.
    """

    request: VideoRequest
    sampling: Sampling
    branches: tuple[Branch, ...]
    start: int
    end: int | None
    drawing: PictureState | None
    first: Tensor | None
    frame: int
    unit: int = 0
    x: Tensor | None = None
    past: dict[int, Tensor] = field(default_factory=dict)
    decoder: Any = None
    made: list[Tensor] = field(default_factory=list)
    pending: dict[int, Tensor] = field(default_factory=dict)
    applied: tuple[int, ...] = ()
    next_input: int = 0
    done: int = 0


class VideoLoop:
    """Stateless code of the video family.

    Args:
        model: what to run; read-only here.
        first_frame: draws first frames where a request says so.
    """

    def __init__(self, model: VideoModel, first_frame: FirstFrame | None = None) -> None:
        self.model = model
        self.first_frame = first_frame
        self._ops: dict[str, Op] = {
            "encode_text": inference(self._encode_text),
            "denoise": inference(self._denoise),
            "decode": inference(self._decode),
            "write_memory": inference(self._write_memory),
            **({} if first_frame is None else first_frame.ops),
        }

    @property
    def ops(self) -> Mapping[str, Op]:
        return self._ops

    @property
    def batch_ops(self) -> Mapping[str, BatchOp]:
        return {}

    def price(self, request: VideoRequest) -> Price:
        """Bytes of a rollout whose window is full and of the drawing before it, and the work of one of its chunks."""
        check_request(self.model, request)
        drawn = 0 if request.draw is None else self._painter.resident_bytes(request.draw)
        model, config = self.model, self.model.config
        memory, sampling = config.memory, Sampling.of(config, request)
        frames, rows, branches = memory.chunk, memory.chunk * memory.tokens, sampling.branches
        one_pass = float(config.model.pass_operations(rows, memory.capacity))
        work = [Work("denoise", (rows, branches), branches * one_pass)] * sampling.passes
        work += [Work("decode", (frames,)), *[Work("write_memory", (rows,), one_pass)] * branches]
        branch_bytes = causal_memory_bytes(memory, model.dtype) + cross_bytes(config.model, model.dtype)
        latents = (memory.window + 2 * frames) * math.prod(config.latent_shape) * model.latent_dtype.itemsize
        block = (
            rows * max(config.model.ffn_dim, 6 * config.model.dim) + 3 * memory.capacity * config.model.dim
        )
        pictures = frames * GROUP * math.prod(model.pictures.picture_hw) * 3
        return Price(
            resident_bytes=branches * branch_bytes + latents + model.pictures.cache_bytes + drawn,
            peak_bytes=max(block * model.dtype.itemsize, 2 * pictures * torch.float32.itemsize),
            chunk=tuple(work),
            chunks=None if request.latent_frames is None else -(-request.latent_frames // frames),
        )

    def init(self, request: VideoRequest) -> VideoState:
        """Check a request and allocate the rollout's memories.

        Raises:
            ValueError: anything about the request that this checkpoint cannot do.
        """
        check_request(self.model, request)
        drawing = None if request.draw is None else self._painter.begin(request.draw)
        request.profile.begin("video", request.seed)
        model, sampling = self.model, Sampling.of(self.model.config, request)
        texts = [("cond", request.prompt)]
        if sampling.branches == 2:
            texts.append(("uncond", model.empty_text if request.negative is None else request.negative))
        start = 0 if request.context is None else len(request.context)
        state = VideoState(
            request=request,
            sampling=sampling,
            branches=tuple(Branch(name=name, text=text, memory=model.new_memory()) for name, text in texts),
            start=start,
            end=None if request.latent_frames is None else start + request.latent_frames,
            drawing=drawing,
            first=request.first,
            frame=start,
        )
        if request.context is not None:
            request.profile.chunk(0, request.context, dict)
            state.past = dict(enumerate(self._latents(request.context)))
            for branch in state.branches:
                branch.rewrite.extend(self._chunks(state, range(start)))
        return state

    def offer(self, state: VideoState, value: PromptChange) -> int:
        """Queue another prompt. The next chunk is the first to follow it; the newest of several counts.

        Raises:
            ValueError: it is no text of this model.
        """
        self.model.check_text(value.text)
        number = state.next_input
        state.next_input += 1
        state.pending[number] = value.text
        return number

    def next(self, state: VideoState) -> Plan | Idle | Done:
        """The next unit of work."""
        if state.frame == state.end:
            return Done(f"{state.frame - state.start} latent frames are made")
        if state.drawing is not None:
            return self._painter.plan(state.drawing)
        if state.unit == 0:
            for index, branch in enumerate(state.branches):
                if branch.cross is None:
                    return self._text_plan(state, index, branch.text, ())
                if branch.rewrite:
                    return self._write_plan(state, index, branch.rewrite[0], "rewrite")
            if state.pending:
                return self._text_plan(state, 0, state.pending[max(state.pending)], tuple(state.pending))
        op, index = self._units(state)[state.unit]
        frames = self._making(state)
        if op == "write_memory":
            return self._write_plan(state, index, frames, "write")
        if op == "decode":
            inputs = {"state": state, "frames": frames}
            return Plan(op=op, inputs=inputs, shape=(len(frames),), label=f"frame{state.frame}.decode")
        return Plan(
            op=op,
            inputs={"state": state, "frames": frames, "step": index},
            shape=(self._rows(frames), len(state.branches)),
            cost=len(state.branches) * self._cost(state.branches[0], frames),
            label=f"frame{state.frame}.t{timestep(state.sampling.sigmas[index]):g}",
        )

    def advance(self, state: VideoState, result: Result) -> VideoState:
        """Take a result into the state."""
        made = result.outputs
        state.done += 1
        if made["op"] == "first_frame":
            assert state.drawing is not None
            state.first = self._painter.advance(state.drawing, made["result"])
            state.drawing = state.drawing if state.first is None else None
        elif made["op"] == "encode_text":
            self._take_text(state, made)
        elif made["op"] == "rewrite":
            branch = state.branches[made["branch"]]
            branch.memory.advance()
            branch.rewrite.popleft()
        else:
            self._take_unit(state, made)
        return state

    def finalize(self, state: VideoState) -> VideoResult:
        """The latents that were made."""
        latents = torch.cat(state.made) if state.made else None
        return VideoResult(latents=latents, frames=state.frame - state.start)

    def progress(self, state: VideoState) -> tuple[int, int | None]:
        """(units done, units in all); None in all without an end."""
        if state.end is None:
            return state.done, None
        left = sum((branch.cross is None) + len(branch.rewrite) for branch in state.branches) - state.unit
        left += 0 if state.drawing is None else self._painter.units_left(state.drawing)
        if state.frame < state.end:
            own = len(self._making(state))
            later = (state.end - state.frame - own) // self.model.config.chunk_frames
            left += len(self._units(state))
            left += later * (state.sampling.passes + 1 + len(state.branches))
            left -= len(state.branches) if later else 0
        return state.done, state.done + left

    # -- planning -------------------------------------------------------------------------------------------------
    @property
    def _painter(self) -> FirstFrame:
        """ValueError when a first frame cannot be drawn."""
        if self.first_frame is None:
            raise ValueError("draw needs a picture model beside the video model")
        return self.first_frame

    def _lead(self, request: VideoRequest) -> int:
        """1 when latent frame 0 is a chunk of its own."""
        if request.context is not None:
            return len(request.context) % self.model.config.chunk_frames
        return int(request.has_first)

    def _making(self, state: VideoState) -> tuple[int, ...]:
        """Frames of the chunk in the making."""
        alone = state.frame == 0 and self._lead(state.request)
        return tuple(range(state.frame, state.frame + (1 if alone else self.model.config.chunk_frames)))

    def _units(self, state: VideoState) -> list[tuple[str, int]]:
        """(op, step or branch) of the chunk in the making."""
        given = state.frame == 0 and state.request.has_first
        units = [] if given else [("denoise", step) for step in range(state.sampling.passes)]
        units.append(("decode", 0))
        if self._making(state)[-1] + 1 != state.end:
            units += [("write_memory", index) for index in range(len(state.branches))]
        return units

    def _chunks(self, state: VideoState, frames: range) -> list[tuple[int, ...]]:
        """Frames in the chunks in which they were made."""
        lead, size = self._lead(state.request), self.model.config.chunk_frames
        groups = itertools.groupby(frames, key=lambda frame: (frame - lead) // size)
        return [tuple(group) for _, group in groups]

    def _text_plan(self, state: VideoState, index: int, text: Tensor, ids: tuple[int, ...]) -> Plan:
        return Plan(
            op="encode_text",
            inputs={"branch": index, "text": text, "ids": ids},
            shape=(self.model.config.model.text_len,),
            label=f"frame{state.frame}.text.{state.branches[index].name}",
        )

    def _write_plan(self, state: VideoState, index: int, frames: tuple[int, ...], kind: str) -> Plan:
        branch = state.branches[index]
        return Plan(
            op="write_memory",
            inputs={"state": state, "branch": index, "frames": frames, "kind": kind},
            shape=(self._rows(frames),),
            cost=self._cost(branch, frames),
            label=f"frame{frames[0]}.{kind}.{branch.name}",
        )

    def _rows(self, frames: Sequence[int]) -> int:
        return len(frames) * self.model.config.memory.tokens

    def _cost(self, branch: Branch, frames: Sequence[int]) -> float:
        memory = branch.memory.config
        keys = len(memory.kept(branch.memory.frame + len(frames))) * memory.tokens
        return float(self.model.config.model.pass_operations(self._rows(frames), keys))

    # -- state ----------------------------------------------------------------------------------------------------
    def _take_text(self, state: VideoState, made: Mapping[str, Any]) -> None:
        branch = state.branches[made["branch"]]
        branch.text, branch.cross = made["text"], made["cross"]
        if made["ids"]:
            for number in made["ids"]:
                del state.pending[number]
            state.applied += made["ids"]
            # The window was written under the old prompt. Ranks, not frame numbers, are positions, so the memory may
            # begin anew with what the next chunk would see of it.
            branch.memory.reset()
            branch.rewrite.extend(self._chunks_seen(state))

    def _chunks_seen(self, state: VideoState) -> list[tuple[int, ...]]:
        """What the next chunk sees of the past, in chunks."""
        memory = state.branches[0].memory.config
        seen = memory.kept(state.frame + memory.chunk)[: -memory.chunk]
        groups: list[tuple[int, ...]] = []
        for _, run in itertools.groupby(enumerate(seen), key=lambda pair: pair[1] - pair[0]):
            frames = [frame for _, frame in run]
            groups += self._chunks(state, range(frames[0], frames[-1] + 1))
        return groups

    def _take_unit(self, state: VideoState, made: Mapping[str, Any]) -> None:
        state.x = made.get("x", state.x)
        if made["op"] == "denoise":
            state.request.profile.step(state.frame, made["seen"])
        elif made["op"] == "decode":
            state.decoder, state.applied = made["decoder"], ()
            if state.end is not None:
                state.made.append(made["kept"])
        state.unit += 1
        if state.unit == len(self._units(state)):
            self._finish_chunk(state)

    def _finish_chunk(self, state: VideoState) -> None:
        assert state.x is not None
        memory = self.model.config.memory
        texts = {branch.name: branch.text for branch in state.branches}
        state.request.profile.chunk(state.frame, state.x, lambda: texts)
        state.past.update(enumerate(state.x, start=state.frame))
        state.frame += len(state.x)
        gone = state.frame - (memory.window - memory.sink)
        state.past = {n: x for n, x in state.past.items() if n < memory.sink or n >= gone}
        if state.end is None or state.frame < state.end:
            for branch in state.branches:
                branch.memory.advance()
        state.unit, state.x = 0, None

    # -- ops: run on the device thread, change nothing but the chunk's own memory slots ----------------------------
    def _encode_text(self, plan: Plan) -> Result:
        cross = self.model.cross(plan.inputs["text"])
        return Result(outputs={**plan.inputs, "op": "encode_text", "cross": cross})

    def _denoise(self, plan: Plan) -> Result:
        state: VideoState = plan.inputs["state"]
        frames, step = plan.inputs["frames"], plan.inputs["step"]
        x = self._noise(state, frames, 0) if state.x is None else state.x
        sigma, after = state.sampling.sigmas[step : step + 2]
        made: list[Tensor] = []
        v = state.request.profile.given(state.frame, step, x)
        if v is None:
            made = [self._pass(branch, x, timestep(sigma)) for branch in state.branches]
            v = made[0] if len(made) == 1 else guide(made[0], made[1], state.sampling.guidance)
        fresh = partial(self._noise, state, frames, step + 1)
        x_after = solve(state.sampling.solver, x, v, sigma, after, fresh)
        seen = partial(self._seen, state, step, x, v, made)
        return Result(outputs={"op": "denoise", "x": x_after, "seen": seen})

    def _seen(self, state: VideoState, step: int, x: Tensor, v: Tensor, made: Sequence[Tensor]) -> Step:
        """What a record keeps of a step; `made` are the branches' predictions."""
        sigma = state.sampling.sigmas[step]
        names = [branch.name for branch in state.branches]
        branches = dict(zip(names, made, strict=True)) if len(made) > 1 else {}
        return Step(step, timestep(sigma), 1 - sigma, sigma, x, v, predict_clean(x, v, sigma), branches)

    def _write_memory(self, plan: Plan) -> Result:
        state: VideoState = plan.inputs["state"]
        index, kind, frames = plan.inputs["branch"], plan.inputs["kind"], plan.inputs["frames"]
        latents = state.x if kind == "write" else torch.stack([state.past[n] for n in frames])
        assert latents is not None
        self._pass(state.branches[index], latents, CLEAN)
        return Result(outputs={"op": kind, "branch": index})

    def _decode(self, plan: Plan) -> Result:
        state: VideoState = plan.inputs["state"]
        request, latents, cache = state.request, state.x, state.decoder
        if latents is None:
            assert state.first is not None
            latents = self._latents(state.first[None])
        if cache is None and request.context is not None:
            cache = self.model.pictures.resume(self._latents(request.context))
        pictures, cache = self.model.pictures.decode(latents, cache)
        before = pictures_before(state.frame) - pictures_before(state.start)
        emit = Emit(
            frames=pictures.cpu().numpy(),
            media_time=before / self.model.config.fps,
            input_ids=state.applied,
            index=state.frame,
        )
        outputs = {"op": "decode", "decoder": cache, "x": latents, "kept": latents.cpu()}
        return Result(outputs=outputs, emits=(emit,))

    def _pass(self, branch: Branch, latents: Tensor, told: float) -> Tensor:
        assert branch.cross is not None
        return self.model.run_pass(latents, told, branch.cross, branch.memory)

    def _noise(self, state: VideoState, frames: Sequence[int], step: int) -> Tensor:
        shape, seed = self.model.config.latent_shape, state.request.seed
        noise = [normal(shape, seed=seed, frame=frame, step=step) for frame in frames]
        return self._latents(torch.stack(noise))

    def _latents(self, latents: Tensor) -> Tensor:
        return latents.to(device=self.model.device, dtype=self.model.latent_dtype)
