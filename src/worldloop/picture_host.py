"""The device side of pictures on order: one picture model, and pictures of it in an engine that worlds may share.

Owns loading, who is let in by the bytes of each phase, and turning the engine's news into a picture. Implements
`session.picture_host.PictureHost`. Does not own the queue (`session.pictures`) or the order of work (`loops.picture`).
Assembled by the command line and `pictures`.

Admission: a picture needs the weights of every phase and the largest scratch of one (resident). When that does not fit,
but the weights of one phase at a time with its own scratch do, phases take turns on the device (one by one). When
neither fits it is refused, before anything runs, with the largest size of the same shape that fits now.
"""

from __future__ import annotations

import hashlib
import logging
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from worldloop.core.errors import DeviceMemoryError, InvalidInputError
from worldloop.core.settings import Settings
from worldloop.core.telemetry import log_event
from worldloop.engine.contract import Emit, Price
from worldloop.engine.engine import Engine
from worldloop.engine.handle import Handle
from worldloop.loops.causal_pictures import CausalPictures
from worldloop.loops.picture import PHASE_OF, PictureLoop, PictureRequest, PictureResult, PictureState
from worldloop.loops.picture_model import PHASES, PictureModel, Size, one_by_one, resident
from worldloop.models import device as devices
from worldloop.models.precision import Precision
from worldloop.models.registry import AUTOENCODER, find_picture
from worldloop.session.picture_host import Picture, PictureFacts, PictureOrder, PictureTooLargeError, Step

OFF = "off"
RESERVE = 512 * 2**20
"""Bytes of a CUDA device that are left alone: what its allocator loses to pieces."""
PROBE_SHRINK = 0.75
"""After a probe that failed, this much of what it needed counts as there."""

_log = logging.getLogger(__name__)


class PictureHost:
    """One picture model on one device.

    Args:
        engine: whose thread runs it; the caller's to close.
        model: what is served.
        model_id: its name.
        memory_bytes: for weights and scratch of pictures; None is what the device has left.
        device_bytes: of the device for everything, whatever the engine's admission says; None is no limit.
        steps_max: most steps of one picture.
    """

    def __init__(
        self,
        engine: Engine,
        model: PictureModel,
        *,
        model_id: str,
        memory_bytes: int | None = None,
        device_bytes: int | None = None,
        steps_max: int = 100,
    ) -> None:
        self.engine, self.model, self.model_id = engine, model, model_id
        self._loop = PictureLoop(model)
        self._steps_max = steps_max
        self._limit = math.inf if memory_bytes is None else memory_bytes
        limits = (device_bytes, engine.admission.memory_bytes)
        self._total = min(math.inf if limit is None else limit for limit in limits)
        self._charged = 0
        needs = model.bytes_of(model.defaults.size)
        engine.call(lambda: self._charge(sum(need.weights for need in needs.values())))

    @classmethod
    def load(
        cls,
        engine: Engine,
        path: Path,
        *,
        device: torch.device,
        dtype: str = "auto",
        decoder_dtype: str = "auto",
        **choices: Any,
    ) -> PictureHost:
        """Load a checkpoint, whose autoencoder lies beside it, or the folder of a pipeline.

        Args:
            dtype: `auto`, `bf16` or `fp32`; `autocast` counts as `bf16`.
            decoder_dtype: `auto`, `bf16` or `fp32`; a pipeline decodes in float32 whatever this says.
            choices: as of `PictureHost`.

        Raises:
            CheckpointError: a file is refused.
            InvalidInputError: this device cannot do what is asked, or what a pipeline needs is not installed.
        """
        name = path.name if path.is_dir() else path.stem
        there = devices.free_memory(device)
        if device.type == "cuda":
            there += engine.admission.base_bytes - RESERVE
        model = engine.call(lambda: load_model(path, device=device, dtype=dtype, decoder_dtype=decoder_dtype))
        _ = model.file_hash  # a large checkpoint takes a while to read: now, and not with the first picture
        return cls(engine, model, model_id=name.lower(), device_bytes=there, **choices)

    @classmethod
    def from_settings(cls, settings: Settings, engine: Engine) -> PictureHost | None:
        """The host that a server's settings ask for, or None; errors as `load` and `registry.find_picture`."""
        path = None if settings.picture == OFF else find_picture(settings.picture, settings.world)
        if path is None:
            return None
        host = cls.load(
            engine,
            path,
            device=devices.pick_device(settings.device),
            dtype=settings.dtype,
            decoder_dtype=settings.decoder_dtype,
            memory_bytes=settings.picture_memory_mib * 2**20 or None,
            steps_max=settings.picture_steps_max,
        )
        if settings.picture_probe and host.model.device.type == "cuda":
            host.probe()
        return host

    # -- facts ----------------------------------------------------------------------------------------------------
    @property
    def facts(self) -> PictureFacts:
        model, own = self.model, self.model.defaults
        return PictureFacts(
            model=self.model_id, size=own.size, sizes=model.sizes, multiple=model.multiple,
            max_pixels=model.max_pixels, steps=own.steps, guidance=own.guidance, shift=own.shift,
            steps_max=self._steps_max,
        )  # fmt: skip

    @property
    def machine(self) -> Mapping[str, Any]:
        return {
            "device": devices.byte_label(self.model.device),
            "threads": torch.get_num_threads(),
            **self.model.machine,
            **{name: version(name) for name in ("worldloop", "torch", "numpy", "pillow")},
        }

    @property
    def lost(self) -> str | None:
        return self.engine.lost

    # -- admission ------------------------------------------------------------------------------------------------
    def admit(self, size: Size) -> None:
        """See the protocol; a size that the model does not make at all is an InvalidInputError."""
        self._check_size(size)
        self._fit(size)

    def probe(self) -> None:
        """Make the largest picture that fits once, one step of it; when the memory does not last, offer less.

        Blocks. What the device says about itself is not what it can do: other processes, pieces, libraries.
        """
        own, size = self.model.defaults, self.largest()
        while size is not None:
            order = PictureOrder(
                prompt="", negative="", size=size, seed=0, steps=1, guidance=own.guidance, shift=own.shift
            )
            try:
                job = self.start(order)
                while not isinstance(job.take().result(), Picture):
                    pass
            except DeviceMemoryError:
                self._limit = PROBE_SHRINK * self._needs(size)[1]
                size = self.largest()
                log_event(_log, "picture.probe", level=logging.WARNING, largest=size and _shown(size))
            else:
                return

    def largest(self, like: Size | None = None) -> Size | None:
        """The largest size that fits now, of the shape of `like` where the model makes any; None when none does."""
        room, sizes = self._room(), list(self._sizes(like))
        first = bisect_left(sizes, True, key=lambda size: self._needs(size)[1] <= room)
        return sizes[first] if first < len(sizes) else None

    # -- pictures -------------------------------------------------------------------------------------------------
    def start(self, order: PictureOrder) -> PictureJob:
        """See the protocol."""
        self._check_size(order.size)
        facts = self.facts
        if not 1 <= order.steps <= facts.steps_max:
            raise InvalidInputError(f"steps {order.steps} must be in 1..{facts.steps_max}")
        for name in ("prompt", "negative"):
            if (count := len(getattr(order, name))) > facts.prompt_max:
                raise InvalidInputError(
                    f"{name} has {count} characters; at most {facts.prompt_max} are allowed"
                )
        try:
            self._fit(order.size)
            handle = self.engine.call(lambda: self._open(order))
        except ValueError as error:
            if isinstance(error, InvalidInputError):
                raise
            raise InvalidInputError(str(error)) from error
        steps = len(self.model.schedule(order.steps, order.shift)) - 1
        return PictureJob(handle, order, steps, self.model.file_hash)

    def seconds_left(self, order: PictureOrder, done: int = 0) -> float | None:
        work = self._loop.work(self._request(order), done)
        return self.engine.seconds_left(Price(chunk=work), chunks=1)

    # -- arithmetic -----------------------------------------------------------------------------------------------
    def _request(self, order: PictureOrder, *, one_by_one: bool = False) -> PictureRequest:
        return PictureRequest(**asdict(order), one_by_one=one_by_one)

    def _open(self, order: PictureOrder) -> Handle[PictureState]:
        """Device thread: let it in with the weights that it needs, and begin."""
        turns = self._fit(order.size)
        needs = self.model.bytes_of(order.size)
        self._charge(self._needs(order.size)[turns] - max(need.scratch for need in needs.values()))
        return self.engine.open(self._loop, self._request(order, one_by_one=turns), keep_chunks=True)

    def _check_size(self, size: Size) -> None:
        model = self.model
        if model.sizes is not None:
            if size not in model.sizes:
                sizes = ", ".join(map(_shown, model.sizes))
                raise InvalidInputError(f"size {_shown(size)}: this model makes {sizes}")
        elif min(size) < model.multiple or size[0] % model.multiple or size[1] % model.multiple:
            raise InvalidInputError(
                f"size {_shown(size)}: both sides must be multiples of {model.multiple}, from {model.multiple} on"
            )
        elif size[0] * size[1] > model.max_pixels:
            raise InvalidInputError(
                f"size {_shown(size)} has {size[0] * size[1]} pixels; at most {model.max_pixels} are allowed"
            )

    def _fit(self, size: Size) -> bool:
        """Whether the phases must take turns for it to fit; PictureTooLargeError when it does not even then."""
        whole, least = self._needs(size)
        room = self._room()
        if least > room:
            largest = self.largest(size)
            instead = "no picture fits" if largest is None else f"the largest that fits is {_shown(largest)}"
            raise PictureTooLargeError(
                f"a picture of {_shown(size)} needs {_mib(least)}; {_mib(max(room, 0))} are there for it now: "
                f"{instead}",
                largest,
            )
        return whole > room

    def _needs(self, size: Size) -> tuple[int, int]:
        """Peak bytes of a picture with all weights there, and with phases that take turns."""
        needs = self.model.bytes_of(size)
        return resident(needs), one_by_one(needs)

    def _room(self) -> float:
        """Bytes for weights and scratch of one more picture."""
        admission = self.engine.admission
        others = admission.base_bytes - self._charged + admission.resident_bytes + admission.peak_bytes
        return min(self._limit, self._total - others)

    def _charge(self, weights: int) -> None:
        """Count so many bytes of ours among what the device holds whatever its sessions do."""
        self.engine.admission.hold("picture", weights)
        self._charged = weights

    def _sizes(self, like: Size | None) -> Iterator[Size]:
        """Sizes to offer, the largest first: of the shape of `like` if the model makes any, else the model's own."""
        model, (height, width) = self.model, like or self.model.defaults.size
        if model.sizes is not None:
            yield from sorted(model.sizes, key=lambda size: (-size[0] * size[1], size))
            return
        side = model.multiple
        for rows in range(math.isqrt(model.max_pixels * height // width) // side, 0, -1):
            columns = max(1, round(rows * width / height))
            if rows * columns * side * side <= model.max_pixels:
                yield rows * side, columns * side


class PictureJob:
    """A picture in the engine. Implements `session.picture_host.PictureJob`."""

    def __init__(
        self, handle: Handle[PictureState], order: PictureOrder, steps: int, model_hash: str
    ) -> None:
        self._handle, self._order, self._steps, self._model_hash = handle, order, steps, model_hash
        self._device_s: dict[str, float] = dict.fromkeys(PHASES, 0.0)

    def take(self) -> Future[Step | Picture]:
        """See the protocol."""
        taken: Future[Step | Picture] = Future()
        taken.set_running_or_notify_cancel()
        self._handle.take().add_done_callback(lambda made: self._pass_on(made, taken))
        return taken

    def close(self) -> None:
        """See the protocol."""
        self._handle.close("the picture was cancelled")

    def _pass_on(self, made: Future[Emit | None], taken: Future[Step | Picture]) -> None:
        if (error := made.exception()) is not None:
            taken.set_exception(error)
            return
        emit = made.result()
        assert emit is not None, "nothing is taken after the picture"
        for op, seconds in emit.device_s.items():
            self._device_s[PHASE_OF[op]] += seconds
        if emit.final:
            self._handle.done.add_done_callback(lambda done: self._finish(done, taken))
        else:
            preview = emit.frames[0] if len(emit.frames) else None
            taken.set_result(Step(done=emit.index, steps=self._steps, preview=preview))

    def _finish(self, done: Future[Any], taken: Future[Step | Picture]) -> None:
        if (error := done.exception()) is not None:
            taken.set_exception(error)
            return
        result: PictureResult = done.result()
        taken.set_result(
            Picture(
                pixels=result.pixels,
                order=self._order,
                steps=result.steps,
                noise_hash=result.noise_hash,
                pixel_hash=hashlib.sha256(result.pixels.tobytes()).hexdigest(),
                model_hash=self._model_hash,
                device_s=self._device_s,
                latent=result.latent,
            )
        )


def load_model(
    path: Path, *, device: torch.device, dtype: str = "auto", decoder_dtype: str = "auto"
) -> PictureModel:
    """The model of `PictureHost.load`, which says more, by itself."""
    precision = Precision.choose(dtype=dtype, decoder_dtype=decoder_dtype, device=device)
    if path.is_dir():
        return _load_pipeline(path, device=device, dtype=precision.memory)
    return CausalPictures.load(
        path, path.parent / AUTOENCODER, device=device, dtype=precision.memory, decoder=precision.decoder
    )


def _load_pipeline(folder: Path, *, device: torch.device, dtype: torch.dtype) -> PictureModel:
    try:
        from worldloop.loops.moss_pictures import MossPictures

        return MossPictures.load(folder, device=device, dtype=dtype)
    except ModuleNotFoundError as error:
        raise InvalidInputError(
            f"{folder.name} needs the package {error.name!r}: pip install 'worldloop[moss]'"
        ) from error


def _shown(size: Size) -> str:
    return f"{size[1]}x{size[0]}"


def _mib(size: float) -> str:
    return f"{size / 2**20:.1f} MiB"
