"""The world loop: a session that never ends. Start picture, then for each latent frame K denoising passes, decode, and
one clean pass that writes the frame's record to memory.

    start picture:  write_memory, decode                                        emits 1 picture
    body frame:     denoise x K, decode, write_memory (mode recache only)       emits 4 pictures
    now and then:   reprefill x (1 + up to W), which rebuilds the memory from the clean history: every so many frames,
                    at the end of the rotary table, or because the dream has drifted (`drift`)

Decode comes before the memory write so that pictures leave as early as they can. Controls of a frame are read when its
first pass is planned. Noise is a function of (seed, frame, pass). Shapes: N cells, C channels, W memory window.
Owns the order of work and the state. Does not own the network (`models`), threads (`engine`) or pacing (`session`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from worldloop.core.types import NO_ACTION, Controls, LiveControls
from worldloop.engine.contract import BatchOp, Done, Emit, Idle, Op, Plan, Price, Result, Work
from worldloop.loops.drift import Averages, with_score
from worldloop.loops.model import WorldModel
from worldloop.loops.rollout import SERVE, Profile, Step, completed
from worldloop.loops.units import alone, inference
from worldloop.models.autoencoder import GROUP
from worldloop.models.memory import Memory, memory_bytes
from worldloop.models.noise import check_seed, normal
from worldloop.models.sampling import add_noise, plan_timesteps, predict_x0, project_to_sphere
from worldloop.models.summaryformer import Film

SPHERE_MODES = ("off", "decode", "all")
MAX_REPREFILL = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldRequest:
    """What a session starts from.

    Attributes:
        latent: gaussianised start picture, float32 `[1, N, C]`.
        seed: in [0, 2**32).
        nfe, nfe_mode: override of the number of denoising calls, see `sampling.plan_timesteps`.
        sphere: `off`, `decode` or `all`.
        reprefill_every: rebuild the memory every N body frames; 0 is off. Needs mode recache.
        drift_limit: rebuild it when the dream's score (`drift`) is above this, at most once in W frames; 0 is off.
            Needs mode recache.
        on_table_end: `reprefill` or `stop` when frame ids reach the end of the rotary table.
        focus: booleans `[N]` of the start picture's focus region, or None.
        profile: what is recorded or given (`rollout`); no part of a snapshot.
    """

    latent: Tensor
    seed: int
    nfe: int | None = None
    nfe_mode: str = "repeat"
    sphere: str = "off"
    reprefill_every: int = 0
    drift_limit: float = 0.0
    on_table_end: str = "reprefill"
    focus: Tensor | None = None
    profile: Profile = SERVE


@dataclass(frozen=True, slots=True)
class PendingInput:
    """Controls that wait for their frame, and may change while they wait."""

    id: int
    live: LiveControls

    @property
    def controls(self) -> Controls:
        return self.live.take()


@dataclass(frozen=True, slots=True)
class Past:
    """A finished frame: clean x0 `[1, N, C]` and what was held."""

    x0: Tensor
    controls: Controls


@dataclass(kw_only=True)
class WorldState:
    """Everything about one session.

    Attributes:
        frame: number of the latent frame in the making; 0 is the start picture. Keys the noise.
        step: units of the frame that are done.
        memory: K/V buffer; its own frame id starts over after a re-prefill.
        x: latest x0 of the frame, `[1, N, C]`.
        film: conditioning of the frame's passes, the clean pass last.
        decoder: the autoencoder's cache.
        past: up to W finished frames, for re-prefill.
        refill: frames still to be written by a re-prefill in progress, or None.
        prefills, last_prefill: how often the memory was rebuilt, and in which frame last.
        drift, drift_score: averages since the memory was rebuilt and their score, or None when they are not watched.
        drift_prefills: how many of `prefills` were because of the score.
        shown: what was held in the newest frame whose pictures are out.
    """

    request: WorldRequest
    timesteps: tuple[int, ...]
    memory: Memory
    past: deque[Past]
    frame: int = 0
    step: int = 0
    x: Tensor
    film: Film | None = None
    decoder: Tensor | None = None
    current: PendingInput | None = None
    pending: deque[PendingInput] = field(default_factory=deque)
    next_input: int = 0
    refill: deque[Past] | None = None
    since_prefill: int = 0
    prefills: int = 0
    last_prefill: int | None = None
    drift: Averages | None = None
    drift_score: float | None = None
    drift_prefills: int = 0
    shown: Controls = Controls()  # noqa: RUF009 (frozen)


@dataclass(kw_only=True, slots=True)
class Tally:
    """How often the memories of all sessions were rebuilt, and how often because of drift. Never goes down.

    Written on the device thread; may be read from any.
    """

    prefills: int = 0
    drift_prefills: int = 0


@dataclass(frozen=True, slots=True)
class Noisy:
    """What a denoising pass sees, the frame's conditioning, and the scales of signal and noise."""

    x_t: Tensor
    film: Film
    alpha: float
    sigma: float


class WorldLoop:
    """Stateless code of the world family.

    Args:
        model: what to run; read-only here.
        tally: counts what its sessions do.
    """

    def __init__(self, model: WorldModel, tally: Tally | None = None) -> None:
        self.model = model
        self.tally = tally or Tally()
        self._ops: dict[str, Op] = {
            "denoise": alone(self._denoise),
            "decode": inference(self._decode),
            "write_memory": alone(self._write_memory),
            "reprefill": inference(self._reprefill),
        }
        # A compiled pass has one shape, that of a session alone.
        self._batch_ops: dict[str, BatchOp] = (
            {}
            if model.compile.any
            else {"denoise": inference(self._denoise), "write_memory": inference(self._write_memory)}
        )

    @property
    def ops(self) -> Mapping[str, Op]:
        return self._ops

    @property
    def batch_ops(self) -> Mapping[str, BatchOp]:
        return self._batch_ops

    def price(self, request: WorldRequest) -> Price:
        """Bytes of a session that has played for longer than its window, and the work of one of its latent frames."""
        config, model = self.model.config, self.model.config.model
        passes = len(self.timesteps(request)) + (config.cache_mode == "recache")
        keys = model.memory.capacity
        one_pass = float(model.pass_operations(keys))
        work = [Work("denoise", (model.record, 1), one_pass)] * len(self.timesteps(request))
        work += [Work("decode", (model.record, 1))]
        work += [Work("write_memory", (model.record, 1), one_pass)] * (passes - len(work) + 1)
        latent = request.latent.numel()
        return Price(
            resident_bytes=memory_bytes(model.memory, self.model.tables, self.model.dtype)
            + latent * 4 * (model.summary_window_frames + 1)
            + latent * self.model.autoencoder.dtype.itemsize,
            peak_bytes=model.record * (8 * model.dim + 3 * model.ffn_dim) * self.model.dtype.itemsize,
            chunk=tuple(work),
        )

    def timesteps(self, request: WorldRequest) -> tuple[int, ...]:
        """Of a body frame's denoising passes."""
        config = self.model.config
        return plan_timesteps(config.timesteps, config.timestep_shift, nfe=request.nfe, mode=request.nfe_mode)

    def init(self, request: WorldRequest) -> WorldState:
        """Validate and allocate; raises what `check` raises."""
        model, config = self.model, self.model.config
        self.check(request)
        request.profile.begin("world", request.seed)
        return WorldState(
            request=request,
            timesteps=self.timesteps(request),
            memory=model.new_memory(),
            past=deque(maxlen=config.model.summary_window_frames),
            x=request.latent,
            drift=self._no_drift(request),
        )

    def check(self, request: WorldRequest) -> None:
        """Whether this world can be played so.

        Raises:
            ValueError: a field of the request is out of range; the message names it.
        """
        model, config = self.model, self.model.config
        check_seed(request.seed)
        if tuple(request.latent.shape) != (1, *model.latent_shape):
            raise ValueError(f"latent is {tuple(request.latent.shape)}; {(1, *model.latent_shape)} is needed")
        check_sphere(request.sphere)
        check_reprefill(request.reprefill_every, config.cache_mode)
        check_drift_limit(request.drift_limit, config.cache_mode)
        if request.focus is not None and not model.focus:
            raise ValueError(
                "this checkpoint was trained without a focus region; a focus mask would change nothing"
            )
        table, least = config.model.rope_table_len, config.model.summary_window_frames + 3
        if table < least:
            raise ValueError(
                f"rope_table_len={table} must be at least {least}, or a rebuilt memory would fill it"
            )
        writes = config.cache_mode != "recache"  # then a frame's last step writes the memory
        steps = len(self.timesteps(request)) - writes
        request.profile.check(shape=(1, *model.latent_shape), steps=steps)

    def offer(self, state: WorldState, value: Controls | LiveControls) -> int:
        """Queue the controls of one more frame."""
        live = LiveControls(value) if isinstance(value, Controls) else value
        entry = PendingInput(state.next_input, live)
        state.next_input += 1
        state.pending.append(entry)
        return entry.id

    def next(self, state: WorldState) -> Plan | Idle | Done:
        """The next unit of work."""
        if state.refill is not None:
            return self._plan(state, "reprefill", f"frame{state.frame}.reprefill")
        if state.step == 0 and self._prefill_due(state):
            if self.model.config.cache_mode != "recache" or state.request.on_table_end == "stop":
                return Done(f"the world is {state.frame} frames old, which is as far as its positions reach")
            return self._plan(state, "reprefill", f"frame{state.frame}.reprefill")
        if state.current is None and not state.pending and state.step == 0:
            return Idle()
        return self._plan(state, *self._unit(state))

    def advance(self, state: WorldState, result: Result) -> WorldState:
        """Take a result into the state."""
        made = result.outputs
        if made["op"] == "reprefill":
            return self._advance_refill(state)
        if state.step == 0:
            state.current = state.pending.popleft()
        if made["op"] == "denoise":
            state.x, state.film = made["x0"], made["film"]
            state.request.profile.step(state.frame, made["seen"])
        elif made["op"] == "decode":
            assert state.current is not None
            state.shown = state.current.controls
            state.decoder, state.drift, state.drift_score = made["decoder"], made["drift"], made["score"]
        state.step += 1
        if state.step == self._units(state):
            self._finish_frame(state)
        return state

    def finalize(self, state: WorldState) -> int:
        """Number of frames that were finished."""
        return state.frame

    # -- planning -------------------------------------------------------------------------------------------------
    def _units(self, state: WorldState) -> int:
        if state.frame == 0:
            return 2
        return len(state.timesteps) + (2 if self.model.config.cache_mode == "recache" else 1)

    def _unit(self, state: WorldState) -> tuple[str, str]:
        """(op, label) of the frame's unit number `state.step`."""
        name = f"frame{state.frame}"
        if state.frame == 0:
            return ("write_memory", f"{name}.z0") if state.step == 0 else ("decode", f"{name}.decode")
        if state.step < len(state.timesteps):
            return "denoise", f"{name}.t{state.timesteps[state.step]}"
        if state.step == len(state.timesteps):
            return "decode", f"{name}.decode"
        return "write_memory", f"{name}.write"

    def _plan(self, state: WorldState, op: str, label: str) -> Plan:
        config = self.model.config.model
        cost = 0.0 if op == "decode" else float(config.pass_operations(state.memory.end))
        return Plan(
            op=op,
            inputs={
                "state": state,
                "input": state.pending[0] if state.step == 0 and state.pending else state.current,
            },
            shape=(config.record, int(state.frame > 0)),
            cost=cost,
            label=label,
        )

    def _prefill_due(self, state: WorldState) -> bool:
        every = state.request.reprefill_every
        at_end = state.memory.frame + 1 >= self.model.config.model.rope_table_len
        return at_end or (every > 0 and state.since_prefill >= every) or self._has_drifted(state)

    def _has_drifted(self, state: WorldState) -> bool:
        if state.drift_score is None or state.since_prefill < self.model.config.model.summary_window_frames:
            return False
        return state.drift_score > state.request.drift_limit

    def _no_drift(self, request: WorldRequest) -> Averages | None:
        if not request.drift_limit:
            return None
        return Averages.empty(self.model.config.model.latent_channels, self.model.device)

    def _finish_frame(self, state: WorldState) -> None:
        assert state.current is not None
        controls = state.current.controls
        state.request.profile.chunk(state.frame, state.x, partial(self._told, controls))
        if state.frame > 0:
            state.past.append(Past(state.x, controls))
            state.since_prefill += 1
        state.memory.advance()
        state.frame += 1
        state.step = 0
        state.current = None

    def _advance_refill(self, state: WorldState) -> WorldState:
        """After each rewritten record, the start picture's first."""
        if state.refill is None:
            state.refill = deque(state.past)
        else:
            state.refill.popleft()
        state.memory.advance()
        if not state.refill:
            drifted = self._has_drifted(state)
            state.refill = None
            state.since_prefill = 0
            state.prefills += 1
            state.drift_prefills += drifted
            state.last_prefill = state.frame
            state.drift = self._no_drift(state.request)
            self.tally.prefills += 1
            self.tally.drift_prefills += drifted
        return state

    # -- ops: run on the device thread, change nothing but the frame's own memory slot ------------------------------
    def _denoise(self, plans: Sequence[Plan]) -> list[Result]:
        model = self.model
        noisy = [self._noisy(plan) for plan in plans]
        states: list[WorldState] = [plan.inputs["state"] for plan in plans]
        films = [each.film.at(state.step) for each, state in zip(noisy, states, strict=True)]

        def predict(asked: Sequence[int]) -> Sequence[Tensor]:
            parts = ((noisy[n].x_t, films[n], states[n].memory) for n in asked)
            return model.run_passes(*zip(*parts, strict=True))

        pairs = [*zip(noisy, states, strict=True)]
        given = [s.request.profile.given(s.frame, s.step, each.x_t) for each, s in pairs]
        results = []
        for (each, state), v in zip(pairs, completed(given, predict), strict=True):
            x0 = predict_x0(each.x_t, v, each.alpha, each.sigma)
            if state.request.sphere == "all":
                x0 = project_to_sphere(x0)
            told = state.timesteps[state.step]
            seen = partial(Step, state.step, told, each.alpha, each.sigma, each.x_t, v, x0)
            results.append(Result(outputs={"op": "denoise", "x0": x0, "film": each.film, "seen": seen}))
        return results

    def _noisy(self, plan: Plan) -> Noisy:
        state: WorldState = plan.inputs["state"]
        model, step = self.model, state.step
        film = state.film if step else self.film(state, plan.inputs["input"].controls)
        assert film is not None
        alpha, sigma = model.config.schedule.scales(state.timesteps[step])
        noise = normal((1, *model.latent_shape), seed=state.request.seed, frame=state.frame, step=step).to(
            model.device
        )
        return Noisy(add_noise(state.x, noise, alpha, sigma) if step else noise, film, alpha, sigma)

    def _write_memory(self, plans: Sequence[Plan]) -> list[Result]:
        states: list[WorldState] = [plan.inputs["state"] for plan in plans]
        if states[0].frame == 0:
            for plan, state in zip(plans, states, strict=True):
                film = self._clean_film(plan.inputs["input"].controls, start=True).at(-1)
                self.model.run_pass(state.x, film, state.memory, focus=state.request.focus)
        else:
            films = [state.film.at(-1) for state in states if state.film is not None]
            self.model.run_passes([state.x for state in states], films, [state.memory for state in states])
        return [Result(outputs={"op": "write_memory"}) for _ in plans]

    def _decode(self, plan: Plan) -> Result:
        state: WorldState = plan.inputs["state"]
        entry: PendingInput = plan.inputs["input"]
        model, first = self.model, state.frame == 0
        latent = state.x if state.request.sphere == "off" else project_to_sphere(state.x)
        pixels, cache = model.decode(latent, state.decoder)
        drift, score = state.drift, None
        if drift is None or first:
            pixels = pixels.cpu()
        else:
            drift = drift.with_frame(state.x)
            pixels, score = with_score(pixels, drift.score())
        emit = Emit(
            frames=pixels.numpy(),
            media_time=0.0 if first else (1 + GROUP * (state.frame - 1)) / model.config.encode_fps,
            input_ids=(entry.id,),
            index=state.frame,
        )
        return Result(
            outputs={"op": "decode", "decoder": cache, "drift": drift, "score": score}, emits=(emit,)
        )

    def _reprefill(self, plan: Plan) -> Result:
        state: WorldState = plan.inputs["state"]
        if state.refill is None:
            state.memory.reset()
            last = state.past[-1].controls
            film = self._clean_film(last, start=True).at(0)
            self.model.run_pass(state.request.latent, film, state.memory, focus=state.request.focus)
        else:
            past = state.refill[0]
            self.model.run_pass(past.x0, self._clean_film(past.controls).at(0), state.memory)
        return Result(outputs={"op": "reprefill"})

    def film(self, state: WorldState, controls: Controls) -> Film:
        """Conditioning of all passes of a body frame, the clean one last."""
        times = torch.tensor([*state.timesteps, 0], dtype=torch.float32, device=self.model.device)
        return self._condition(times, controls)

    def _clean_film(self, controls: Controls, *, start: bool = False) -> Film:
        return self._condition(torch.zeros(1, device=self.model.device), controls, start=start)

    def _condition(self, times: Tensor, controls: Controls, *, start: bool = False) -> Film:
        action = controls.action(jump_sprint=self.model.config.jump_sprint, yaw=self.model.config.yaw)
        assert controls.fps is not None or set(action) == {NO_ACTION}
        actions = torch.tensor([action], device=self.model.device).expand(len(times), -1)
        fps = times.new_full((len(times),), controls.fps or 0.0)
        return self.model.network.condition(times, actions, fps, start=start)

    def _told(self, controls: Controls) -> dict[str, Tensor]:
        """What a record says of them."""
        action = controls.action(jump_sprint=self.model.config.jump_sprint, yaw=self.model.config.yaw)
        return {"action": torch.tensor(action), "fps": torch.tensor([controls.fps or 0.0])}


def check_sphere(mode: str) -> None:
    """ValueError unless `mode` is one of `SPHERE_MODES`."""
    if mode not in SPHERE_MODES:
        raise ValueError(f"sphere={mode!r} must be one of {SPHERE_MODES}")


def check_reprefill(every: int, cache_mode: str) -> None:
    """ValueError unless `every` is in range and the cache mode can be rebuilt."""
    if isinstance(every, bool) or not 0 <= every <= MAX_REPREFILL:
        raise ValueError(f"reprefill_every={every!r} must be an integer in [0, {MAX_REPREFILL}]")
    if every and cache_mode != "recache":
        raise ValueError(f"reprefill needs cache_mode 'recache'; this checkpoint's is {cache_mode!r}")


def check_drift_limit(limit: float, cache_mode: str) -> None:
    """ValueError unless `limit` is a finite number, 0 or above, and the cache mode can be rebuilt."""
    if isinstance(limit, bool) or not 0 <= limit < math.inf:
        raise ValueError(f"drift_limit={limit!r} must be a finite number, 0 or above")
    if limit and cache_mode != "recache":
        raise ValueError(f"drift_limit needs cache_mode 'recache'; this checkpoint's is {cache_mode!r}")


def state_bytes(state: WorldState) -> int:
    """Bytes that a session holds on the device. May be called from any thread."""
    latents = (1 + len(state.past)) * state.x.nbytes
    decoder, drift = state.decoder, state.drift
    return (
        state.memory.bytes
        + latents
        + (0 if decoder is None else decoder.nbytes)
        + (0 if drift is None else drift.moments.nbytes)
    )
