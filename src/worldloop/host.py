"""The device side of a server or a script: checkpoints, the loaded model, the engine, and games on it.

Owns loading, switching and the choices that games are started with. Implements `session.host.Host`. Does not own
sockets, leases or pacing. Assembled by `api` and the command line.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from worldloop.core.errors import InvalidInputError, NotReadyError
from worldloop.core.types import Controls, LiveControls
from worldloop.engine.contract import Emit, Plan
from worldloop.engine.engine import Engine
from worldloop.engine.handle import Handle
from worldloop.loops.model import WorldModel
from worldloop.loops.world import (
    MAX_REPREFILL,
    SPHERE_MODES,
    WorldLoop,
    WorldRequest,
    WorldState,
    check_reprefill,
    check_sphere,
)
from worldloop.models import device as devices
from worldloop.models.registry import Entry, Registry, find_world, scan
from worldloop.models.sampling import MAX_NFE, plan_timesteps
from worldloop.session.host import GameOptions, StartFrame

FOCUS_COVERAGE = 0.20
FOCUS_TRAINED = (0.10, 0.30)
WARMUP_FRAMES = 3


class LiveGame:
    """One running world on the engine; implements `session.host.Game`."""

    def __init__(self, handle: Handle[WorldState]) -> None:
        self._handle = handle
        self._live: LiveControls | None = None

    @property
    def state(self) -> WorldState | None:
        """The session's state, None once it has ended; read it on the device thread (`Engine.call`)."""
        return self._handle.state

    def submit(self, controls: Controls) -> Future[Emit]:
        """Ask for the next latent frame; the first call gives the start picture."""
        self._live = LiveControls(controls)
        return self._handle.submit(self._live)

    def update(self, controls: Controls) -> bool:
        """Newer controls for the submitted frame; False when its first pass has begun."""
        return self._live is not None and self._live.replace(controls)

    def close(self) -> None:
        """End the game before its next pass."""
        self._handle.close()


class WorldHost:
    """Checkpoints of one folder on one device.

    Args:
        registry: what can be served.
        model_id: what is served first; None is the registry's default.
        device, dtype: where and in which number format.
        reprefill_every: served default, see `loops.world`.
        on_table_end: `reprefill` or `stop`.
        rope_table_len, window: capacities, see `models.weights.read_config`.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        model_id: str | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        reprefill_every: int = 0,
        on_table_end: str = "reprefill",
        rope_table_len: int = 4096,
        window: int | None = None,
    ) -> None:
        self._registry = registry
        self._device = device or devices.pick_device()
        self._dtype = dtype or devices.pick_dtype("auto", self._device)
        self._options = GameOptions(reprefill_every=reprefill_every)
        self._on_table_end = on_table_end
        self._limits: dict[str, Any] = {"rope_table_len": rope_table_len, "window": window}
        self._switching = threading.Lock()
        self._latest: LiveGame | None = None
        self._default = registry.default(model_id)
        self._active: str | None = None
        self.engine = Engine()
        self.switch(self._default)

    @classmethod
    def open(
        cls,
        world: str,
        *,
        device: str = "auto",
        dtype: str = "auto",
        threads: int = 0,
        rope_table_len: int = 4096,
        window: int | None = None,
        model_id: str | None = None,
        **choices: Any,
    ) -> WorldHost:
        """A host for a shipped world's name or a path; remaining arguments as in the constructor."""
        folder = find_world(world)
        path = Path(world)
        if model_id is None and path.is_file():
            model_id = path.stem.lower()
        chosen = devices.pick_device(device)
        devices.set_threads(threads)
        return cls(
            scan(folder, rope_table_len=rope_table_len, window=window),
            model_id=model_id,
            device=chosen,
            dtype=devices.pick_dtype(dtype, chosen),
            rope_table_len=rope_table_len,
            window=window,
            **choices,
        )

    @property
    def model(self) -> WorldModel:
        """The loaded model."""
        return self._model

    @property
    def frame_size(self) -> tuple[int, int]:
        return self._model.picture_hw

    @property
    def default_model_id(self) -> str:
        return self._default

    @property
    def active_model_id(self) -> str | None:
        return self._active

    @property
    def active_profile(self) -> dict[str, Any]:
        return self._registry.entries[self._active or self._default].profile

    def model_ids(self) -> list[str]:
        """Sorted ids of what can be served."""
        return list(self._registry.entries)

    def describe(self) -> dict[str, Any]:
        """The state objects of `GET /models`."""
        config, options = self._model.config, self._options
        steps = self._timesteps(options)
        own = len(config.timesteps)
        latest = self._latest.state if self._latest is not None else None
        return {
            "details": {key: entry.details() for key, entry in self._registry.entries.items()},
            "nfe": {
                "override": None if len(steps) == own and options.nfe in (None, own) else options.nfe,
                "mode": options.nfe_mode,
                "modes": ["repeat", "grid"],
                "ckpt_steps": own,
                "active_steps": len(steps),
                "timesteps": list(steps),
                "max": MAX_NFE,
            },
            "sphere": {"mode": options.sphere, "modes": list(SPHERE_MODES)},
            "reprefill": {
                "every": options.reprefill_every or 0,
                "max": MAX_REPREFILL,
                "supported": config.cache_mode == "recache",
                "history_frames": config.model.summary_window_frames,
                "count": 0 if latest is None else latest.prefills,
                "last": None if latest is None else latest.last_prefill,
            },
            "focus": {
                "grid": list(config.model.latent_hw),
                "custom_supported": True,
                "trained": self._model.focus,
                "default": "diamond" if self._model.focus else "none",
                "default_coverage": FOCUS_COVERAGE,
                "coverage_trained": list(FOCUS_TRAINED),
            },
        }

    def switch(self, model_id: str) -> None:
        """Serve another checkpoint; the old one stays when the new one is refused. Blocks while it loads.

        Raises:
            InvalidInputError: unknown id; lists the valid ones.
            CheckpointError: the file is refused.
        """
        wanted = model_id.strip().lower()
        if wanted not in self._registry.entries:
            raise InvalidInputError(f"unknown model_id {model_id!r}; valid ids: {self.model_ids()}")
        with self._switching:
            if wanted == self._active:
                return
            entry = self._registry.entries[wanted]
            model = self.engine.call(lambda: self._load(entry))
            self._model, self._active = model, wanted

    def configure(self, options: GameOptions) -> dict[str, Any]:
        """Set the choices of the games that follow; returns the `focus` object of the `POST /z0` answer.

        Raises:
            InvalidInputError: names the choice that does not fit and what would.
        """
        kept = options.reprefill_every
        every = (self._options.reprefill_every or 0) if kept is None else kept
        try:
            self._timesteps(options)
            check_sphere(options.sphere)
            check_reprefill(every, self._model.config.cache_mode)
            focus = self._focus(options.focus)
        except ValueError as error:
            raise InvalidInputError(str(error)) from error
        self._options = GameOptions(
            nfe=options.nfe,
            nfe_mode=options.nfe_mode,
            sphere=options.sphere,
            reprefill_every=every,
            focus=options.focus,
        )
        tokens = 0 if focus is None else int(focus.sum())
        mode = "none" if focus is None else "diamond" if options.focus is None else "custom"
        return {
            "mode": mode,
            "tokens": tokens,
            "grid": None if focus is None else list(self._model.config.model.latent_hw),
            "coverage": tokens / self._model.config.model.raw_tokens,
        }

    def encode(self, picture: NDArray[np.uint8]) -> StartFrame:
        """Encode a start picture, uint8 `[H, W, 3]` at `frame_size`."""
        if self._active is None:
            raise NotReadyError("no model is loaded yet")
        model, active = self._model, self._active
        latent = self.engine.call(lambda: model.encode(torch.from_numpy(np.ascontiguousarray(picture))))
        shape = (1, model.config.model.latent_channels, *model.config.model.latent_hw)
        return StartFrame(value=latent, shape=shape, model_id=active)

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
        if frame.model_id != self._active:
            raise NotReadyError(
                f"the start picture is for {frame.model_id!r}; {self._active!r} is served now"
            )
        every = options.reprefill_every
        try:
            request = WorldRequest(
                latent=frame.value,
                seed=secrets.randbelow(2**32) if seed is None else seed,
                nfe=options.nfe,
                nfe_mode=options.nfe_mode,
                sphere=options.sphere,
                reprefill_every=(self._options.reprefill_every or 0) if every is None else every,
                on_table_end=self._on_table_end,
                focus=self._focus(options.focus),
            )
            game = LiveGame(self.engine.open(WorldLoop(self._model), request, on_close=on_close))
        except ValueError as error:
            raise InvalidInputError(str(error)) from error
        self._latest = game
        return game

    def close(self) -> None:
        """End every game and the device thread."""
        self.engine.close()

    def _load(self, entry: Entry) -> WorldModel:
        """Load and warm up, on the device thread.

        Nothing of a model runs elsewhere: a second thread that computes has a thread pool of its own, and OpenMP
        stops spinning once pools hold more threads than there are cores. Every small parallel region then waits
        for the system to wake a thread, which makes a latent frame take 1.7 times as long on two cores.
        """
        model = WorldModel.load(
            entry.path, self._registry.autoencoder, device=self._device, dtype=self._dtype, **self._limits
        )
        model.config = replace(model.config, recency=entry.recency()[0])
        _warm_up(model)
        return model

    def _timesteps(self, options: GameOptions) -> tuple[int, ...]:
        config = self._model.config
        return plan_timesteps(config.timesteps, config.timestep_shift, nfe=options.nfe, mode=options.nfe_mode)

    def _focus(self, choice: str | tuple[tuple[bool, ...], ...] | None) -> torch.Tensor | None:
        """Booleans `[N]` of a focus choice; ValueError when the model has no focus region or the grid is another."""
        config = self._model.config.model
        if choice == "none" or (choice is None and not self._model.focus):
            return None
        if choice is None:
            return centred_diamond(config.latent_hw, FOCUS_COVERAGE).flatten().to(self._device)
        if not self._model.focus:
            raise ValueError(
                "focus_mask: this checkpoint was trained without a focus region; send '' or 'none'"
            )
        region = torch.tensor(choice, dtype=torch.bool)
        if tuple(region.shape) != config.latent_hw:
            raise ValueError(f"focus_mask is {tuple(region.shape)} cells; {config.latent_hw} are needed")
        return region.flatten().to(self._device)


def centred_diamond(grid: tuple[int, int], coverage: float) -> torch.Tensor:
    """Booleans `[h, w]`: the cells nearest to the centre in scaled city-block distance, `coverage` of the grid."""
    height, width = grid
    row = ((torch.arange(height) + 0.5) / height - 0.5).abs()
    column = ((torch.arange(width) + 0.5) / width - 0.5).abs()
    distance = (row[:, None] + column[None, :]).flatten()
    nearest = torch.argsort(distance, stable=True)[: round(coverage * height * width)]
    region = torch.zeros(height * width, dtype=torch.bool)
    region[nearest] = True
    return region.view(height, width)


def _warm_up(model: WorldModel) -> None:
    """Play a few frames, so that the first player does not pay for first calls."""
    loop = WorldLoop(model)
    state = loop.init(WorldRequest(latent=torch.zeros(1, *model.latent_shape, device=model.device), seed=0))
    for _ in range(1 + WARMUP_FRAMES):
        loop.offer(state, Controls())
        while state.pending or state.current is not None:
            plan = loop.next(state)
            assert isinstance(plan, Plan)
            state = loop.advance(state, loop.ops[plan.op](plan))
