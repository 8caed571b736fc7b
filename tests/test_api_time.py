"""Ways through a world's time in Python: snapshots and another process, forks, going back, tapes."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import worldloop
from worldloop.core.errors import BusyError, SnapshotError
from worldloop.core.types import Controls
from worldloop.engine.contract import Frames
from worldloop.loops.tape import NO_FRAMES, Tape, add
from worldloop.testing import tiny_world

PICTURE = np.random.default_rng(3).integers(0, 256, (48, 64, 3), dtype=np.uint8)
KEYS: list[set[str]] = [{"w"}, {"w", "d"}, set(), {"left"}, {"s"}, {"a"}, {"w"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_world(tmp_path_factory.mktemp("tiny"))
    return tiny_world(folder, name="other-3r", seed=1)


@pytest.fixture(scope="module")
def world(folder: Path) -> Iterator[worldloop.World]:
    with worldloop.load_world(folder / "tiny-3r.safetensors", dtype="fp32", threads=1) as world:
        yield world


def steps(session: worldloop.Session, first: int = 0, last: int = 21) -> bytes:
    """Pictures of steps number `first` up to `last`, keys by the script."""
    return b"".join(session.step(KEYS[i % len(KEYS)]).tobytes() for i in range(first, last))


def total(frames: list[Frames]) -> str:
    digest = NO_FRAMES
    for each in frames:
        digest = add(digest, each)
    return digest.hex()


GO_ON = """
import hashlib, sys
import worldloop
keys = [{"w"}, {"w", "d"}, set(), {"left"}, {"s"}, {"a"}, {"w"}]
with worldloop.load_world(sys.argv[1], dtype="fp32", threads=1) as world, world.restore(sys.argv[2]) as session:
    digest = hashlib.sha256(session.first.tobytes())
    for i in range(session.frames_made, 21):
        digest.update(session.step(keys[i % len(keys)]).tobytes())
print(session.frames_made, digest.hexdigest())
"""


def test_a_snapshot_goes_on_in_another_process_with_the_same_bytes(
    folder: Path, world: worldloop.World, tmp_path: Path
) -> None:
    file = tmp_path / "here.world"
    with world.start(PICTURE, seed=5) as session:
        steps(session, 0, 9)
        session.snapshot().save(file)
        rest = steps(session, 9, 21)
        wanted = hashlib.sha256(session.first.tobytes() + rest).hexdigest()

    answer = subprocess.run(
        [sys.executable, "-c", GO_ON, str(folder / "tiny-3r.safetensors"), str(file)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip

    assert answer.stdout.split() == ["21", wanted], answer.stderr
    assert list(tmp_path.iterdir()) == [file]


def test_forks_go_their_own_ways_and_the_same_way_is_the_same_world(world: worldloop.World) -> None:
    with world.start(PICTURE, seed=5) as session:
        steps(session, 0, 8)
        with session.fork() as left, session.fork() as right, session.fork() as same:
            made = (left.frames_made, (left.first == session.first).all())
            one, two, three = left.step({"left"}), right.step({"right"}), same.step({"left"})
            here = session.step({"left"})
            rest = steps(session, 9)
            assert steps(left, 9) == rest
            assert steps(right, 9) != rest

    assert made == (8, True)
    assert one.tobytes() == three.tobytes() == here.tobytes()
    assert (one != two).any()


def test_going_back_gives_the_same_bytes_again(world: worldloop.World) -> None:
    with world.start(PICTURE, seed=5) as session:
        made = [session.step(KEYS[i % len(KEYS)]) for i in range(30)]
        shown = session.rewind(5)
        again = [session.step(KEYS[i % len(KEYS)]) for i in range(15, 30)]
        other = session.rewind(5)
        session.step({"right"})
        session.rewind(1 / 3)

        assert session.frames_made == 15
        assert (shown == made[14]).all()
        assert (other == made[14]).all()
        assert [each.tobytes() for each in again] == [each.tobytes() for each in made[15:]]
        assert session.step({"right"}).tobytes() != made[15].tobytes()


@pytest.mark.parametrize("back", [1, 2, 3, 4, 5, 8, 29, 30])
def test_any_frame_within_reach_can_be_gone_back_to(back: int, world: worldloop.World) -> None:
    with world.start(PICTURE, seed=5) as session:
        made = [session.first, *(session.step(KEYS[i % len(KEYS)]) for i in range(45))]
        shown = session.rewind(back / 3)

        assert (shown == made[45 - back]).all()
        assert session.step(KEYS[(45 - back) % len(KEYS)]).tobytes() == made[46 - back].tobytes()


def test_going_back_farther_than_the_game_is_old_ends_at_its_picture(world: worldloop.World) -> None:
    with world.start(PICTURE, seed=5) as session:
        first = steps(session, 0, 4)
        shown = session.rewind(9)

        assert (shown == session.first).all()
        assert session.frames_made == 0
        assert steps(session, 0, 4) == first


def test_going_back_too_far_says_how_far_it_goes_and_changes_nothing(world: worldloop.World) -> None:
    with world.start(PICTURE, seed=5) as session, world.start(PICTURE, seed=5) as beside:
        for each in (session, beside):
            steps(each, 0, 60)
        with pytest.raises(
            worldloop.InvalidInputError, match=r"too far back: this game can go back 1\d\.\d s"
        ):
            session.rewind(18)
        for seconds in (0, -1, float("nan"), float("inf")):
            with pytest.raises(worldloop.InvalidInputError, match="must be a number above 0"):
                session.rewind(seconds)

        assert steps(session, 60, 64) == steps(beside, 60, 64)


def test_going_back_is_refused_while_a_frame_is_in_the_making(world: worldloop.World) -> None:
    with world.start(PICTURE, seed=5) as session:
        game = session._game
        futures = world._host.engine.call(lambda: [game.submit(Controls()) for _ in range(2)])
        with pytest.raises(BusyError, match="a frame is in the making"):
            world._host.engine.call(lambda: game.rewind(1))
        assert [future.result(30).index for future in futures] == [1, 2]


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"rewind_s": 0}, "rewind is off"),
        ({"rewind_bytes": 0}, "rewind is off"),
        ({"rewind_bytes": 100_000}, r"two snapshots of this world need \d+ bytes; rewind_bytes is 100000"),
    ],
)
def test_without_room_for_snapshots_it_says_so(choices: dict[str, int], says: str, folder: Path) -> None:
    with (
        worldloop.load_world(folder / "tiny-3r.safetensors", dtype="fp32", threads=1, **choices) as world,
        world.start(PICTURE) as session,
    ):
        steps(session, 0, 6)
        with pytest.raises(worldloop.InvalidInputError, match=says):
            session.rewind(1)
        assert session._game._history.nbytes < 10_000


def test_snapshots_stay_within_their_bytes(folder: Path) -> None:
    budget = 1_000_000
    with (
        worldloop.load_world(
            folder / "tiny-3r.safetensors", dtype="fp32", threads=1, rewind_bytes=budget
        ) as world,
        world.start(PICTURE, seed=5) as session,
    ):
        made = [session.first]
        for i in range(70):
            made.append(session.step(KEYS[i % len(KEYS)]))
            assert session._game._history.nbytes < budget
        assert session._game._history.nbytes > budget / 5
        assert (session.rewind(10) == made[40]).all()


def test_a_session_that_is_over_keeps_its_tape_and_no_moments(world: worldloop.World) -> None:
    session = world.start(PICTURE, seed=1)
    steps(session)
    game = session._game
    held = game._history.nbytes
    session.close()
    tape = session.tape()

    assert game._history.nbytes < held / 2
    assert len(tape.controls) == 22


def test_a_session_can_be_put_to_another_moment(world: worldloop.World) -> None:
    with world.start(PICTURE, seed=5) as one, world.start(255 - PICTURE, seed=6, sphere="all") as two:
        steps(one, 0, 5)
        moment = one.snapshot()
        steps(two, 0, 3)
        two.restore(moment)

        assert two.frames_made == 5
        assert steps(two, 5) == steps(one, 5)
        assert two.tape().start.made == 6


def test_a_snapshot_of_another_model_is_refused(folder: Path, world: worldloop.World, tmp_path: Path) -> None:
    with world.start(PICTURE) as session:
        moment = session.snapshot()
    with worldloop.load_world(folder / "other-3r.safetensors", dtype="fp32", threads=1) as other:
        with pytest.raises(
            SnapshotError, match="it is of model 'tiny-3r' with other weights; 'other-3r' is served"
        ):
            other.restore(moment)
        assert other._host.engine.sessions == 0
    with pytest.raises(worldloop.InvalidInputError, match=r"no-such\.world cannot be read"):
        world.restore(tmp_path / "no-such.world")


def test_a_session_that_is_over_has_no_moment(world: worldloop.World) -> None:
    session = world.start(PICTURE)
    session.close()
    for act in (session.snapshot, session.fork, lambda: session.rewind(1)):
        with pytest.raises(worldloop.SessionEndedError, match="closed"):
            act()


# -- tapes ----------------------------------------------------------------------------------------------------------
def test_a_tape_makes_the_same_bytes_again(world: worldloop.World, tmp_path: Path) -> None:
    file = tmp_path / "walk.tape"
    with world.start(PICTURE, seed=5, reprefill_every=6) as session:
        made = [session.first, *(session.step(KEYS[i % len(KEYS)]) for i in range(12))]
        session.tape().save(file)

    again = list(world.replay(file))

    assert b"".join(each.tobytes() for each in again) == b"".join(each.tobytes() for each in made)
    assert Tape.unpack(file.read_bytes()).sha256 == total(again) == total(made)
    assert file.stat().st_size < 10_000


def test_a_tape_of_other_keys_has_another_sum(world: worldloop.World) -> None:
    with world.start(PICTURE, seed=5) as session:
        steps(session, 0, 4)
        tape = session.tape()
    changed = Tape(start=tape.start, controls=(*tape.controls[:-1], Controls()), sha256=tape.sha256)

    assert total(list(world.replay(tape))) == tape.sha256
    assert total(list(world.replay(changed))) != tape.sha256


def test_another_number_of_calls_renders_the_same_inputs(world: worldloop.World) -> None:
    with world.start(PICTURE, seed=5) as session:
        steps(session, 0, 4)
        tape = session.tape()
    with world.start(PICTURE, seed=5, nfe=4) as session:
        wanted = session.first.tobytes() + steps(session, 0, 4)

    assert b"".join(each.tobytes() for each in world.replay(tape, nfe=4)) == wanted
    with pytest.raises(worldloop.InvalidInputError, match="nfe=99"):
        list(world.replay(tape, nfe=99))


def test_what_is_no_tape_or_moment_is_refused_at_once(world: worldloop.World, tmp_path: Path) -> None:
    with world.start(PICTURE) as session:
        nothing = session.tape()
        with pytest.raises(worldloop.InvalidInputError, match="needed, no int"):
            session.restore(3)  # type: ignore[arg-type]
        with pytest.raises(worldloop.InvalidInputError, match="seconds='1' must be a number"):
            session.rewind("1")  # type: ignore[arg-type]
        with pytest.raises(worldloop.InvalidInputError, match="there is no folder"):
            session.tape().save(tmp_path / "missing" / "a.tape")
        session.snapshot().save(tmp_path / "a.world")
        session.step({"w"})
        session.restore(tmp_path / "a.world")
        assert session.frames_made == 0
    with pytest.raises(worldloop.InvalidInputError, match=r"no-such\.tape cannot be read"):
        world.replay(tmp_path / "no-such.tape")
    with pytest.raises(worldloop.InvalidInputError, match="nothing was played"):
        world.export(nothing, tmp_path / "recording", license="MIT")
    assert not (tmp_path / "recording").exists()


def test_a_tape_follows_going_back_and_forks(world: worldloop.World) -> None:
    with world.start(PICTURE, seed=5) as session:
        steps(session, 0, 12)
        session.rewind(1)
        session.step({"right"})
        with session.fork() as fork:
            fork.step({"left"})
            session.step({"right"})
            tapes = [session.tape(), fork.tape()]

    sums = [total(list(world.replay(tape))) for tape in tapes]

    assert sums == [tape.sha256 for tape in tapes]
    assert sums[0] != sums[1]
    assert [len(tape.controls) for tape in tapes] == [12, 12]


def test_a_tape_that_begins_in_the_middle(world: worldloop.World) -> None:
    with world.start(PICTURE, seed=5) as session:
        steps(session, 0, 9)
        moment = session.snapshot()
    with world.restore(moment) as session:
        made = steps(session, 9, 12)
        tape = Tape.unpack(session.tape().pack())

    assert b"".join(each.tobytes() for each in world.replay(tape)) == made


def test_a_tape_with_more_frames_than_are_allowed_is_refused(world: worldloop.World) -> None:
    with world.start(PICTURE) as session:
        tape = session.tape()
    data = tape.pack().replace(b'\\"frames\\":1}', b'\\"frames\\":9999999999}')
    size = int.from_bytes(data[:8], "little") + 9
    data = size.to_bytes(8, "little") + data[8:]

    with pytest.raises(SnapshotError, match="the tape has 9999999999 frames; 10000000 are allowed"):
        Tape.unpack(data)
    with pytest.raises(SnapshotError, match="format"):
        world.restore(tape.pack())
