"""Recording environments: bits come back, actions belong to their frames, stopping loses nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pyarrow.parquet
import pytest
from numpy.typing import NDArray

from worldloop.core.errors import InvalidInputError, NotReadyError, PictureError
from worldloop.core.files import file_hash
from worldloop.simulators.gym import MeadowEnv
from worldloop.simulators.meadow import Meadow
from worldloop.trainer import environment
from worldloop.trainer.card import Card
from worldloop.trainer.episodes import parse_size
from worldloop.trainer.recorded import RecordedWalks
from worldloop.trainer.recorder import record

MEADOW = "worldloop/Meadow-v0"
Recorder = Callable[..., Card]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "meadow"
    record(MEADOW, folder, license="Apache-2.0", episodes=2, steps=12, seed=5)
    return folder


@pytest.fixture
def record_into(tmp_path: Path) -> Recorder:
    """Records 3 short episodes, a shard each."""

    def run(**changes: Any) -> Card:
        settings: dict[str, Any] = {"license": "CC0-1.0", "episodes": 3, "steps": 3, "seed": 2}
        return record(MEADOW, tmp_path / "out", **(settings | changes))

    return run


@pytest.fixture
def one_a_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "EPISODES_PER_SHARD", 1)


class Ramp(gymnasium.Env[Any, Any]):
    """Pictures that tell how many frames went by and which action made them; ends after `length` frames."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 35}  # noqa: RUF012

    def __init__(self, length: int = 22, render_mode: str | None = None) -> None:
        self.observation_space = gymnasium.spaces.Dict(
            {
                "depth": gymnasium.spaces.Box(0, 255, (32, 48, 1), np.uint8),
                "screen": gymnasium.spaces.Box(0, 255, (3, 32, 48), np.uint8),
            }
        )
        self.action_space = gymnasium.spaces.Discrete(3, start=1)
        self._length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._count = 0
        return self._observe(0), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._count += 1
        return self._observe(action), 0.0, self._count >= self._length, False, {}

    def _observe(self, action: int) -> Any:
        screen = np.zeros((3, 32, 48), np.uint8)
        screen[0], screen[1] = self._count, action
        return {"depth": np.full((32, 48, 1), 255, np.uint8), "screen": screen}


@pytest.fixture
def ramp() -> Iterator[str]:
    for kind in (Ramp, Rendered, Unclear):
        gymnasium.register(id=f"test/{kind.__name__}-v0", entry_point=kind)  # type: ignore[arg-type]
    yield "test/Ramp-v0"
    for kind in (Ramp, Rendered, Unclear):
        del gymnasium.registry[f"test/{kind.__name__}-v0"]


class Rendered(Ramp):
    """Observes numbers; its pictures are grey and rendered."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)

    def _observe(self, action: int) -> Any:
        return np.zeros(2, np.float32)

    def render(self) -> Any:
        assert self.render_mode == "rgb_array"
        return np.full((32, 48), self._count, np.uint8)


class Unclear(Ramp):
    """Has actions that nobody can know the meaning of."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.action_space = gymnasium.spaces.Box(-2, 2, (5,), np.float32)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """What the three actions of `Ramp` mean."""
    path = tmp_path / "keys.csv"
    path.write_text("forward,right,jump,sprint,yaw\n1,0,0,0,0\n0,0,0,0,-1\n0,0,1,0,0\n")
    return path


def test_frames_come_back_bit_for_bit_under_the_actions_that_made_them(recording: Path) -> None:
    walks = RecordedWalks(recording)

    assert len(walks) == 2
    for episode in range(2):
        _, info = MeadowEnv().reset(seed=5 + episode)
        world = Meadow(info["world"])
        frames, actions = walks.frames(episode), walks.actions(episode)
        assert frames.shape == (1 + 4 * 12, 96, 160, 3)
        assert np.array_equal(frames[0], world.reset())
        assert not actions[0].any()
        for step in range(1, 13):
            assert np.array_equal(frames[4 * step - 3 : 4 * step + 1], world.step(list(actions[step])))
    assert walks.actions(0).any() and walks.actions(1).any()
    assert not np.array_equal(walks.frames(0)[0], walks.frames(1)[0])


def test_a_read_in_the_middle_gives_the_same_frames(recording: Path) -> None:
    walks = RecordedWalks(recording)
    whole = walks.frames(1)

    for first, last in ((0, 0), (0, 3), (1, 1), (5, 9), (12, 12)):
        start = 0 if first == 0 else 4 * first - 3
        assert np.array_equal(walks.frames(1, first, last), whole[start : 4 * last + 1])
    with pytest.raises(InvalidInputError, match="it has 0 to 12"):
        walks.frames(1, 3, 13)


def test_the_table_says_where_and_when(recording: Path) -> None:
    table = pyarrow.parquet.read_table(recording / "actions.parquet").to_pydict()

    assert list(table) == [
        "episode", "step", "shard", "frame", "time", "forward", "right", "jump", "sprint", "yaw",
    ]  # fmt: skip
    assert table["episode"] == [0] * 13 + [1] * 13
    assert table["step"] == list(range(13)) * 2
    assert table["frame"][:3] == [0, 1, 5] and table["frame"][13:15] == [49, 50]
    assert table["time"][:3] == pytest.approx([0, 1 / 12, 5 / 12])


def test_the_card_counts_hashes_and_names_the_licence(recording: Path) -> None:
    card = json.loads((recording / "card.json").read_text())

    assert (card["source"], card["license"], card["fps"]) == (MEADOW, "Apache-2.0", 12)
    assert (card["episodes"], card["steps"], card["frames"]) == (2, 24, 98)
    assert card["picture"] == [96, 160] and card["complete"] is True
    assert card["shards"][0]["sha256"] == file_hash(recording / "shard-00000.mkv")
    assert card["table_sha256"] == file_hash(recording / "actions.parquet")
    readable = (recording / "card.md").read_text()
    assert "| licence | Apache-2.0 |" in readable and card["table_sha256"] in readable
    assert sorted(path.name for path in recording.iterdir()) == [
        "actions.parquet", "card.json", "card.md", "shard-00000.mkv",
    ]  # fmt: skip


@pytest.mark.usefixtures("one_a_shard")
def test_a_stopped_recording_goes_on_and_is_the_same_as_one_in_one_go(
    record_into: Recorder, tmp_path: Path
) -> None:
    class StopError(Exception): ...

    def stop(card: Card) -> None:
        if len(card.shards) == 2:
            raise StopError

    with pytest.raises(StopError):
        record_into(on_shard=stop)
    with pytest.raises(NotReadyError, match="record again to go on"):
        RecordedWalks(tmp_path / "out")
    (tmp_path / "out" / ".shard-00002.mkv.1.part").write_bytes(b"half")
    made: list[int] = []
    kept = [(tmp_path / "out" / f"shard-0000{n}.mkv").stat().st_mtime_ns for n in range(2)]

    card = record_into(on_shard=lambda card: made.append(len(card.shards)))

    assert made == [3]
    assert kept == [(tmp_path / "out" / f"shard-0000{n}.mkv").stat().st_mtime_ns for n in range(2)]
    whole = record(MEADOW, tmp_path / "whole", license="CC0-1.0", episodes=3, steps=3, seed=2)
    assert card == whole
    assert not list((tmp_path / "out").glob(".*"))


@pytest.mark.usefixtures("one_a_shard")
def test_a_damaged_shard_and_what_follows_are_made_again(record_into: Recorder, tmp_path: Path) -> None:
    before = record_into()
    (tmp_path / "out" / "shard-00001.mkv").write_bytes(b"damaged")
    made: list[int] = []

    after = record_into(on_shard=lambda card: made.append(len(card.shards)))

    assert made == [2, 3]
    assert after == before


@pytest.mark.usefixtures("one_a_shard")
def test_more_episodes_are_added_and_none_taken_away(record_into: Recorder, tmp_path: Path) -> None:
    record_into()
    made: list[int] = []

    card = record_into(episodes=4, on_shard=lambda card: made.append(len(card.shards)))

    assert made == [4]
    assert card.episodes == len(RecordedWalks(tmp_path / "out")) == 4
    with pytest.raises(InvalidInputError, match="holds 4 episodes, more than are asked for"):
        record_into(episodes=3)


def test_a_folder_recorded_otherwise_is_left_alone(record_into: Recorder, tmp_path: Path) -> None:
    card = record_into(episodes=1)

    with pytest.raises(InvalidInputError, match=r"with settings .*'seed': 2"):
        record_into(episodes=1, seed=3)
    with pytest.raises(InvalidInputError, match=r"license 'CC0-1\.0', not 'MIT'"):
        record_into(episodes=1, license="MIT")
    assert Card.read(tmp_path / "out") == card


def test_nothing_is_left_of_a_shard_whose_source_breaks(
    record_into: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(self: Meadow, action: Any) -> NDArray[np.uint8]:
        raise RuntimeError("the simulator broke")

    monkeypatch.setattr(Meadow, "step", breaks)

    with pytest.raises(RuntimeError, match="the simulator broke"):
        record_into()
    assert list((tmp_path / "out").iterdir()) == []


def test_mp4_plays_everywhere_and_is_close(record_into: Recorder, tmp_path: Path) -> None:
    card = record_into(episodes=1, lossless=False)

    frames = RecordedWalks(tmp_path / "out").frames(0)

    assert card.shards[0].file == "shard-00000.mp4"
    _, info = MeadowEnv().reset(seed=2)
    error = frames[0].astype(float) - Meadow(info["world"]).reset()
    assert 0 < np.sqrt(np.square(error).mean()) < 12


def test_a_discrete_environment_is_stepped_four_times_and_may_end_early(
    ramp: str, keys: Path, tmp_path: Path
) -> None:
    card = record(
        ramp, tmp_path / "out", license="CC0-1.0", episodes=2, steps=9, seed=0, policy="random", actions=keys
    )

    walks = RecordedWalks(tmp_path / "out")
    meanings = np.array([[1, 0, 0, 0, 0], [0, 0, 0, 0, -1], [0, 0, 1, 0, 0]], np.float32)
    assert (card.fps, card.picture, walks.steps(0)) == (35, (32, 48), 5)
    frames = walks.frames(0)
    assert frames[:, 0, 0, 0].tolist() == list(range(21))
    for step in range(1, 6):
        made_by = frames[4 * step - 3 : 4 * step + 1, 0, 0, 1]
        assert np.array_equal(walks.actions(0)[step], meanings[made_by[0] - 1])
        assert (made_by == made_by[0]).all()


def test_walkers_choose_the_nearest_discrete_action(ramp: str, keys: Path, tmp_path: Path) -> None:
    record(
        ramp, tmp_path / "out", license="CC0-1.0", episodes=1, steps=9, seed=0, policy="walkers", actions=keys
    )

    held = RecordedWalks(tmp_path / "out").actions(0)[1:]

    assert (held[:, 0] == 1).any()
    assert not (held[:, 2] == 1).all()


def test_an_environment_without_pictures_is_rendered(ramp: str, keys: Path, tmp_path: Path) -> None:
    record("test/Rendered-v0", tmp_path / "out", license="CC0", episodes=1, steps=2, actions=keys)

    frames = RecordedWalks(tmp_path / "out").frames(0)

    assert frames[:, 0, 0].tolist() == [[count] * 3 for count in range(9)]


def test_pictures_are_scaled_and_cut_to_a_size(ramp: str, keys: Path, tmp_path: Path) -> None:
    card = record(
        ramp, tmp_path / "out", license="CC0", episodes=1, steps=2, actions=keys, size=(16, 32), fps=10
    )

    assert (card.picture, card.fps) == ((16, 32), 10)
    assert RecordedWalks(tmp_path / "out").frames(0).shape == (9, 16, 32, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "worldloop/Moon-v0"}, "'worldloop/Moon-v0' cannot be made"),
        ({"source": "no_such_module:Thing-v0"}, "'no_such_module:Thing-v0' cannot be made"),
        ({"source": Path("no-such-folder")}, "folder 'no-such-folder' does not exist"),
        ({"policy": "expert"}, r"policy is 'expert'; must be one of \['walkers', 'random'\]"),
        ({"episodes": 0}, "episodes is 0"),
        ({"steps": 0}, "steps 0"),
        ({"license": " "}, "license is empty"),
        ({"size": (90, 160)}, "a size such as 96x160"),
        ({"fps": 0.5}, "1 to 120 frames a second"),
    ],
)
def test_bad_input_is_refused_in_words(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"source": MEADOW, "license": "CC0-1.0", "episodes": 1, "steps": 1} | changes

    with pytest.raises(InvalidInputError, match=message):
        record(arguments.pop("source"), tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_unknown_meanings_of_actions_are_refused(ramp: str, keys: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="has 3 discrete actions; give a table"):
        record(ramp, tmp_path / "out", license="CC0")
    with pytest.raises(InvalidInputError, match=r"has actions Box\(-2.0, 2.0, \(5,\)"):
        record("test/Unclear-v0", tmp_path / "out", license="CC0")
    with pytest.raises(InvalidInputError, match="needs no table"):
        record(MEADOW, tmp_path / "out", license="CC0", actions=keys)
    keys.write_text("forward,right,jump,sprint,yaw\n1,0,0,0,0\n")
    with pytest.raises(InvalidInputError, match=r"is \[1, 5\]; must be \[3, 5\]"):
        record(ramp, tmp_path / "out", license="CC0", actions=keys)
    keys.write_text("forward,right\n1,0\n")
    with pytest.raises(InvalidInputError, match=r"keys.csv lacks the columns \['jump', 'sprint', 'yaw'\]"):
        record(ramp, tmp_path / "out", license="CC0", actions=keys)


def test_a_size_is_height_then_width() -> None:
    assert parse_size("96x160") == (96, 160)
    for wrong in ("96", "96x", "-96x160", "96 by 160"):
        with pytest.raises(InvalidInputError, match="must be HEIGHTxWIDTH"):
            parse_size(wrong)


def test_a_missing_card_file_or_shard_is_named(recording: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"has no card.json; it is not a recording"):
        RecordedWalks(tmp_path)
    (tmp_path / "actions.parquet").write_bytes((recording / "actions.parquet").read_bytes())
    card = Card.read(recording)
    card.write(tmp_path)
    with pytest.raises(PictureError, match=r"'shard-00000\.mkv' is missing or damaged"):
        RecordedWalks(tmp_path).frames(0)
    replace(card, shards=card.shards * 2).write(tmp_path)
    with pytest.raises(InvalidInputError, match="does not match its card"):
        RecordedWalks(tmp_path)
    (tmp_path / "card.json").write_text("{")
    with pytest.raises(InvalidInputError, match="is damaged"):
        RecordedWalks(tmp_path)
