"""Pictures of the maze by casting one ray a column.

Owns the camera, the soft textures and the light. Does not own the plan (`labyrinth`) or where the eye is
(`maze`, which calls this). Everything is smooth on purpose: hard edges that move by fractions of a pixel are
what a small model spends itself on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]

HEIGHT: Final = 96
WIDTH: Final = 160
EYE_HEIGHT: Final = 0.5
"""Height of the eye over the floor of one who stands; walls are 1 high."""

_FIELD_OF_VIEW: Final = np.deg2rad(70.0)
_OVERSAMPLING: Final = 2
_FOCAL: Final = WIDTH / 2 / np.tan(_FIELD_OF_VIEW / 2)
_MAX_CELLS: Final = 40

_WALLS: Final = np.array(
    [(214, 112, 92), (96, 148, 196), (120, 172, 108), (232, 186, 104), (168, 124, 186), (206, 198, 186)],
    np.float32,
)
_EMBLEMS: Final = np.array(
    [(0, 0, 0), (255, 236, 150), (64, 78, 130), (250, 250, 244), (226, 70, 84)], np.float32
)
_SKY_TOP: Final = np.array((92, 150, 226), np.float32)
_HORIZON: Final = np.array((250, 224, 190), np.float32)
_SUN: Final = np.array((255, 246, 206), np.float32)
_MOUNTAINS: Final = np.array((138, 146, 190), np.float32)
_FLOOR: Final = np.array((176, 158, 128), np.float32)
_FLOOR_LIGHT: Final = np.array((206, 190, 156), np.float32)


@dataclass(frozen=True, kw_only=True)
class Eyes:
    """Where N eyes are, in N worlds.

    Attributes:
        position: float [N, 2], x and y in cells.
        angle: float [N], radians clockwise from east.
        height: float [N], over the floor.
    """

    position: NDArray[np.float64]
    angle: NDArray[np.float64]
    height: NDArray[np.float64]


def render(
    walls: NDArray[np.bool_], colours: NDArray[np.int8], emblems: NDArray[np.int8], eyes: Eyes
) -> NDArray[np.uint8]:
    """What N eyes see in N plans ([N, S, S] each): uint8 [N, 96, 160, 3]."""
    across = (np.arange(WIDTH * _OVERSAMPLING, dtype=np.float32) + 0.5) / (WIDTH * _OVERSAMPLING) * 2 - 1
    across = across * np.float32(np.tan(_FIELD_OF_VIEW / 2))
    cos, sin = (f(eyes.angle).astype(np.float32)[:, None] for f in (np.cos, np.sin))
    ray_x, ray_y = cos - sin * across, sin + cos * across
    hit = _cast(walls, eyes.position.astype(np.float32), ray_x, ray_y)

    eye = eyes.height.astype(np.float32)[:, None, None]
    slope = ((np.arange(HEIGHT, dtype=np.float32) + 0.5 - HEIGHT / 2) / np.float32(_FOCAL))[None, :, None]
    depth = hit.depth[:, None, :]
    height = eye - slope * depth
    per_pixel = np.float32(_FOCAL) / depth
    wall_share = np.clip((1 - height) * per_pixel + 0.5, 0, 1) * np.clip(height * per_pixel + 0.5, 0, 1)

    view_angle = eyes.angle.astype(np.float32)[:, None] + np.arctan(across)
    horizon = HEIGHT // 2
    sky = _sky(slope[:, :horizon], view_angle[:, None, :])
    floor = _floor(eyes.position.astype(np.float32), ray_x, ray_y, eye, slope[:, horizon:])
    picture = np.concatenate([sky, floor], 1)
    world = np.arange(len(walls))[:, None]
    base = _WALLS[colours[world, hit.y, hit.x]]
    emblem = emblems[world, hit.y, hit.x]
    lit = _wall(base, emblem, hit, np.clip(height, 0, 1))
    picture += (lit - picture) * wall_share[..., None]
    picture = picture.reshape(len(walls), HEIGHT, WIDTH, _OVERSAMPLING, 3).mean(3)
    return np.asarray(np.clip(np.rint(picture), 0, 255), np.uint8)


@dataclass(frozen=True, kw_only=True)
class _Hit:
    """Where each ray meets its wall, arrays [N, columns]; `side` marks faces that look north or south."""

    x: NDArray[np.int64]
    y: NDArray[np.int64]
    side: NDArray[np.bool_]
    depth: Floats
    along: Floats


def _cast(walls: NDArray[np.bool_], position: Floats, ray_x: Floats, ray_y: Floats) -> _Hit:
    """Walk every ray from cell border to cell border until it is inside a wall (Amanatides and Woo, 1987)."""
    start_x, start_y = (
        np.broadcast_to(position[:, :1], ray_x.shape),
        np.broadcast_to(position[:, 1:], ray_y.shape),
    )
    x, y = np.floor(start_x).astype(np.int64), np.floor(start_y).astype(np.int64)
    span_x, span_y = (1 / np.maximum(np.abs(ray), np.float32(1e-6)) for ray in (ray_x, ray_y))
    next_x = np.where(ray_x < 0, start_x - x, x + 1 - start_x) * span_x
    next_y = np.where(ray_y < 0, start_y - y, y + 1 - start_y) * span_y
    side = np.zeros(x.shape, bool)
    depth = np.zeros(x.shape, np.float32)
    world = np.arange(len(walls))[:, None]
    going = np.ones(x.shape, bool)
    for _ in range(_MAX_CELLS):
        if not going.any():
            break
        over_y = next_y <= next_x
        side = np.where(going, over_y, side)
        depth = np.where(going, np.where(over_y, next_y, next_x), depth)
        go_x, go_y = going & ~over_y, going & over_y
        x, y = x + np.where(ray_x < 0, -1, 1) * go_x, y + np.where(ray_y < 0, -1, 1) * go_y
        next_x, next_y = next_x + span_x * go_x, next_y + span_y * go_y
        going &= ~walls[world, y, x]
    # Cell numbers are int64, which would turn everything after this into float64.
    depth = np.maximum(depth, 0.05).astype(np.float32)
    point = np.where(side, start_x + depth * ray_x, start_y + depth * ray_y)
    return _Hit(x=x, y=y, side=side, depth=depth, along=point - np.floor(point))


def _smooth(value: Floats, low: float, high: float) -> Floats:
    """0 below `low`, 1 above `high`, smooth between."""
    t = np.clip((value - np.float32(low)) / np.float32(high - low), 0, 1)
    return np.asarray(t * t * (3 - 2 * t), np.float32)


def _fog(depth: Floats) -> Floats:
    return np.asarray(1 - np.exp(-np.maximum(depth - 1, 0) * np.float32(0.11)), np.float32)


def _wall(base: Floats, emblem: NDArray[np.int8], hit: _Hit, v: Floats) -> Floats:
    """Colours [N, H, columns, 3] of walls from the height v [N, H, columns] on them."""
    u = hit.along[:, None, :]
    courses = np.cos(v * np.float32(8 * np.pi)) * np.float32(0.035)
    panel = _smooth(np.minimum(u, 1 - u), 0.0, 0.10)
    light = (0.72 + 0.28 * panel) * (0.80 + 0.20 * _smooth(v, 0.0, 0.35)) * (1 + courses)
    light = light * np.where(hit.side, np.float32(0.80), np.float32(1.0))[:, None, :]
    coping = _smooth(v, 0.88, 0.93)
    colour = base[:, None, :, :] * light[..., None]
    colour = (
        colour + (np.minimum(base * 1.25 + 18, 255)[:, None] * light[..., None] - colour) * coping[..., None]
    )
    mark = _emblem(emblem[:, None, :], u, v)[..., None]
    colour = colour + (_EMBLEMS[emblem][:, None] * light[..., None] - colour) * mark
    return np.asarray(colour + (_HORIZON - colour) * _fog(hit.depth)[:, None, :, None], np.float32)


def _emblem(emblem: NDArray[np.int8], u: Floats, v: Floats) -> Floats:
    """How much of the emblem's colour shows at (u, v): a sun, an arched window, a ring, a banner."""
    x, y = u - np.float32(0.5), v - np.float32(0.52)
    radius = np.sqrt(x * x + y * y)
    sun = 1 - _smooth(radius, 0.20, 0.26)
    arch = np.where(y < 0.06, np.abs(x), np.sqrt(x * x + (y - np.float32(0.06)) ** 2))
    window = (1 - _smooth(arch, 0.18, 0.23)) * _smooth(y, -0.30, -0.25)
    ring = 1 - _smooth(np.abs(radius - np.float32(0.21)), 0.05, 0.10)
    banner = (1 - _smooth(np.abs(x), 0.15, 0.20)) * _smooth(y + np.abs(x) * np.float32(-0.6), -0.36, -0.31)
    banner = banner * (1 - _smooth(y, 0.27, 0.31))
    share = np.select([emblem == 1, emblem == 2, emblem == 3, emblem == 4], [sun, window, ring, banner], 0.0)
    return np.asarray(share, np.float32)


def _sky(slope: Floats, angle: Floats) -> Floats:
    """Colours [N, H, columns, 3] above the horizon: a fixed panorama, so that it tells the direction."""
    up = np.maximum(-slope, 0)
    sky = _HORIZON + (_SKY_TOP - _HORIZON) * _smooth(up, 0.02, 0.42)[..., None]
    away = np.abs((angle - np.float32(0.9) + np.float32(np.pi)) % np.float32(2 * np.pi) - np.float32(np.pi))
    glow = np.exp(-(away**2 + (up - np.float32(0.24)) ** 2 * 2) * 9)
    disc = 1 - _smooth(np.sqrt(away**2 + (up - np.float32(0.24)) ** 2), 0.07, 0.10)
    sky = sky + (_SUN - sky) * np.maximum(glow * np.float32(0.6), disc)[..., None]
    ridge = 0.10 + 0.045 * np.sin(3 * angle + 1) + 0.03 * np.sin(7 * angle) + 0.015 * np.sin(13 * angle + 2)
    mountain = (1 - _smooth(up - ridge, -0.012, 0.012)) * np.float32(0.85)
    return np.asarray(sky + (_MOUNTAINS - sky) * mountain[..., None], np.float32)


def _floor(position: Floats, ray_x: Floats, ray_y: Floats, eye: Floats, slope: Floats) -> Floats:
    """Colours [N, H, columns, 3] of the floor: soft flagstones that fade with distance."""
    depth = eye / np.maximum(slope, np.float32(1e-3))
    x = position[:, 0, None, None] + depth * ray_x[:, None, :]
    y = position[:, 1, None, None] + depth * ray_y[:, None, :]
    two_pi = np.float32(2 * np.pi)
    stones = np.sin(x * two_pi) * np.sin(y * two_pi) * np.exp(-depth * np.float32(0.35))
    colour = _FLOOR + (_FLOOR_LIGHT - _FLOOR) * (np.float32(0.5) + np.float32(0.5) * stones)[..., None]
    return np.asarray(colour + (_HORIZON - colour) * _fog(depth)[..., None], np.float32)
