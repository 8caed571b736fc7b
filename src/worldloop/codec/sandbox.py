"""Strangers' pictures, read in a process of its own with limits of memory and processor time.

Owns that process, its limits, and how a file and its picture travel. Does not own reading itself (`still`). Called by
the server for uploads; a user's own files (API, command line) are read in place.

Readers of pictures and videos are large programs in C. The worst that a file can do here is to end the helper: its
sender gets a `PictureError`, games don't notice, and the next file gets a new helper.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from worldloop.core.errors import EngineError, PictureError, WorldloopError

MEMORY_BYTES, MEMORY_PER_PIXEL = 256 * 2**20, 32
"""What one file may take beyond what the helper has at rest: a fixed part, and a part for every allowed pixel."""

CPU_S, PIXELS_PER_CPU_S = 2, 4_000_000
"""Processor seconds that one file may take: a fixed part, and a part for the allowed pixels. The slowest honest file
of 40 million pixels takes a quarter of it."""

_SIZES = struct.Struct(">II")


def read_stranger(
    data: bytes, *, filename: str, height: int, width: int, max_bytes: int, max_pixels: int
) -> NDArray[np.uint8]:
    """The picture in these bytes, cut to uint8 `[height, width, 3]`: `still.read_picture`, then `still.cover_crop`.

    Blocks; may be called from any thread, one file is read at a time.

    Raises:
        PictureError: as `read_picture`, or the file took too long or too much memory.
        EngineError: the helper process can't be started.
    """
    asked = {
        "filename": filename[-512:],
        "height": height,
        "width": width,
        "max_bytes": max_bytes,
        "max_pixels": max_pixels,
        "cpu_s": CPU_S + max_pixels // PIXELS_PER_CPU_S,
        "memory_bytes": MEMORY_BYTES + MEMORY_PER_PIXEL * max_pixels,
    }
    # A file over the limit is refused by its length alone.
    if len(data) > max_bytes:
        raise PictureError(f"the picture has {len(data)} bytes; at most {max_bytes} are allowed")
    answer, pixels = _helper.ask(asked, data)
    if "error" in answer:
        raise PictureError(str(answer["error"]))
    if len(pixels) != height * width * 3:
        raise EngineError(f"the picture's reader gave {len(pixels)} bytes for {width}x{height} pixels")
    return np.frombuffer(pixels, np.uint8).reshape(height, width, 3).copy()


class Helper:
    """The process, started when it is first asked and again after it has died."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, header: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        """Send one file, wait for its answer. Raises `PictureError` when the file ended the helper."""
        with self._lock:
            process = self._alive()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                _write(process.stdin, header, data)
                answer = _read(process.stdout)
            except (OSError, ValueError):
                answer = None
            if answer is None:
                raise self._autopsy(process)
            return answer

    def close(self) -> None:
        """End the process; the next file starts a new one."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                _close(pipe)

    def _alive(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                # One thread a file, also in libraries that would reserve memory for more.
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                # A Ctrl-C in the server's terminal is the server's to handle.
                start_new_session=True,
            )
        except OSError as error:
            raise EngineError(f"the picture's reader can't be started: {error.strerror}") from error
        return self._process

    def _autopsy(self, process: subprocess.Popen[bytes]) -> WorldloopError:
        try:
            code = process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            code = 0
        self.close()
        if code >= 0:
            return EngineError(f"the reader of pictures ended with status {code}")
        if sys.platform != "win32" and code == -signal.SIGXCPU:
            return PictureError("the picture takes too long to read; save it again, smaller")
        return PictureError("the picture can't be read; save it again as PNG or JPEG")


_helper = Helper()
atexit.register(_helper.close)


def serve_files(requests: IO[bytes], answers: IO[bytes]) -> None:
    """The helper's side: read files until there are no more."""
    # Here, because the server's side needs none of it.
    from worldloop.codec.still import cover_crop, read_picture

    at_rest = _address_space()
    while (request := _read(requests)) is not None:
        asked, data = request
        _limit(asked["cpu_s"], asked["memory_bytes"], at_rest)
        try:
            picture = read_picture(
                data, filename=asked["filename"], max_bytes=asked["max_bytes"], max_pixels=asked["max_pixels"]
            )
            cropped = cover_crop(picture, height=asked["height"], width=asked["width"])
        except PictureError as error:
            _write(answers, {"error": str(error)}, b"")
        except MemoryError:
            _write(
                answers, {"error": "the picture takes too much memory to read; save it again, smaller"}, b""
            )
        else:
            _write(answers, {}, cropped.tobytes())


def _limit(cpu_s: int, memory_bytes: int, at_rest: int | None) -> None:
    """Limits for the next file. A file that goes over them fails, or ends this process."""
    if sys.platform == "win32":
        return
    import resource

    until = int(time.process_time()) + 1 + cpu_s
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    if at_rest is not None:
        most = at_rest + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _address_space() -> int | None:
    """Bytes that this process has reserved; None where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def _write(pipe: IO[bytes], header: dict[str, Any], data: bytes) -> None:
    packed = json.dumps(header).encode()
    pipe.write(_SIZES.pack(len(packed), len(data)) + packed)
    pipe.write(data)
    pipe.flush()


def _read(pipe: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """One message, or None when the other side is gone."""
    sizes = pipe.read(_SIZES.size)
    if len(sizes) < _SIZES.size:
        return None
    header_size, size = _SIZES.unpack(sizes)
    header, data = pipe.read(header_size), pipe.read(size)
    if len(header) < header_size or len(data) < size:
        return None
    return dict(json.loads(header)), data


def _close(pipe: IO[bytes]) -> None:
    try:
        pipe.close()
    except OSError:  # bytes that the helper never took
        return


def _main() -> None:
    # Libraries that print must not print into the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve_files(sys.stdin.buffer, answers)


if __name__ == "__main__":
    _main()
