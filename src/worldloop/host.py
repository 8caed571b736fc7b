"""The device side of a server or a script: checkpoints, the loaded model, the engine, and games on it.

Owns the choices that games are started with, and when the model may change. Implements `session.host.Host`. Does not
own which model is loaded (`loops.served`), sockets, leases or pacing. Assembled by `api` and the command line.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from worldloop.codec.still import cover_crop
from worldloop.core.errors import BusyError, InvalidInputError, NotReadyError
from worldloop.core.memory import give_memory_back
from worldloop.core.settings import Settings
from worldloop.core.telemetry import log_event
from worldloop.engine.admission import Admission
from worldloop.engine.engine import Engine
from worldloop.loops import focus
from worldloop.loops.failures import classify
from worldloop.loops.history import History, Rewind
from worldloop.loops.live import LiveGame
from worldloop.loops.model import WorldModel
from worldloop.loops.profile import Profile
from worldloop.loops.served import Loading, Served
from worldloop.loops.snapshot import Snapshot
from worldloop.loops.world import (
    MAX_REPREFILL,
    SPHERE_MODES,
    Tally,
    WorldLoop,
    WorldRequest,
    check_reprefill,
    check_sphere,
    state_bytes,
)
from worldloop.models import device as devices
from worldloop.models.autoencoder import GROUP
from worldloop.models.compiled import Compile, DecoderMode, NetworkMode
from worldloop.models.memory import Recency
from worldloop.models.precision import Precision
from worldloop.models.registry import SERVE_RECENCY, Registry, Rules, find_world, scan
from worldloop.models.sampling import MAX_NFE, plan_timesteps
from worldloop.session.host import File, GameOptions, HostReport, StartFrame
from worldloop.session.picture_host import Picture

LARGEST_BATCH = 32

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Defaults:
    """What games get whose player says nothing, and how they share the device; see `core.settings`.

    Attributes:
        rate: latent frames a second that a game must make.
        memory_bytes: None is all of the device's.
    """

    reprefill_every: int
    drift_limit: float
    on_table_end: str
    rate: float
    batching: str
    load_limit: float
    memory_bytes: int | None
    rewind: Rewind


class WorldHost:
    """Checkpoints of one folder on one device. Made by `open` or `from_settings`.

    Args:
        registry: what can be served.
        loading: how.
        defaults: of the games.
        model_id: what is served first; None is the registry's default.
    """

    def __init__(
        self, registry: Registry, loading: Loading, defaults: Defaults, *, model_id: str | None = None
    ) -> None:
        self._default_id = registry.default(model_id)
        self._defaults = defaults
        self._options = GameOptions(reprefill_every=defaults.reprefill_every)
        self._lock = threading.Lock()
        """Held while the model changes, and while a game is prepared for the one that is served."""
        self._games: tuple[LiveGame, ...] = ()
        self._tally = Tally()
        place = loading.device
        limit = defaults.memory_bytes if defaults.memory_bytes is not None else devices.total_memory(place)
        self.engine = Engine(
            largest_batch=LARGEST_BATCH if defaults.batching == "fast" else 1,
            admission=Admission(memory_bytes=limit, load_limit=defaults.load_limit or None),
            classify=classify,
            relieve=lambda: devices.free_cache(place),
        )
        seen = self.engine.cost.seen
        try:
            self._served = self.engine.call(lambda: Served(registry, loading, self._default_id, seen))
            self._follow()
        except BaseException:
            self.engine.close()
            raise

    @classmethod
    def open(
        cls,
        world: str,
        *,
        model_id: str | None = None,
        window: int | None = None,
        serve_recency: Recency = SERVE_RECENCY,
        device: str = "auto",
        dtype: str = "auto",
        decoder_dtype: str = "auto",
        fp8_linears: str = "off",
        threads: int = 0,
        rope_table_len: int = 4096,
        recency_enabled: bool = True,
        reprefill_every: int = 0,
        drift_limit: float = 0.0,
        on_table_end: str = "reprefill",
        rate: float = 0.0,
        batching: str = "exact",
        load_limit: float = 0.0,
        memory_limit_mib: int = 0,
        compile: NetworkMode = "off",
        compile_decoder: DecoderMode = "off",
        compile_dynamic: bool = False,
        recompile_limit: int = 64,
        warmup: bool = True,
        warmup_frames: int = 8,
        rewind_s: float = 10.0,
        rewind_bytes: int = 256 * 2**20,
        profile_frames: int = 0,
        profile_dir: str = ".",
    ) -> WorldHost:
        """A host for a shipped world's name or a path.

        Args:
            world: such as `meadow`, a folder of checkpoints, or one checkpoint.
            model_id: what is served first: an id, `latest`, or None for the named file or the first in order.
            window, serve_recency: see `models.registry.Rules`.
            rate: latent frames a second that a game must make; 0 lets it take its time.
            device: as the setting of this name, and so are all others.

        Raises:
            InvalidInputError: no such world, or this device cannot do what is asked.
            CheckpointError: a file is refused.
        """
        folder, path = find_world(world), Path(world)
        if model_id is None and path.is_file():
            model_id = path.stem.lower()
        place = devices.pick_device(device)
        compiled = Compile(
            network=compile, decoder=compile_decoder, dynamic=compile_dynamic, recompile_limit=recompile_limit
        )
        loading = Loading(
            device=place,
            precision=Precision.choose(
                dtype=dtype, decoder_dtype=decoder_dtype, fp8=fp8_linears, device=place
            ),
            compile=compiled,
            warmup=warmup,
            warmup_frames=warmup_frames,
            profile_frames=profile_frames,
            profile_dir=Path(profile_dir),
        )
        rules = Rules(
            rope_table_len=rope_table_len, window=window, recency_enabled=recency_enabled, serve_recency=serve_recency
        )  # fmt: skip
        defaults = Defaults(
            reprefill_every=reprefill_every,
            drift_limit=drift_limit,
            on_table_end=on_table_end,
            rate=rate,
            batching=batching,
            load_limit=load_limit,
            memory_bytes=memory_limit_mib * 2**20 or None,
            rewind=Rewind(seconds=rewind_s, bytes=rewind_bytes),
        )
        devices.set_threads(threads)
        return cls(scan(folder, rules), loading, defaults, model_id=model_id)

    @classmethod
    def from_settings(cls, settings: Settings) -> WorldHost:
        """The host that a server's settings ask for; errors as `open`."""
        same = (
            "device", "dtype", "decoder_dtype", "fp8_linears", "threads", "rope_table_len", "recency_enabled",
            "reprefill_every", "drift_limit", "on_table_end", "compile", "compile_decoder", "compile_dynamic",
            "recompile_limit", "warmup", "warmup_frames", "profile_frames", "profile_dir", "batching", "load_limit",
            "memory_limit_mib", "rewind_s", "rewind_bytes",
        )  # fmt: skip
        return cls.open(
            settings.world,
            model_id=settings.default_model_id,
            window=settings.serve_window_frames,
            serve_recency=Recency(**settings.serve_recency.model_dump()),
            rate=settings.stream_fps / GROUP,
            **{name: getattr(settings, name) for name in same},
        )

    @property
    def model(self) -> WorldModel:
        """The loaded model."""
        return self._served.model

    @property
    def profile(self) -> Profile | None:
        """Where the time of a steady frame goes, when `profile_frames` asked for it."""
        return self._served.profile

    @property
    def frame_size(self) -> tuple[int, int]:
        return self.model.picture_hw

    @property
    def default_model_id(self) -> str:
        return self._default_id

    @property
    def active_model_id(self) -> str | None:
        """What is served; None while a switch is under way, and after one that could not be undone."""
        return self._served.active

    @property
    def active_profile(self) -> dict[str, Any]:
        return self._served.entry.profile

    def model_ids(self) -> list[str]:
        """Sorted ids of what can be served."""
        return list(self._served.registry.entries)

    def describe(self) -> dict[str, Any]:
        """The state objects of `GET /models`."""
        config, options = self.model.config, self._options
        steps = self._timesteps(options)
        own = len(config.timesteps)
        override = None if options.nfe == own else options.nfe
        return {
            "details": {key: entry.details() for key, entry in self._served.registry.entries.items()},
            "nfe": {
                "override": override,
                "mode": "repeat" if override is None else options.nfe_mode,
                "modes": ["repeat", "grid"],
                "ckpt_steps": own,
                "active_steps": len(steps),
                "timesteps": list(steps),
                "max": MAX_NFE,
            },
            "sphere": {"mode": options.sphere, "modes": list(SPHERE_MODES)},
            "reprefill": {
                "every": self._every,
                "max": MAX_REPREFILL,
                "supported": config.cache_mode == "recache",
                "history_frames": config.model.summary_window_frames,
                **self._latest_refills(),
            },
            "focus": focus.facts(self.model),
        }

    def report(self) -> HostReport:
        """Counts for the metrics, from memory."""
        states = [state for game in self._games if (state := game.state) is not None]
        return HostReport(
            weights_bytes=self._served.weights_bytes,
            session_bytes=sum(state_bytes(state) for state in states),
            sessions=self.engine.sessions,
            queued=self.engine.queued,
            switches=self._served.switches,
            reprefills=self._tally.prefills,
            drift_reprefills=self._tally.drift_prefills,
            load=self.engine.admission.load,
            lost=self.engine.lost,
        )

    def switch(self, model_id: str) -> None:
        """Serve another checkpoint; the old one stays when the new one is refused. Blocks while it loads.

        Raises:
            InvalidInputError: unknown id; lists the valid ones.
            BusyError: a game is live.
            CheckpointError: the file is refused.
        """
        wanted = model_id.strip().lower()
        if wanted not in self._served.registry.entries:
            raise InvalidInputError(f"unknown model_id {model_id!r}; valid ids: {self.model_ids()}")
        with self._lock:
            if wanted != self._served.active:
                self.engine.call(lambda: self._switch(wanted))

    def configure(self, options: GameOptions) -> dict[str, Any]:
        """Set the choices of the games that follow; returns the `focus` object of the `POST /z0` answer.

        Raises:
            InvalidInputError: names the choice that does not fit and what would.
        """
        with self._lock:
            try:
                self._timesteps(options)
                check_sphere(options.sphere)
                check_reprefill(options.reprefill_every or 0, self.model.config.cache_mode)
                cells = focus.region(self.model, options.focus)
            except ValueError as error:
                raise InvalidInputError(str(error)) from error
            kept = self._options.reprefill_every
            every = kept if options.reprefill_every is None else options.reprefill_every
            self._options = replace(options, reprefill_every=every)
            return focus.answer(self.model, options.focus, cells)

    def encode(self, picture: NDArray[np.uint8]) -> StartFrame:
        """Encode a start picture, uint8 `[H, W, 3]` at `frame_size`."""
        with self._lock:
            model = self._ready()
            latent = self.engine.call(lambda: model.encode(torch.from_numpy(np.ascontiguousarray(picture))))
            return self._start_frame(latent)

    def adopt(self, picture: Picture) -> StartFrame:
        """A picture that was made here: its latent as it is, or, when that is not this world's, its pixels."""
        with self._lock:
            if (latent := self._served.start_latent(picture.latent)) is not None:
                return self._start_frame(latent)
        height, width = self.frame_size
        return self.encode(cover_crop(picture.pixels, height=height, width=width))

    def start(
        self,
        frame: StartFrame,
        *,
        options: GameOptions,
        seed: int | None,
        on_close: Callable[[], None] | None = None,
    ) -> LiveGame:
        """Begin a game from an encoded start picture. A None seed draws one; `on_close` is called once, at its end.

        Raises:
            NotReadyError: the picture was encoded for a model that is not served any more.
            InvalidInputError: a choice does not fit the model.
        """
        with self._lock:
            if frame.model_id != self._served.active:
                raise NotReadyError(
                    f"the start picture is for {frame.model_id!r}; {self._served.active!r} is served now"
                )
            if isinstance(frame.value, Snapshot):
                return self._open(self._checked(frame.value).request, on_close, start=frame.value)
            every = options.reprefill_every
            try:
                request = WorldRequest(
                    latent=frame.value,
                    seed=secrets.randbelow(2**32) if seed is None else seed,
                    nfe=options.nfe,
                    nfe_mode=options.nfe_mode,
                    sphere=options.sphere,
                    reprefill_every=self._every if every is None else every,
                    drift_limit=self._drift_limit,
                    on_table_end=self._defaults.on_table_end,
                    focus=focus.region(self.model, options.focus),
                )
            except ValueError as error:
                raise InvalidInputError(str(error)) from error
            return self._open(request, on_close)

    def restore(self, snapshot: Snapshot, *, past: History | None = None) -> LiveGame:
        """Begin a game in the middle; its choices are the snapshot's. `past` is that of the game that is forked.

        Raises:
            NotReadyError: no model is served.
            SnapshotError: it is another world's.
        """
        with self._lock:
            return self._open(self._checked(snapshot).request, None, start=snapshot, past=past)

    def moment(self, source: bytes | File) -> StartFrame:
        """A snapshot or its file, for `start`, where it stands for a picture and all choices. Errors as `restore`."""
        snapshot = Snapshot.unpack(source) if isinstance(source, bytes) else source
        with self._lock:
            return self._start_frame(self._checked(snapshot))

    def fork(self, game: LiveGame) -> LiveGame:
        """Another game that goes on from where this one is. SessionEndedError when it is over."""
        snapshot, past = game.past()
        return self.restore(snapshot, past=past)

    def close(self) -> None:
        """End every game and the device thread."""
        self.engine.close()

    # -- on the device thread -------------------------------------------------------------------------------------
    # Nothing of a model runs elsewhere: a second thread that computes has a thread pool of its own, and OpenMP stops
    # spinning once pools hold more threads than there are cores. Every small parallel region then waits for the system
    # to wake a thread, which makes a latent frame take 1.7 times as long on two cores.
    def _switch(self, wanted: str) -> None:
        if any(game.state is not None for game in self._games):
            raise BusyError("a game is live; its model cannot change")
        self._served.switch(wanted)
        self._follow()

    def _follow(self) -> None:
        """After a change of the model: what hangs on it."""
        self._loop = WorldLoop(self.model, self._tally)
        self.engine.admission.hold("world", self._served.weights_bytes)
        self._drop_what_does_not_fit()

    # -- beginnings -------------------------------------------------------------------------------------------------
    def _ready(self) -> WorldModel:
        if self._served.active is None:
            raise NotReadyError("no model is loaded: switch to one first")
        return self.model

    def _checked(self, snapshot: Any) -> Snapshot:
        assert isinstance(snapshot, Snapshot), "a host's own snapshot is needed"
        self._ready()
        snapshot.check(self._loop, self._served.origin)
        return snapshot

    def _start_frame(self, value: Any) -> StartFrame:
        config = self._ready().config.model
        shape = (1, config.latent_channels, *config.latent_hw)
        return StartFrame(value=value, shape=shape, model_id=self._served.active or "")

    def _open(
        self,
        request: WorldRequest,
        on_close: Callable[[], None] | None,
        *,
        start: Snapshot | None = None,
        past: History | None = None,
    ) -> LiveGame:
        loop, defaults = self._loop, self._defaults
        try:
            handle = self.engine.open(loop, request, rate=defaults.rate, on_close=lambda: _closed(on_close))
        except ValueError as error:
            raise InvalidInputError(str(error)) from error
        origin = self._served.origin
        try:
            game = LiveGame(self.engine, handle, loop, origin, defaults.rewind, start=start, past=past)
        except BaseException:
            handle.close()
            raise
        self._games = (*(g for g in self._games if g.state is not None), game)
        return game

    # -- choices ----------------------------------------------------------------------------------------------------
    def _drop_what_does_not_fit(self) -> None:
        """Choices that the model cannot take fall away, with a line of the log."""
        config, options, active = self.model.config, self._options, self._served.active
        try:
            self._timesteps(options)
        except ValueError as error:
            log_event(_log, "nfe.dropped", model=active, why=str(error), steps=len(config.timesteps))
            self._options = replace(options, nfe=None, nfe_mode="repeat")
        if config.cache_mode != "recache":
            why = f"needs cache_mode 'recache'; this checkpoint's is {config.cache_mode!r}"
            asked = {"reprefill_every": options.reprefill_every, "drift_limit": self._defaults.drift_limit}
            for name in (name for name, value in asked.items() if value):
                log_event(_log, "setting.ignored", level=logging.WARNING, model=active, setting=name, why=why)

    @property
    def _every(self) -> int:
        return (self._options.reprefill_every or 0) if self.model.config.cache_mode == "recache" else 0

    @property
    def _drift_limit(self) -> float:
        return self._defaults.drift_limit if self.model.config.cache_mode == "recache" else 0.0

    def _latest_refills(self) -> dict[str, Any]:
        """Of the latest game, if it lives."""
        state = self._games[-1].state if self._games else None
        score = None if state is None else state.drift_score
        return {
            "count": 0 if state is None else state.prefills,
            "last": None if state is None else state.last_prefill,
            "drift_limit": self._drift_limit,
            "drift_score": None if score is None or not math.isfinite(score) else round(score, 3),
            "drift_count": 0 if state is None else state.drift_prefills,
        }

    def _timesteps(self, options: GameOptions) -> tuple[int, ...]:
        config = self.model.config
        return plan_timesteps(config.timesteps, config.timestep_shift, nfe=options.nfe, mode=options.nfe_mode)


def _closed(tell: Callable[[], None] | None) -> None:
    give_memory_back()
    if tell is not None:
        tell()
