from __future__ import annotations

import numpy as np
import pytest

from worldloop.core.errors import InvalidInputError
from worldloop.core.types import NO_ACTION
from worldloop.simulators.labyrinth import plan
from worldloop.simulators.maze import RADIUS, SPEED, SPRINT, Maze, VectorMaze

FORWARD, RIGHT, JUMP, RUN, TURN = np.eye(5)


def steps(maze: Maze, action: np.ndarray, count: int) -> np.ndarray:
    return np.concatenate([maze.step(action) for _ in range(count)])


def test_pictures_have_the_size_and_number_of_the_published_worlds() -> None:
    maze = Maze(0)
    assert maze.reset().shape == (96, 160, 3)
    frames = maze.step(FORWARD)
    assert (frames.shape, frames.dtype) == ((4, 96, 160, 3), np.uint8)


def test_vector_maze_shows_what_single_mazes_show() -> None:
    vector, single = VectorMaze([3, 4]), [Maze(3), Maze(4)]
    rng = np.random.default_rng(0)
    for _ in range(4):
        actions = rng.uniform(-1, 1, (2, 5))
        np.testing.assert_array_equal(
            vector.step(actions), [maze.step(action) for maze, action in zip(single, actions, strict=True)]
        )


def test_no_key_shows_the_same_picture() -> None:
    maze = Maze(1)
    first = maze.reset()
    for action in (np.zeros(5), np.full(5, NO_ACTION)):
        for frame in maze.step(action):
            np.testing.assert_array_equal(frame, first)


def test_turning_starts_slowly_and_settles_at_five_degrees_a_step() -> None:
    maze = Maze(2)
    angles = [maze.angle]
    for _ in range(6):
        maze.step(TURN)
        angles.append(maze.angle)
    turns = np.rad2deg(np.diff(angles))
    assert 1 < turns[0] < 4
    assert turns[-1] == pytest.approx(5, abs=0.01)


def test_right_key_turns_the_view_right() -> None:
    maze = Maze(5)
    before = maze.reset().astype(int)
    after = steps(maze, TURN, 2)[-1].astype(int)
    shifted = {
        shift: np.abs(np.roll(before, shift, 1)[:, 40:120] - after[:, 40:120]).mean() for shift in (-16, 16)
    }
    assert shifted[-16] < shifted[16]


def test_walks_and_sprints_at_their_speeds() -> None:
    for action, speed in ((FORWARD, SPEED), (FORWARD + RUN, SPEED * SPRINT)):
        maze = Maze(6)
        maze.step(action)
        x, y = maze.position
        maze.step(action)
        assert np.hypot(maze.position[0] - x, maze.position[1] - y) == pytest.approx(4 * speed, rel=0.2)


def test_strafing_moves_across_the_view() -> None:
    maze = Maze(6)
    (x, y), angle = maze.position, maze.angle
    maze.step(RIGHT)
    moved = np.array(maze.position) - (x, y)
    assert moved @ (np.cos(angle), np.sin(angle)) == pytest.approx(0, abs=1e-9)
    assert moved @ (-np.sin(angle), np.cos(angle)) > 0.02


def test_a_jump_lifts_the_eye_and_lands() -> None:
    maze = Maze(7)
    first = maze.reset()
    lifts = [maze.lift]
    frames = maze.step(JUMP)
    for _ in range(6):
        lifts.append(maze.lift)
        maze.step(np.zeros(5))
    assert not np.array_equal(frames[-1], first)
    assert 0.1 < max(lifts) < 0.5
    assert maze.lift == 0


def test_walls_stop_everyone() -> None:
    for seed in range(4):
        maze, walls = Maze(seed), plan(seed).walls
        x, y = maze.position
        steps(maze, FORWARD + RUN, 4)
        # From the middle of a corridor, strafing meets the wall before the cell ends.
        steps(maze, RIGHT, 6)
        x, y = maze.position
        corners = [(y + down, x + right) for down in (-RADIUS, RADIUS) for right in (-RADIUS, RADIUS)]
        assert not any(walls[int(row), int(column)] for row, column in corners)
        before = maze.position
        if walls[int(y + np.cos(maze.angle) * 0.5), int(x - np.sin(maze.angle) * 0.5)]:
            steps(maze, RIGHT, 2)
            assert np.hypot(*np.subtract(maze.position, before)) < SPEED
            return
    pytest.fail("no start has a wall on its right")


def test_plans_are_closed_connected_and_have_landmarks() -> None:
    for seed in range(20):
        made = plan(seed)
        assert made.walls[[0, -1]].all()
        assert made.walls[:, [0, -1]].all()
        x, y = made.start
        reached = np.zeros_like(made.walls)
        reached[int(y), int(x)] = True
        while True:
            grown = reached.copy()
            for axis in (0, 1):
                for step in (-1, 1):
                    grown |= np.roll(reached, step, axis)
            grown &= ~made.walls
            if np.array_equal(grown, reached):
                break
            reached = grown
        assert reached.sum() > 0.9 * (~made.walls).sum()
        assert (made.emblems[made.walls] > 0).sum() > 10


def test_mazes_follow_their_seeds_and_share_nothing() -> None:
    maze, twin = Maze(8), Maze(8)
    steps(maze, FORWARD, 3)
    np.testing.assert_array_equal(twin.step(np.zeros(5))[0], Maze(8).reset())
    assert not np.array_equal(maze.reset(9), Maze(8).reset())


def test_wrong_action_shapes_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"shape \(1, 4\); \(1, 5\) is needed"):
        Maze(0).step((0, 0, 0, 0))
