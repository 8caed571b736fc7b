"""Every knob of the server, in one frozen object.

Sources, weakest first: defaults, a TOML file, the environment (`WORLDLOOP_<NAME>`), explicit keywords (the
flags of the command line). Owns names, ranges and descriptions (the reference in the docs is made from them);
owns no behaviour. Built once by the command line or a test, read everywhere.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from worldloop.core.errors import SettingsError
from worldloop.core.settings_sources import Given, check_name, explain, read_toml

ENV_PREFIX = "WORLDLOOP_"

CONFIG_ENV = "WORLDLOOP_CONFIG"
"""Environment variable that names the TOML file."""

FOREIGN_ENV = (CONFIG_ENV, "WORLDLOOP_CHROMIUM", "WORLDLOOP_SCREENSHOTS")
"""Variables with our prefix that are not settings: the file's own name, and what the browser tests read."""

CLOSE_REASON_BYTES = 123
"""Longest close reason that a WebSocket close frame holds."""

_ORIGIN = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SERVER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

Fps = Annotated[float, Field(ge=1, le=120, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class RecencySettings(BaseModel):
    """A bias on summaries by age in frames: none up to `flat_until`, then a smooth ramp to -`beta` at `decay_end`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    flat_until: Annotated[int, Field(ge=0, le=128)] = 5
    decay_end: Annotated[int, Field(ge=1, le=129)] = 17
    beta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 6.0
    gamma: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2.0

    @model_validator(mode="after")
    def _ramp_has_a_length(self) -> RecencySettings:
        if self.flat_until >= self.decay_end:
            raise ValueError(f"flat_until={self.flat_until} must be below decay_end={self.decay_end}")
        return self


class Settings(BaseSettings):
    """Settings of one server process. Build with `Settings.load`, which speaks in `SettingsError`."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,
        hide_input_in_errors=True,
        validate_default=True,
    )

    # What is served
    world: str = Field(
        "meadow",
        min_length=1,
        description="A world by name, or the path of a checkpoint or a directory of them.",
    )
    default_model_id: str | None = Field(
        None,
        description="Model at start: an id, `latest` (highest train step), or none for the first in order.",
    )
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:[0-9]{1,2})?)$",
        description="`auto` (the first CUDA device, else the CPU), `cpu`, or `cuda:N`.",
    )
    dtype: Literal["auto", "bf16", "autocast", "fp32"] = Field(
        "auto",
        description="Number format of the network: `bf16` weights with float32 conditioning, float32 weights that are "
        "multiplied in bfloat16 (`autocast`), or `fp32`; auto picks per device.",
    )
    decoder_dtype: Literal["auto", "bf16", "fp32"] = Field(
        "auto", description="Number format of the picture decoder; auto is bf16 unless `dtype` comes to fp32."
    )
    fp8_linears: Literal["off", "row", "tensor"] = Field(
        "off",
        description="Multiply the trunk's matrices in fp8 (e4m3), with one scale a `row` or one a `tensor`; needs a "
        "CUDA device of capability 8.9 or higher and `dtype` bf16.",
    )
    threads: int = Field(0, ge=0, le=1024, description="CPU threads of the model; 0 chooses.")
    seed: int | None = Field(
        None, ge=0, lt=2**32, description="Noise seed of every game; none draws one per game."
    )
    nfe_max: int = Field(
        32, ge=1, le=32, description="Largest number of denoising calls that a player may ask for."
    )
    reprefill_every: int = Field(
        0, ge=0, le=4096, description="Rebuild the memory from clean history every N latent frames; 0 is off."
    )
    rope_table_len: int = Field(
        4096,
        ge=64,
        le=1_000_000,
        description="Rows of the position table: the longest game, in latent frames.",
    )
    on_table_end: Literal["reprefill", "stop"] = Field(
        "reprefill",
        description="At the end of the position table: rebuild the memory and go on, or end the game. A checkpoint "
        "without a clean pass (`nr`) always ends it.",
    )
    drift_limit: float = Field(
        0.0,
        ge=0,
        le=1000,
        allow_inf_nan=False,
        description="Rebuild the memory when the dream's latents are this many times as far from the trained "
        "statistics as a healthy dream's; 0 is off.",
    )
    rewind_s: float = Field(
        10.0,
        ge=0,
        le=600,
        allow_inf_nan=False,
        description="Seconds at the model's rate that a game can go back; 0 is off.",
    )
    rewind_bytes: int = Field(
        256 * 2**20,
        ge=0,
        description="Main memory for one game's snapshots, from which it can go back: the more fit, the closer they "
        "are. 0 is off, and so is too little for two.",
    )
    recency_enabled: bool = Field(
        True,
        description="Whether summaries may be biased by age: by the checkpoint's own bias or by `serve_recency`.",
    )
    serve_recency: RecencySettings = Field(
        RecencySettings(),
        description="Bias of a checkpoint whose name carries `rec` and that was trained without one.",
    )
    serve_window_frames: int | None = Field(
        None, ge=1, le=128, description="Memory window in frames; none is each checkpoint's own."
    )

    # Speed
    compile: Literal["off", "default", "max-autotune-no-cudagraphs", "max-autotune+cudagraphs"] = Field(
        "off", description="How the network is compiled; a mode takes seconds to minutes at start."
    )
    compile_decoder: Literal["off", "default", "max-autotune-no-cudagraphs"] = Field(
        "off", description="How the picture decoder is compiled."
    )
    compile_dynamic: bool = Field(False, description="Compile for changing shapes; ours never change.")
    recompile_limit: int = Field(64, ge=8, le=4096, description="Graphs that a compiled function may hold.")
    batching: Literal["exact", "fast"] = Field(
        "exact",
        description="`fast` runs the passes of several players as one: their pictures then equal those of a player "
        "alone up to rounding, not to the byte.",
    )
    load_limit: float = Field(
        1.25,
        ge=0,
        le=1000,
        allow_inf_nan=False,
        description="Share of the device's time that games may need, as measured; one that does not fit beside the "
        "others is refused. Above 1, all get their pictures that much later. 0 is no limit.",
    )
    memory_limit_mib: int = Field(
        0,
        ge=0,
        description="Memory for weights and games, in MiB; 0 is all that a CUDA device has, and no limit on a CPU.",
    )
    warmup: bool = Field(
        True, description="Play a game before the port opens, so that no player pays for compilation."
    )
    warmup_frames: int = Field(
        8,
        ge=3,
        le=64,
        description="Latent frames of that game beyond the window when compiled, and all of them when not.",
    )
    profile_frames: int = Field(
        0, ge=0, le=64, description="Latent frames to profile by kernel after the warm-up; 0 is none."
    )
    profile_dir: str = Field(".", min_length=1, description="Folder of the profile's Chrome trace.")
    profile_exit: bool = Field(False, description="Stop after the profile.")

    # Players
    slots: int = Field(1, ge=1, le=256, description="Games at the same time.")
    session_limit_s: Seconds = Field(
        180.0, description="Seconds of play, counted from the first picture sent; 0 is no limit."
    )
    session_limit_message: str = Field(
        "Time is up. Thank you for playing!",
        min_length=1,
        description="What the player reads at the limit; at most 123 bytes.",
    )
    lease_stale_s: Seconds = Field(
        20.0, description="A reservation without a socket may be taken over after this many seconds."
    )
    pending_z0_s: Seconds = Field(
        45.0,
        description="A start picture keeps the server busy for this many seconds while its socket opens.",
    )
    stash_s: Seconds = Field(
        900.0, description="An encoded start picture is forgotten this many seconds after its last use."
    )
    stash_max: int = Field(
        64,
        ge=1,
        le=100_000,
        description="Encoded start pictures kept at once; the oldest is forgotten first.",
    )
    slow_client_s: float = Field(
        10.0,
        gt=0,
        allow_inf_nan=False,
        description="A socket that takes longer than this for one message is closed.",
    )

    resume_s: Seconds = Field(
        20.0,
        description="A game whose connection broke may be taken up again for this many seconds; 0 ends it at once.",
    )
    drain_s: float = Field(
        10.0,
        gt=0,
        le=600,
        allow_inf_nan=False,
        description="Seconds that a stop may take: games are told and ended, answers are finished, then it ends.",
    )

    # Stream
    stream_fps: Fps = Field(35.0, description="Pictures a second on the wire; a player may change it.")
    fps_embedding: Fps | None = Field(
        12.0, description="Frame rate that the model is told; none sends no action and no rate."
    )
    frames_low_watermark: int = Field(
        2,
        ge=0,
        le=4,
        description="The next latent frame is begun when at most this many pictures are queued.",
    )
    h264_encoder: str = Field(
        "libx264", pattern=r"^[a-z0-9_]{1,32}$", description="Video encoder, by its FFmpeg name."
    )
    h264_bitrate: int = Field(
        4_000_000, ge=10_000, le=1_000_000_000, description="Bits a second of the stream."
    )
    just_in_time: bool = Field(
        True,
        description="Within the watermark, begin the next latent frame as late as it can be made in time, so that it "
        "shows the newest keys.",
    )
    stream_scale: int = Field(
        0,
        ge=0,
        le=8,
        description="Enlarge every pixel of the stream to a square of this side; 0 takes 2 for pictures under "
        "240 rows, whose colours 4:2:0 would smear, and 1 for others.",
    )
    h264_gop: int = Field(120, ge=1, le=10_000, description="Pictures from one key picture to the next.")

    # Pictures
    picture: str = Field(
        "",
        description="A picture model: the path of a checkpoint, of its folder, or of a pipeline's folder. Empty is the "
        "world's own, where it has one; `off` is none.",
    )
    picture_memory_mib: int = Field(
        0,
        ge=0,
        description="Memory for the picture model and the picture in the making, in MiB; 0 is all that the device has "
        "left beside weights and games.",
    )
    picture_steps_max: int = Field(100, ge=1, le=200, description="Most denoising steps of a picture.")
    picture_queue: int = Field(
        16, ge=1, le=10_000, description="Pictures that may wait for the one that is made."
    )
    picture_keep_s: Seconds = Field(
        3600.0, description="A finished picture is forgotten after this many seconds."
    )
    picture_keep_mib: int = Field(
        256,
        ge=1,
        description="Main memory for finished pictures, in MiB; the oldest is forgotten first, the newest always kept.",
    )
    picture_probe: bool = Field(
        True,
        description="Try the largest picture that fits before the port opens, and offer less when it fails; on CUDA "
        "devices only.",
    )

    # Videos
    video: str = Field(
        "",
        description="A video model: the path of a checkpoint or of its folder. Empty is the world's own, where it has "
        "one; `off` is none.",
    )
    video_seconds_max: int = Field(60, ge=1, le=3600, description="Longest video, in seconds.")
    video_queue: int = Field(
        16, ge=1, le=10_000, description="Videos that may wait for the one that is made."
    )
    video_keep_s: Seconds = Field(
        3600.0, description="A finished video is forgotten after this many seconds."
    )
    video_keep_mib: int = Field(
        1024,
        ge=1,
        description="Disk for finished videos, in MiB; the oldest is forgotten first, the newest always kept.",
    )

    # Keys
    api_key: SecretStr | None = Field(
        None,
        min_length=16,
        description="Key that `/v1` routes ask for, as `Authorization: Bearer KEY`; at least 16 characters.",
    )
    api_key_hashes: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="More keys, each as its SHA-256 in hexadecimal, so that no file holds it: see `worldloop key`.",
    )

    # Network
    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 chooses a free one.")
    cors_allow_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Origins of other pages that may use this server, such as `https://example.org`."
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Domain names that a server on a loopback address may be asked by, such as a proxy's "
        "`play.example.org`; `*` is any. Addresses and names without a dot are always known.",
    )
    max_upload_bytes: int = Field(16 * 2**20, ge=1024, description="Largest start picture file, in bytes.")
    max_pixels: int = Field(40_000_000, ge=1, description="Largest start picture, in pixels.")
    max_message_bytes: int = Field(
        4096, ge=256, le=2**20, description="Largest message from a player, in bytes."
    )
    ticket_secret: SecretStr | None = Field(
        None, description="Secret that signs tickets; set together with server_id to require tickets."
    )
    server_id: str | None = Field(None, description="Name of this server in tickets.")

    # Log
    log_streaming: bool = Field(True, description="Send each player the log lines of their own game.")
    log_format: Literal["text", "json"] = Field("text", description="Form of a log line.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least level that is logged."
    )

    @classmethod
    def load(cls, file: Path | None = None, /, **flags: Any) -> Settings:
        """Read `file` (else the one that WORLDLOOP_CONFIG names, else none), the environment, then `flags`.

        Raises:
            SettingsError: unknown name, wrong type, out of range, unreadable file; the message names it.
        """
        named = os.environ.get(CONFIG_ENV, "").strip()
        path = file if file is not None else Path(named) if named else None
        table = read_toml(path) if path is not None else {}
        for source, names in (("file", table), ("flag", flags)):
            for name in names:
                check_name(name, cls.model_fields, source)
        for variable in os.environ:
            if variable.startswith(ENV_PREFIX) and variable not in FOREIGN_ENV:
                name = variable.removeprefix(ENV_PREFIX).lower()
                check_name(name, cls.model_fields, "environment", shown=variable)
        values: dict[str, Any] = {**flags, _FILE_KEY: table} if table else flags
        try:
            return cls(**values)
        except ValidationError as error:
            raise SettingsError(explain(error)) from None

    @classmethod
    def check(cls, name: str, value: object) -> None:
        """Whether a value is what the setting of this name may be; no other source is read, nothing is converted.

        Raises:
            SettingsError: it is not; says what would be right.
        """
        field = cls.model_fields[name]
        rule: Any = Annotated[field.annotation, field]
        try:
            TypeAdapter(rule).validate_python(value, strict=True)
        except ValidationError as error:
            raise SettingsError(f"{name}={value!r}: {error.errors()[0]['msg']}") from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 (the base class calls by keyword)
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        flags = dict(init_settings())
        table = flags.pop(_FILE_KEY, {})
        return Given(settings_cls, flags), env_settings, Given(settings_cls, table)

    @field_validator("*", mode="before")
    @classmethod
    def _bool_is_not_a_number(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError("true and false do not fit here")
        return value

    @field_validator(
        "seed",
        "fps_embedding",
        "serve_window_frames",
        "default_model_id",
        "server_id",
        "ticket_secret",
        "api_key",
        mode="before",
    )
    @classmethod
    def _none_by_word(cls, value: object) -> object:
        word = value.strip() if isinstance(value, str) else value
        return None if isinstance(word, str) and word.lower() in ("", "none", "null", "off") else word

    @field_validator("cors_allow_origins", "allowed_hosts", "api_key_hashes", mode="before")
    @classmethod
    def _several_by_comma(cls, value: object) -> object:
        return (
            tuple(part.strip() for part in value.split(",") if part.strip())
            if isinstance(value, str)
            else value
        )

    @field_validator("api_key_hashes")
    @classmethod
    def _hashes_whole(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(_SHA256.fullmatch(each) for each in value):
            raise ValueError("each must be 64 of 0-9 a-f, as `worldloop key` prints it")
        return value

    @field_validator("cors_allow_origins")
    @classmethod
    def _origins_exact(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r} is not an origin: scheme and host, no path and no trailing slash"
                )
        return value

    @field_validator("session_limit_message")
    @classmethod
    def _fits_a_close_frame(cls, value: str) -> str:
        if (size := len(value.encode())) > CLOSE_REASON_BYTES:
            raise ValueError(f"{size} bytes in UTF-8; a close reason holds {CLOSE_REASON_BYTES}")
        return value

    @field_validator("server_id")
    @classmethod
    def _server_id_without_dots(cls, value: str | None) -> str | None:
        if value is not None and not _SERVER_ID.fullmatch(value):
            raise ValueError("1 to 64 of A-Z a-z 0-9 _ - (a ticket's fields are separated by dots)")
        return value

    @model_validator(mode="after")
    def _fp8_fits(self) -> Settings:
        if self.fp8_linears != "off" and self.dtype in ("autocast", "fp32"):
            raise ValueError(f"fp8_linears={self.fp8_linears} needs dtype bf16 (or auto), not {self.dtype}")
        return self

    @model_validator(mode="after")
    def _tickets_whole(self) -> Settings:
        if (self.ticket_secret is None) != (self.server_id is None):
            missing = "ticket_secret" if self.ticket_secret is None else "server_id"
            raise ValueError(f"ticket_secret and server_id go together; {missing} is not set")
        return self

    @property
    def tickets_required(self) -> bool:
        return self.ticket_secret is not None


_FILE_KEY = "_from_file"
