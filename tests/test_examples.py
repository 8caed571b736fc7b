"""Each example runs as a reader would run it, against the shipped world."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from PIL import Image

from worldloop.codec.mp4 import read_video

ROOT = Path(__file__).parent.parent


def test_walk_writes_a_video(tmp_path: Path) -> None:
    video = tmp_path / "walk.mp4"
    command = [sys.executable, str(ROOT / "examples" / "walk.py"), str(video), "--keys", "dd."]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "13 pictures" in done.stdout
    assert sum(1 for _ in read_video(video)) == 13


def test_agent_learns_and_draws_its_curve(tmp_path: Path) -> None:
    curve = tmp_path / "curve.png"
    command = [sys.executable, str(ROOT / "examples" / "agent.py"), str(curve)]
    command += ["--batches", "2", "--dreams", "2", "--length", "3", "--threads", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    for line in ("batch 2:", "random agent in the simulator:", "trained agent in unseen dreams:"):
        assert line in done.stdout
    with Image.open(curve) as picture:
        assert len(picture.convert("RGB").getcolors(1 << 16) or ()) > 3
