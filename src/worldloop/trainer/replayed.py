"""One played game as a source of training data: the pictures of a tape that is made again, and what was held.

Owns how a game becomes an episode. Does not own making its pictures (the caller's). Called by `api`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worldloop.core.types import Action, Controls
from worldloop.engine.contract import Frames
from worldloop.models.config import CheckpointConfig
from worldloop.trainer.episodes import NOTHING, Step


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayedEpisode:
    """A source of one group with one episode.

    Attributes:
        name: of the model that dreamt it.
        key: the tape's sum.
        config: of the model.
        picture: (height, width).
        controls: of every latent frame.
        frames: their pictures; read once.
    """

    name: str
    key: str
    config: CheckpointConfig
    picture: tuple[int, int]
    controls: Sequence[Controls]
    frames: Iterable[Frames]

    @property
    def fps(self) -> float:
        return float(self.config.encode_fps)

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"tape": self.key}

    @property
    def keys(self) -> Sequence[str]:
        return (self.key,)

    def group(self, index: int) -> Iterator[Iterator[Step]]:
        """The one episode."""
        assert index == 0
        yield self._steps()

    def close(self) -> None:
        """Nothing is held."""

    def _steps(self) -> Iterator[Step]:
        count = 0
        for controls, frames in zip(self.controls, self.frames, strict=True):
            # An episode begins with one picture. That of a game that went on from a snapshot is its first frame's last.
            shown = frames if count else frames[-1:]
            action = self._action(controls) if count else NOTHING
            yield Step(time=count / self.fps, action=action, frames=shown)
            count += len(shown)

    def _action(self, controls: Controls) -> Action:
        if controls.fps is None:
            return NOTHING
        return controls.action(jump_sprint=self.config.jump_sprint, yaw=self.config.yaw)
