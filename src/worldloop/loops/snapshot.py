"""A world at one moment: taken out of a session, put into another, written to a file and read back.

    take(state, origin)              the state, copied to main memory
    put_back(loop, state, snapshot)  the other way round, in place: the memory keeps its addresses
    Snapshot.pack, Snapshot.unpack   safetensors; everything that is no tensor is JSON under one key of the metadata

A snapshot stands between two frames. When it is taken while a frame is in the making, it is of that frame's start,
or, when the frame's pictures have gone out and its record is still to be written, it has the frame finished on return.
What follows from the rest is not stored: noise is a function of (seed, frame, pass), and the bias and the rotation of
the memory follow from its counters. Owns the format and its checks; runs nothing from a file. Does not own which
moments are kept (`history`) or what was played (`tape`). Called on the device thread, but for packing.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from worldloop.core.errors import InvalidInputError, SnapshotError
from worldloop.core.files import replacing
from worldloop.core.types import MAX_FPS, Controls, LiveControls
from worldloop.loops.drift import Averages
from worldloop.loops.world import Past, PendingInput, WorldLoop, WorldRequest, WorldState

KEY = "worldloop"
"""Of the metadata."""
MAX_FACTS = 64 * 2**20
"""Bytes of JSON in a file, at most."""
FactsT = TypeVar("FactsT", bound=BaseModel)

Count = Annotated[int, Field(ge=0, lt=2**53)]
Finite = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Key = Literal["w", "a", "s", "d", "left", "right", "space", "shift"]


class Strict(BaseModel):
    """Facts of a file: no unknown names, no other types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Origin(Strict):
    """What a snapshot is of: SHA-256 of the checkpoint's and the autoencoder's file, and what else shapes the bytes.

    Attributes:
        recency: (flat_until, decay_end, beta, gamma) of the bias on summaries, or None.
        table: length of the rotary table, at whose end a memory is rebuilt.
    """

    model_id: str
    checkpoint: str
    autoencoder: str
    recency: tuple[int, int, float, float] | None
    table: Count


class Held(Strict):
    """`Controls`, in an order that is always the same."""

    keys: tuple[Key, ...]
    fps: Annotated[float, Field(ge=1, le=MAX_FPS, allow_inf_nan=False)] | None

    @classmethod
    def of(cls, controls: Controls) -> Held:
        return cls.model_validate({"keys": tuple(sorted(controls.pressed)), "fps": controls.fps})

    @property
    def controls(self) -> Controls:
        return Controls(pressed=frozenset(self.keys), fps=self.fps)


class Asked(Strict):
    """`WorldRequest` without its tensors."""

    seed: Count
    nfe: Count | None
    nfe_mode: str
    sphere: str
    reprefill_every: Count
    drift_limit: Finite
    on_table_end: str


class Facts(Strict):
    """Everything of a state that is no tensor; names as in `WorldState` and `Memory`.

    Attributes:
        written: what was held in the frame whose pictures are out and whose record is to be written, or None.
        past: what was held in the past frames.
        refill: how many past frames a memory that is being rebuilt still lacks, or None.
        drift_frames: of the drift averages, or None without them.
    """

    format: Literal["worldloop-snapshot-1"] = "worldloop-snapshot-1"
    origin: Origin
    request: Asked
    frame: Count
    memory_frame: Count
    sink_id: Count
    chases: Count
    written: Held | None
    past: tuple[Held, ...]
    refill: Count | None
    since_prefill: Count
    prefills: Count
    last_prefill: Count | None
    drift_frames: Count | None
    drift_score: float | None
    drift_prefills: Count


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """One moment of a world, in main memory. Nothing changes it.

    Attributes:
        facts: counters and choices.
        tensors: by name, see `_expected`.
    """

    facts: Facts
    tensors: Mapping[str, Tensor]

    @property
    def made(self) -> int:
        """Latent frames whose pictures are out, the start picture included."""
        return self.facts.frame + (self.facts.written is not None)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def request(self) -> WorldRequest:
        """What the session began with."""
        focus = self.tensors.get("focus")
        return WorldRequest(
            latent=self.tensors["latent"],
            focus=None if focus is None else focus.bool(),
            **self.facts.request.model_dump(),
        )

    def pack(self) -> bytes:
        """The file. Equal snapshots give equal files."""
        return pack(self.facts, self.tensors)

    def save(self, path: str | Path) -> None:
        """Write the file, whole or not at all."""
        write(Path(path), self.pack())

    @classmethod
    def load(cls, path: str | Path) -> Snapshot:
        """Read a file's snapshot; errors as `unpack`, and InvalidInputError when it cannot be read."""
        return cls.unpack(read(Path(path)))

    @classmethod
    def unpack(cls, data: bytes) -> Snapshot:
        """Read a file; whether it fits a world is for `check`.

        Raises:
            SnapshotError: it is damaged, of another format, or holds numbers that are not finite.
        """
        facts, tensors = unpack(data, Facts)
        return cls(facts=facts, tensors=tensors)

    def check(self, loop: WorldLoop, origin: Origin) -> None:
        """Whether this world can go on from here.

        Raises:
            SnapshotError: it is another world's, or a number or a tensor is not as it must be; says which.
        """
        facts, model = self.facts, loop.model.config.model
        if facts.origin.checkpoint != origin.checkpoint or facts.origin.autoencoder != origin.autoencoder:
            raise SnapshotError(
                f"it is of model {facts.origin.model_id[:64]!r} with other weights; {origin.model_id!r} is served"
            )
        for name in ("recency", "table"):
            found, needed = getattr(facts.origin, name), getattr(origin, name)
            if found != needed:
                raise SnapshotError(f"it was made with {name} {found}; this server has {needed}")
        window, past, emitted = model.summary_window_frames, len(facts.past), facts.written is not None
        _require(facts.frame >= 1 or not emitted, "frame", facts.frame, "1 or above while a record is due")
        needed_past = min(max(facts.frame - 1, 0), window)
        _require(past == needed_past, "past", past, f"{needed_past} frames")
        ahead = facts.memory_frame
        _require(
            0 < ahead <= facts.frame if facts.frame else ahead == 0,
            "memory_frame",
            ahead,
            "1 to frame, or both 0",
        )
        _require(ahead < model.rope_table_len, "memory_frame", ahead, f"below {model.rope_table_len}")
        _require(facts.sink_id <= ahead, "sink_id", facts.sink_id, "at most memory_frame")
        left = facts.refill
        _require(
            left is None or (0 < left == past + 1 - ahead and not emitted),
            "refill",
            left,
            "what the memory lacks",
        )
        watched = facts.request.drift_limit > 0
        _require(
            (facts.drift_frames is not None) == watched, "drift_frames", facts.drift_frames, "as drift_limit"
        )
        needed_tensors = _expected(loop, self)
        if odd := sorted(set(needed_tensors) ^ set(self.tensors)):
            raise SnapshotError(
                f"tensor {odd[0]!r} is {'missing' if odd[0] in needed_tensors else 'unexpected'}"
            )
        for name, (shape, dtype) in needed_tensors.items():
            tensor = self.tensors[name]
            _require(tuple(tensor.shape) == shape, name, tuple(tensor.shape), str(shape))
            _require(tensor.dtype == dtype, name, tensor.dtype, str(dtype))
        try:
            loop.check(self.request)
        except ValueError as error:
            raise SnapshotError(str(error)) from error


def take(state: WorldState, origin: Origin) -> Snapshot:
    """The state's moment, copied to main memory."""
    request, emitted = state.request, _record_is_due(state)
    facts = Facts(
        origin=origin,
        request=Asked(
            seed=request.seed, nfe=request.nfe, nfe_mode=request.nfe_mode, sphere=request.sphere,
            reprefill_every=request.reprefill_every, drift_limit=float(request.drift_limit),
            on_table_end=request.on_table_end,
        ),
        frame=state.frame,
        memory_frame=state.memory.frame,
        sink_id=state.memory.sink_id,
        chases=state.memory.chases,
        written=Held.of(state.current.controls) if emitted and state.current is not None else None,
        past=tuple(Held.of(past.controls) for past in state.past),
        refill=None if state.refill is None else len(state.refill),
        since_prefill=state.since_prefill,
        prefills=state.prefills,
        last_prefill=state.last_prefill,
        drift_frames=None if state.drift is None else state.drift.frames,
        drift_score=state.drift_score,
        drift_prefills=state.drift_prefills,
    )  # fmt: skip
    held: dict[str, Tensor | None] = {
        "latent": request.latent,
        "focus": None if request.focus is None else request.focus.to(torch.uint8),
        "x": state.x if emitted else None,
        "past": torch.cat([past.x0 for past in state.past]) if state.past else None,
        "decoder": state.decoder,
        "drift": None if state.drift is None else state.drift.moments,
        **(state.memory.contents() if state.frame else {}),
    }
    tensors = {name: _copy(tensor) for name, tensor in held.items() if tensor is not None}
    return Snapshot(facts=facts, tensors=tensors)


@torch.inference_mode()
def put_back(loop: WorldLoop, state: WorldState, snapshot: Snapshot) -> None:
    """Have `state`, of a session of this loop that waits for no pictures, go on from a checked snapshot."""
    assert not state.pending, "a session that waits for pictures cannot go elsewhere"
    facts, tensors, request = snapshot.facts, snapshot.tensors, snapshot.request
    to = _sender(loop.model.device)
    state.request = WorldRequest(
        latent=to(request.latent),
        focus=None if request.focus is None else to(request.focus),
        **facts.request.model_dump(),
    )
    state.timesteps = loop.timesteps(request)
    state.memory.restore(
        {name: tensors[name] for name in ("keys", "values", "sink") if name in tensors},
        frame=facts.memory_frame,
        sink_id=facts.sink_id,
        chases=facts.chases,
    )
    latents = to(tensors["past"]).split(1) if "past" in tensors else ()
    state.past = deque(
        (Past(x0, held.controls) for x0, held in zip(latents, facts.past, strict=True)),
        maxlen=state.past.maxlen,
    )
    state.refill = None if facts.refill is None else deque(list(state.past)[-facts.refill :])
    state.decoder = to(tensors["decoder"]) if "decoder" in tensors else None
    state.drift = None if facts.drift_frames is None else Averages(to(tensors["drift"]), facts.drift_frames)
    for name in ("frame", "since_prefill", "prefills", "last_prefill", "drift_score", "drift_prefills"):
        setattr(state, name, getattr(facts, name))
    state.current, state.film, state.step = None, None, 0
    state.x = state.past[-1].x0 if state.past else state.request.latent
    if facts.written is not None:
        controls = facts.written.controls
        state.current = PendingInput(-1, LiveControls(controls))
        state.x, state.film = to(tensors["x"]), loop.film(state, controls)
        state.step = len(state.timesteps) + 1


def pack(facts: BaseModel, tensors: Mapping[str, Tensor]) -> bytes:
    """A file of these facts and tensors."""
    return save(dict(tensors), metadata={KEY: facts.model_dump_json()})


def write(path: Path, data: bytes) -> None:
    """A file that appears whole or not at all."""
    with replacing(path) as fresh:
        fresh.write_bytes(data)


def read(path: Path) -> bytes:
    """A file's bytes. InvalidInputError when there is none."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInputError(f"{path.name} cannot be read: {error.strerror or error}") from error


def unpack(
    data: bytes, kind: type[FactsT], what: str = "snapshot or tape"
) -> tuple[FactsT, dict[str, Tensor]]:
    """Facts and finite tensors of a file. SnapshotError when it is damaged or of another format than `what`."""
    facts = _facts(data, kind, what)
    try:
        tensors = load(data)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise SnapshotError(f"the file is damaged: {error}") from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise SnapshotError(f"tensor {name!r} holds numbers that are not finite")
    return facts, tensors


def _facts(data: bytes, kind: type[FactsT], what: str) -> FactsT:
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= size <= min(MAX_FACTS, len(data) - 8):
        raise SnapshotError(f"the file is damaged, or of another kind: a worldloop {what} is needed")
    try:
        text = json.loads(data[8 : 8 + size])["__metadata__"][KEY]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SnapshotError(f"the file is of another kind: a worldloop {what} is needed") from None
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        if first["loc"] == ("format",):
            found, needed = str(first["input"])[:64], first["ctx"]["expected"]
            raise SnapshotError(f"the file's format is {found!r}; {needed} is needed") from None
        where = ".".join(str(part) for part in first["loc"])[:80]
        raise SnapshotError(f"{where or 'facts'}: {first['msg']}") from None


def _expected(loop: WorldLoop, snapshot: Snapshot) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and format of every tensor that a snapshot with these facts has."""
    model, facts, config = loop.model, snapshot.facts, loop.model.config.model
    cells, channels = model.latent_shape
    plain = torch.float32
    needed: dict[str, tuple[tuple[int, ...], torch.dtype]] = {"latent": ((1, cells, channels), plain)}
    if "focus" in snapshot.tensors:
        needed["focus"] = (cells,), torch.uint8
    if facts.written is not None:
        needed["x"] = (1, cells, channels), plain
    if facts.past:
        needed["past"] = (len(facts.past), cells, channels), plain
    if facts.drift_frames is not None:
        needed["drift"] = (2, channels), plain
    if facts.frame:
        needed["decoder"] = (1, cells, channels), model.autoencoder.dtype
        geometry = config.memory
        heads = (geometry.layers, 1, geometry.heads)
        rows = geometry.rows_read(facts.memory_frame)
        for name in ("keys", "values"):
            needed[name] = (*heads, rows, geometry.head_dim), model.dtype
        needed["sink"] = (*heads, geometry.record, geometry.head_dim), plain
    return needed


def _record_is_due(state: WorldState) -> bool:
    """Whether the pictures of the frame in the making have gone out."""
    return state.frame > 0 and state.step > len(state.timesteps)


def _require(holds: bool, name: str, found: Any, allowed: str) -> None:
    if not holds:
        raise SnapshotError(f"{name} is {found}; {allowed} is needed")


def _sender(device: torch.device) -> Callable[[Tensor], Tensor]:
    """Copies to the device, so that no two sessions share a tensor that one of them could change."""
    return lambda tensor: tensor.to(device, copy=True)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()
