"""Where the time of a steady latent frame goes, kernel by kernel: on CUDA the device's kernels, on a CPU its operators.

Owns the run under torch's profiler, the buckets and the table. Does not own clocking without a profiler (`timing`): the
profiler slows small kernels, so shares are to be believed more than milliseconds. Called by `host` and the benches.
"""

from __future__ import annotations

import logging
import re
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from worldloop.core.errors import InvalidInputError
from worldloop.core.telemetry import log_event
from worldloop.core.types import Controls
from worldloop.loops.model import WorldModel
from worldloop.loops.timing import clock_frame, steady_session
from worldloop.loops.world import WorldLoop

RULES = (
    ("recorded graph", r"cudaGraphLaunch|CUDA graph"),
    ("elementwise", r"^triton_poi_|^cpp_fused"),
    ("norm, softmax", r"^triton_(red|per)_"),
    ("memory copy", r"memcpy|memset|aten::(copy_|to|_to_copy|clone|zero_|fill_)$"),
    ("attention", r"flex_attention|flash|fmha|attention|sdpa"),
    ("convolution", r"conv|cudnn|implicit_gemm|winograd"),
    (
        "matrix product",
        r"gemm|matmul|cublas|cutlass|nvjet|xmma|mkldnn|(^|_|::)(addmm|mm|bmm|baddbmm|linear|scaled_mm)(_|$)",
    ),
    ("norm, softmax", r"norm|softmax|reduce"),
    (
        "elementwise",
        r"elementwise|vectorized|"
        r"aten::(add|add_|sub|mul|mul_|div|neg|silu|gelu|cat|stack|sin|cos|where|sqrt|rsqrt|square|pow|clamp|round)$",
    ),
    ("compiled code", r"CompiledFxGraph|Torch-Compiled Region"),
)
"""(bucket, what is found in a kernel's name), the first that fits. Names of generated kernels list what was fused into
them, so their kind is asked first."""
OTHER = "other"
RANGE = re.compile(r"CompiledFxGraph|Torch-Compiled Region|^## |ProfilerStep|TorchDynamo")
"""Rows of a device that span kernels which have rows of their own."""
TOP = 20
BEFORE = 3
"""Latent frames that run before the profiled ones."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """One row of a profile: its name, milliseconds of its own, and launches, both of one latent frame."""

    name: str
    ms: float
    launches: float

    @property
    def bucket(self) -> str:
        """The first of `RULES` that its name fits, else `OTHER`."""
        for bucket, words in RULES:
            if re.search(words, self.name, re.IGNORECASE):
                return bucket
        return OTHER


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Kernels of one steady latent frame, longest first.

    Attributes:
        label: what was profiled.
        frames: latent frames that the figures are means of.
        kernels: every kernel.
        trace: the Chrome trace.
    """

    label: str
    frames: int
    kernels: tuple[Kernel, ...]
    trace: Path

    @property
    def ms(self) -> float:
        """Milliseconds of a latent frame spent in kernels."""
        return sum(kernel.ms for kernel in self.kernels)

    def buckets(self) -> dict[str, Kernel]:
        """The sum of each bucket that is not empty, longest first."""
        groups: dict[str, list[Kernel]] = defaultdict(list)
        for kernel in self.kernels:
            groups[kernel.bucket].append(kernel)
        sums = [
            Kernel(name=name, ms=sum(k.ms for k in group), launches=sum(k.launches for k in group))
            for name, group in groups.items()
        ]
        return {each.name: each for each in sorted(sums, key=lambda each: -each.ms)}

    def table(self) -> str:
        """Buckets, then the longest kernels, as text."""
        lines = [
            f"{self.label}: {self.ms:.2f} ms in kernels a latent frame, mean of {self.frames}",
            f"{'ms':>9} {'%':>6} {'launches':>9}",
        ]
        lines += [self._row(kernel) for kernel in self.buckets().values()]
        lines.append(f"the {min(TOP, len(self.kernels))} longest kernels:")
        lines += [self._row(kernel) for kernel in self.kernels[:TOP]]
        return "\n".join(lines)

    def _row(self, kernel: Kernel) -> str:
        share = 100 * kernel.ms / self.ms if self.ms else 0.0
        return f"{kernel.ms:9.3f} {share:6.1f} {kernel.launches:9.1f}  {kernel.name[:90]}"


def profile_steady(model: WorldModel, *, frames: int, label: str, folder: Path) -> Profile:
    """Profile latent frames of a session with a full memory; logs where the trace is and how the time divides.

    Args:
        frames: latent frames to profile; a few more run before.
        label: the model's id; the Chrome trace is `profile_<label>.json`.

    Raises:
        InvalidInputError: no frame, or more than the rotary table holds.
        OSError: the folder cannot be written to.
    """
    loop = WorldLoop(model)
    state = steady_session(loop)
    most = model.config.model.rope_table_len - 1 - state.memory.frame - BEFORE
    if not 1 <= frames <= most:
        raise InvalidInputError(
            f"profile_frames={frames} must be in 1..{most} at rope_table_len={model.config.model.rope_table_len}"
        )

    def play(count: int) -> None:
        for _ in range(count):
            loop.offer(state, Controls(pressed=frozenset({"w"})))
            clock_frame(loop, state, time.perf_counter)

    play(BEFORE)
    on_cpu = model.device.type == "cpu"
    activities = [ProfilerActivity.CPU] if on_cpu else [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities) as run:
        play(frames)
    rows = (
        (str(e.key), e.self_cpu_time_total if on_cpu else e.self_device_time_total, e.count)
        for e in run.key_averages()
        if on_cpu or (e.device_type.name != "CPU" and not is_range(str(e.key)))
    )
    trace = folder / f"profile_{label}.json"
    result = Profile(label=label, frames=frames, kernels=kernels(rows, frames), trace=trace)
    folder.mkdir(parents=True, exist_ok=True)
    run.export_chrome_trace(str(trace))
    shares: dict[str, object] = {
        bucket.replace(" ", "_").replace(",", ""): f"{100 * k.ms / result.ms:.1f}%"
        for bucket, k in result.buckets().items()
    }
    fields = {"model": label, "ms": round(result.ms, 2), "trace": trace.name, **shares}
    log_event(_log, "profile.done", level=logging.INFO, **fields)
    return result


def is_range(name: str) -> bool:
    """Whether a device's row spans kernels that have rows of their own, and so would count twice."""
    return RANGE.search(name) is not None


def kernels(rows: Iterable[tuple[str, float, int]], frames: int) -> tuple[Kernel, ...]:
    """(name, microseconds of its own, launches) of a run to kernels of one latent frame, longest first.

    Rows that took no time are left out.
    """
    found = [
        Kernel(name=name, ms=us / 1000 / frames, launches=count / frames)
        for name, us, count in rows
        if us > 0
    ]
    return tuple(sorted(found, key=lambda kernel: -kernel.ms))
