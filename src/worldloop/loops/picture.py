"""The picture loop: text to one picture, a unit of work at a time.

    encode_text (each branch), noise, condition (each branch)
    step:       denoise (each branch), then preview x pieces where one was asked for      emits the step
    end:        decode x pieces                                                           emits the picture

One pass of the network is one unit, so a picture adds at most one pass to a frame of a world beside it. At guidance 1
there is no branch without the prompt. Noise is a pure function of (seed, size); previews read the state and change
nothing in it, so they do not shape the picture. Shapes: x is the model's own latents, H x W the picture.

Owns the order of work, guidance and the state. Does not own the model (`picture_model`), who may begin
(`picture_host`) or threads (`engine`).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from worldloop.engine.contract import BatchOp, Done, Emit, Op, Plan, Price, Result, Work
from worldloop.loops.picture_model import PHASES, Phase, PictureModel, Size, StartLatent
from worldloop.loops.rollout import SERVE, Profile, Step
from worldloop.loops.units import inference
from worldloop.models.causal_weights import check_guidance
from worldloop.models.flow import guide
from worldloop.models.noise import check_seed

KEPT_TEXTS = 4
"""Encodings of negative prompts that are kept: most pictures have the same one."""

PHASE_OF: Mapping[str, Phase] = {
    "encode_text": "encode", "noise": "denoise", "condition": "denoise", "denoise": "denoise", "preview": "decode",
    "decode": "decode",
}  # fmt: skip
"""Which phase's weights an op needs."""

BRANCHES = ("cond", "uncond")


@dataclass(frozen=True, kw_only=True, slots=True)
class PictureRequest:
    """What a picture is made from.

    Attributes:
        prompt, negative: texts; the negative one is not read at guidance 1.
        size: (height, width) in pixels.
        seed: in [0, 2**32).
        steps: before duplicates are dropped.
        guidance, shift: of the sampler.
        previews: pictures on the way, evenly spread over the steps.
        profile: what is recorded or given (`rollout`): one chunk of one frame, and each branch's text by its name.
        one_by_one: have only the running phase's weights on the device. There are no previews then: each would move
            the weights back and forth.
    """

    prompt: str
    size: Size
    seed: int
    steps: int
    guidance: float
    shift: float
    negative: str = ""
    previews: int = 0
    profile: Profile = SERVE
    one_by_one: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class PictureResult:
    """What a picture leaves.

    Attributes:
        pixels: uint8 `[H, W, 3]`.
        steps: that were made.
        noise_hash: SHA-256 of the noise that it began with.
        latent: for a world of the same autoencoder, or None.
    """

    pixels: np.ndarray[Any, np.dtype[np.uint8]]
    steps: int
    noise_hash: str
    latent: StartLatent | None


@dataclass(kw_only=True, slots=True)
class Branch:
    """One of the two predictions that guidance combines.

    Attributes:
        prompt: what it is told.
        text: its encoding, None before, and after it was conditioned on unless a record is to have it.
        condition: what passes read of it, None before.
    """

    prompt: str
    text: Any = None
    condition: Any = None


@dataclass(kw_only=True, slots=True)
class PictureState:
    """Everything about one picture.

    Attributes:
        sigmas: of the passes, high to low, then 0.
        branches: with the prompt first.
        previews: steps after which there is one.
        step: passes of every branch that are done.
        velocities: of the step in the making, by branch.
        x: latents, None before the noise.
        preview: what the next piece of a preview takes, or None.
        value: what the next piece of the decode takes; None before the first.
        piece: pieces done, of a preview or of the decode.
        pixels: the picture, once it is there.
        done: units done.
    """

    request: PictureRequest
    sigmas: tuple[float, ...]
    branches: tuple[Branch, ...]
    previews: frozenset[int]
    step: int = 0
    velocities: list[Tensor] = field(default_factory=list)
    x: Tensor | None = None
    noise_hash: str = ""
    preview: Tensor | None = None
    value: Tensor | None = None
    piece: int = 0
    pixels: np.ndarray[Any, np.dtype[np.uint8]] | None = None
    done: int = 0

    @property
    def steps(self) -> int:
        return len(self.sigmas) - 1


class PictureLoop:
    """Code of the picture family; the only thing that it keeps is encodings of negative prompts.

    Args:
        model: what to run.
    """

    def __init__(self, model: PictureModel) -> None:
        self.model = model
        self._texts: OrderedDict[str, Any] = OrderedDict()
        ops = {
            "encode_text": self._encode_text,
            "noise": self._noise,
            "condition": self._condition,
            "denoise": self._denoise,
            "preview": self._preview,
            "decode": self._decode,
        }
        self._ops: dict[str, Op] = {name: inference(op) for name, op in ops.items()}

    @property
    def ops(self) -> Mapping[str, Op]:
        return self._ops

    @property
    def batch_ops(self) -> Mapping[str, BatchOp]:
        return {}

    def price(self, request: PictureRequest) -> Price:
        """Bytes beside the weights, held from the beginning to the end, and the work of the whole picture."""
        self._checked(request)
        needs = self.model.bytes_of(request.size)
        return Price(
            resident_bytes=max(needs[phase].scratch for phase in PHASES), chunk=self.work(request), chunks=1
        )

    def work(self, request: PictureRequest, done: int = 0) -> tuple[Work, ...]:
        """What is left of a picture after `done` steps; its previews do not count."""
        state = self._fresh(request)
        plans: list[Work] = []
        if not done:
            begun = ["encode_text", "condition"] * len(state.branches)
            plans = [self._work(request, op) for op in (*begun, "noise")]
        plans += [self._work(request, "denoise")] * len(state.branches) * (state.steps - done)
        return (*plans, *(self._work(request, "decode", piece) for piece in range(self._pieces(request))))

    def init(self, request: PictureRequest) -> PictureState:
        """Check a request.

        Raises:
            ValueError: anything about it that cannot be.
        """
        state = self._checked(request)
        if request.profile.override:
            noise = self.model.noise(request.seed, request.size)
            request.profile.check(shape=(1, *noise.shape), steps=state.steps)
        request.profile.begin("picture", request.seed)
        for branch in state.branches[1:]:
            if branch.prompt in self._texts:
                self._texts.move_to_end(branch.prompt)
                branch.text = self._texts[branch.prompt]
        return state

    def offer(self, state: PictureState, value: Any) -> int:  # noqa: ARG002
        """There are no inputs."""
        raise ValueError("a picture takes no inputs once it has begun")

    def next(self, state: PictureState) -> Plan | Done:
        """The next unit of work."""
        request = state.request
        for index, branch in enumerate(state.branches):
            if branch.text is None and branch.condition is None:
                return self._plan(state, "encode_text", f"text.{BRANCHES[index]}", branch=index)
        if state.x is None:
            return self._plan(state, "noise", "noise")
        for index, branch in enumerate(state.branches):
            if branch.condition is None:
                return self._plan(state, "condition", f"condition.{BRANCHES[index]}", branch=index)
        if state.preview is not None:
            return self._plan(state, "preview", f"step{state.step}.preview{state.piece}", piece=state.piece)
        if state.step < state.steps:
            index = len(state.velocities)
            return self._plan(state, "denoise", f"step{state.step}.{BRANCHES[index]}", branch=index)
        if state.pixels is None:
            return self._plan(state, "decode", f"decode{state.piece}", piece=state.piece)
        return Done(f"the picture of {request.size[1]}x{request.size[0]} is made")

    def advance(self, state: PictureState, result: Result) -> PictureState:
        """Take a result into the state."""
        made = result.outputs
        state.done += 1
        match made["op"]:
            case "encode_text":
                self._take_text(state, made["branch"], made["text"])
            case "noise":
                state.x, state.noise_hash = made["x"], made["hash"]
            case "condition":
                branch = state.branches[made["branch"]]
                branch.condition = made["condition"]
                if state.request.profile.record is None:
                    branch.text = None
            case "denoise" if made["x"] is None:
                state.velocities.append(made["velocity"])
            case "denoise":
                state.velocities, state.x, state.preview = [], made["x"], made["preview"]
                state.request.profile.step(0, made["seen"])
                state.step += 1
                if state.step == state.steps:
                    state.request.profile.chunk(0, state.x[None], partial(_told, state))
            case "preview":
                last = state.piece + 1 == self._pieces(state.request)
                state.preview = None if last else made["value"]
                state.piece = 0 if last else state.piece + 1
            case "decode":
                state.value, state.pixels = made["value"], made["pixels"]
                state.piece += 1
        return state

    def finalize(self, state: PictureState) -> PictureResult | None:
        """The picture; None when it ended before."""
        if state.pixels is None:
            return None
        assert state.x is not None
        return PictureResult(
            pixels=state.pixels,
            steps=state.steps,
            noise_hash=state.noise_hash,
            latent=self.latent(state),
        )

    def latent(self, state: PictureState) -> StartLatent | None:
        """The finished latent, as soon as the last step is made; None before, or when no world could take it."""
        if state.x is None or state.step < state.steps:
            return None
        return self.model.start_latent(state.x, state.request.size)

    def progress(self, state: PictureState) -> tuple[int, int]:
        """(units done, units in all)."""
        pieces, branches = self._pieces(state.request), len(state.branches)
        left = sum((b.condition is None) + (b.condition is None and b.text is None) for b in state.branches)
        left += (state.x is None) + branches * (state.steps - state.step) - len(state.velocities)
        left += pieces * sum(step >= state.step for step in state.previews)
        left += pieces - state.piece if state.preview is not None else 0
        left += pieces if state.preview is not None or state.step < state.steps else pieces - state.piece
        return state.done, state.done + left

    # -- planning -------------------------------------------------------------------------------------------------
    def _fresh(self, request: PictureRequest) -> PictureState:
        check_seed(request.seed)
        check_guidance(request.guidance)
        sigmas = self.model.schedule(request.steps, request.shift)
        texts = (request.prompt,) if request.guidance == 1 else (request.prompt, request.negative)
        previews = 0 if request.one_by_one else request.previews
        return PictureState(
            request=request,
            sigmas=sigmas,
            branches=tuple(Branch(prompt=text) for text in texts),
            previews=preview_steps(previews, len(sigmas) - 1),
        )

    def _checked(self, request: PictureRequest) -> PictureState:
        state = self._fresh(request)
        for branch in state.branches:
            self.model.check_text(branch.prompt)
        return state

    def _pieces(self, request: PictureRequest) -> int:
        return self.model.pieces(request.size)

    def _work(self, request: PictureRequest, op: str, piece: int = 0) -> Work:
        height, width = request.size
        # A text costs what it costs whatever the size; all else grows with the picture.
        return (
            Work(op, (), 1.0)
            if op == "encode_text"
            else Work(op, (height, width, piece), float(height * width))
        )

    def _plan(self, state: PictureState, op: str, label: str, *, branch: int = 0, piece: int = 0) -> Plan:
        work = self._work(state.request, op, piece)
        inputs = {"state": state, "branch": branch, "piece": piece}
        return Plan(op=op, inputs=inputs, shape=work.shape, cost=work.cost, label=f"picture.{label}")

    def _take_text(self, state: PictureState, index: int, text: Any) -> None:
        state.branches[index].text = text
        if index:
            self._texts[state.branches[index].prompt] = text
            while len(self._texts) > KEPT_TEXTS:
                self._texts.popitem(last=False)

    # -- ops: run on the device thread, change nothing ------------------------------------------------------------
    def _place(self, plan: Plan) -> PictureState:
        state: PictureState = plan.inputs["state"]
        self.model.place(frozenset({PHASE_OF[plan.op]} if state.request.one_by_one else PHASES))
        return state

    def _encode_text(self, plan: Plan) -> Result:
        state, index = self._place(plan), plan.inputs["branch"]
        text = self.model.encode_text(state.branches[index].prompt)
        return Result(outputs={"op": plan.op, "branch": index, "text": text})

    def _noise(self, plan: Plan) -> Result:
        request: PictureRequest = plan.inputs["state"].request
        noise = self.model.noise(request.seed, request.size)
        digest = hashlib.sha256(noise.contiguous().numpy().tobytes()).hexdigest()
        return Result(outputs={"op": plan.op, "x": noise.to(self.model.device), "hash": digest})

    def _condition(self, plan: Plan) -> Result:
        state, index = self._place(plan), plan.inputs["branch"]
        made = self.model.condition(state.branches[index].text, state.request.size)
        return Result(outputs={"op": plan.op, "branch": index, "condition": made})

    def _denoise(self, plan: Plan) -> Result:
        state, index = self._place(plan), plan.inputs["branch"]
        request, step, x = state.request, state.step, state.x
        assert x is not None
        sigma, after = state.sigmas[step : step + 2]
        made: list[Tensor] = []
        given = request.profile.given(0, step, x)
        if given is not None:
            velocity = given[0]
        else:
            velocity = self.model.predict(
                x, sigma, state.branches[index].condition, step=step, steps=state.steps, negative=index == 1
            )
            if index + 1 < len(state.branches):
                return Result(outputs={"op": plan.op, "velocity": velocity, "x": None})
            made = [*state.velocities, velocity]
            if len(made) > 1:
                velocity = guide(made[0], made[1], request.guidance)
        preview = self.model.clean(x, velocity, sigma) if step in state.previews else None
        moved = self.model.advance(x, velocity, sigma, after, seed=request.seed, step=step)
        emits = () if preview is not None else (_emit(None, request, step + 1),)
        seen = partial(self._seen, x, velocity, sigma, step, made)
        return Result(outputs={"op": plan.op, "x": moved, "preview": preview, "seen": seen}, emits=emits)

    def _seen(self, x: Tensor, v: Tensor, sigma: float, step: int, made: Sequence[Tensor]) -> Step:
        """What a record keeps of a step; `made` are the branches' predictions."""
        told, x0 = self.model.timestep(sigma), self.model.clean(x, v, sigma)
        branches = (
            {name: each[None] for name, each in zip(BRANCHES, made, strict=False)} if len(made) > 1 else {}
        )
        return Step(step, told, 1 - sigma, sigma, x[None], v[None], x0[None], branches)

    def _preview(self, plan: Plan) -> Result:
        state, piece = self._place(plan), plan.inputs["piece"]
        assert state.preview is not None
        value = self.model.decode(state.preview, piece, state.request.size)
        if piece + 1 < self._pieces(state.request):
            return Result(outputs={"op": plan.op, "value": value})
        emit = _emit(value.cpu().numpy(), state.request, state.step)
        return Result(outputs={"op": plan.op, "value": None}, emits=(emit,))

    def _decode(self, plan: Plan) -> Result:
        state, piece = self._place(plan), plan.inputs["piece"]
        taken = state.x if piece == 0 else state.value
        assert taken is not None
        value = self.model.decode(taken, piece, state.request.size)
        if piece + 1 < self._pieces(state.request):
            return Result(outputs={"op": plan.op, "value": value, "pixels": None})
        pixels = value.cpu().numpy()
        emit = _emit(pixels, state.request, state.steps, final=True)
        return Result(outputs={"op": plan.op, "value": None, "pixels": pixels}, emits=(emit,))


def preview_steps(previews: int, steps: int) -> frozenset[int]:
    """The steps after which previews are made: evenly spread, at most one a step, none after the last."""
    return frozenset(round((k + 1) * steps / (previews + 1)) - 1 for k in range(previews)) - {-1, steps - 1}


def _told(state: PictureState) -> dict[str, Tensor]:
    return {name: branch.text.cpu() for name, branch in zip(BRANCHES, state.branches, strict=False)}


def _emit(
    pixels: np.ndarray[Any, np.dtype[np.uint8]] | None,
    request: PictureRequest,
    done: int,
    *,
    final: bool = False,
) -> Emit:
    """News of `done` steps, with a picture or without."""
    frames = np.empty((0, *request.size, 3), np.uint8) if pixels is None else pixels[None]
    return Emit(frames=frames, media_time=0.0, input_ids=(), index=done, final=final)
