"""The model that is served: loaded, warmed up, and changed for another of its folder.

Owns which checkpoint is active, and that this is never a lie. Does not own sessions (`engine`), the choices of games
(`host`) or how weights change in place (`switch`). Changes happen on the device thread while no session is live.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from worldloop.core.errors import InvalidInputError
from worldloop.core.files import file_hash
from worldloop.core.telemetry import log_event
from worldloop.engine.contract import Work
from worldloop.loops.model import WorldModel
from worldloop.loops.picture_model import StartLatent
from worldloop.loops.profile import Profile, profile_steady
from worldloop.loops.snapshot import Origin
from worldloop.loops.switch import WeightsLostError, fits, switch
from worldloop.loops.warmup import warm_up
from worldloop.models.compiled import Compile
from worldloop.models.precision import Precision
from worldloop.models.registry import Entry, Registry

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Loading:
    """How models are loaded; each is explained in `core.settings`."""

    device: torch.device
    precision: Precision
    compile: Compile
    warmup: bool
    warmup_frames: int
    profile_frames: int
    profile_dir: Path


class Served:
    """One loaded model of a registry.

    Args:
        registry: what can be served; its entries follow the files when they are loaded.
        loading: how.
        model_id: what is served first.
        seen: is told what the units of warm-ups cost, see `warmup.warm_up`.

    Attributes:
        model: the loaded model.
        entry: its file.
        origin: the hashes of what is loaded, and what else shapes its bytes.
        active: its id; None while a switch is under way, and after one that could not be undone.
        switches: how many went through.
        weights_bytes: of the network and the autoencoder.
        profile: of the model that was served first, or None when none was asked for.
    """

    def __init__(
        self,
        registry: Registry,
        loading: Loading,
        model_id: str,
        seen: Callable[[Work, float], None] | None = None,
    ) -> None:
        self.registry, self._loading, self._seen = registry, loading, seen
        self.active: str | None = None
        self.switches = 0
        _log_checkpoints(registry)
        entry = registry.entries[model_id]
        self._take(self._build(entry), entry, file_hash(entry.path))
        self.profile = self._profile() if loading.profile_frames else None

    def switch(self, model_id: str) -> None:
        """Serve another checkpoint, in place when its weights fit the network; otherwise it is built anew.

        Raises:
            CheckpointError: the file is refused.
            WeightsLostError: nothing can be served before another switch.
            Exception: anything else that failed; like a refused file, it leaves the old model served.
        """
        began, previous = time.perf_counter(), self.active
        self.active = None
        try:
            entry = self.registry.reread(model_id)
            digest = file_hash(entry.path)
            in_place = fits(self.model, entry.config)
            if in_place:
                switch(self.model, entry.path, entry.config)
            model = self.model if in_place else self._build(entry)
        except WeightsLostError:
            raise
        except BaseException:
            self.active = previous
            raise
        self.registry.entries[model_id] = entry
        self.switches += 1
        self._take(model, entry, digest)
        how = "in place" if in_place else "built anew"
        log_event(_log, "switch.done", model=model_id, how=how, seconds=time.perf_counter() - began)

    def start_latent(self, value: object) -> Tensor | None:
        """A picture's latent as this world's start, `[1, N, C]`; None unless it is of its autoencoder.

        Of a larger one its middle: as many whole cells as the world shows, the walker's in its place. None also for one
        that is smaller.
        """
        if not isinstance(value, StartLatent) or value.autoencoder != self.origin.autoencoder:
            return None
        (height, width), (rows, columns) = self.model.config.model.latent_hw, value.latent.shape[1:]
        if self.active is None or rows < height or columns < width:
            return None
        top, left = rows // 2 - height // 2, columns // 2 - width // 2
        view = value.latent[:, top : top + height, left : left + width]
        return view.flatten(1).T.contiguous()[None].to(self.model.device)

    def _build(self, entry: Entry) -> WorldModel:
        """A model of its own, loaded and warmed up."""
        how, rules = self._loading, self.registry.rules
        model = WorldModel.load(
            entry.path,
            self.registry.autoencoder,
            device=how.device,
            precision=how.precision,
            compile=how.compile,
            rope_table_len=rules.rope_table_len,
            window=rules.window,
        )
        model.config = entry.config
        if how.warmup:
            warm_up(model, frames=how.warmup_frames, seen=self._seen)
        return model

    def _take(self, model: WorldModel, entry: Entry, digest: str) -> None:
        parts = (model.network, model.autoencoder)
        self.weights_bytes = sum(t.nbytes for part in parts for t in (*part.parameters(), *part.buffers()))
        self.model, self.entry = model, entry
        bias = entry.config.recency
        self.origin = Origin(
            model_id=entry.name.model_id,
            checkpoint=digest,
            autoencoder=file_hash(self.registry.autoencoder),
            recency=None if bias is None else (bias.flat_until, bias.decay_end, bias.beta, bias.gamma),
            table=entry.config.model.rope_table_len,
        )
        self.active = entry.name.model_id

    def _profile(self) -> Profile:
        how, label = self._loading, self.entry.name.model_id
        try:
            return profile_steady(self.model, frames=how.profile_frames, label=label, folder=how.profile_dir)
        except OSError as error:
            raise InvalidInputError(f"profile_dir cannot be written to: {error.strerror or error}") from error


def _log_checkpoints(registry: Registry) -> None:
    """One line each, and one for a memory window that is not the trained one."""
    for entry in registry.entries.values():
        log_event(_log, "checkpoint.found", **entry.line())
        trained, served = entry.config.trained_window, entry.config.model.summary_window_frames
        if trained != served:
            log_event(_log, "checkpoint.window", id=entry.name.model_id, trained=trained, served=served)
