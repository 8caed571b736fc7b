"""Each example runs as a reader would run it, against the shipped world."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from worldloop.codec.mp4 import read_video

ROOT = Path(__file__).parent.parent


def test_walk_writes_a_video(tmp_path: Path) -> None:
    video = tmp_path / "walk.mp4"
    command = [sys.executable, str(ROOT / "examples" / "walk.py"), str(video), "--keys", "dd."]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "13 pictures" in done.stdout
    assert sum(1 for _ in read_video(video)) == 13
