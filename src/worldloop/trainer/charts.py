"""Line charts and contact sheets drawn with Pillow alone.

Owns the drawing. Knows nothing of what is drawn. Called by `report`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

COLOURS: Final = ("#1668b8", "#d1491b", "#2c8a3d", "#8446a8", "#8a6a1c", "#c22f71", "#3a8f96", "#555555",
                  "#9a9a9a", "#000000")  # fmt: skip
_INK, _GRID, _PAPER, _TARGET = "#222222", "#dddddd", "#ffffff", "#999999"
_PANEL: Final = (640, 400)
_MARGIN: Final = (70, 44, 22, 92)
"""Left, top, right and bottom of a panel's plot; the legend is below it."""
_TICKS: Final = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One panel.

    Attributes:
        title, x_label, y_label: as printed.
        x: positions, rising.
        series: by name, one value a position, None for a gap.
        log_x: logarithmic positions, which must be above 0.
        target: value of a dashed line, or None.
        y_range: (low, high), or None to fit the values.
    """

    title: str
    x_label: str
    y_label: str = ""
    x: list[float]
    series: dict[str, list[float | None]]
    log_x: bool = False
    target: float | None = None
    y_range: tuple[float, float] | None = None


def sheet(curves: list[Curve]) -> Image.Image:
    """Panels, two in a row."""
    rows = max(1, math.ceil(len(curves) / 2))
    page = Image.new("RGB", (_PANEL[0] * 2, _PANEL[1] * rows), _PAPER)
    for place, curve in enumerate(curves):
        page.paste(panel(curve), (place % 2 * _PANEL[0], place // 2 * _PANEL[1]))
    return page


def panel(curve: Curve) -> Image.Image:
    """One chart, 640 x 400."""
    image = Image.new("RGB", _PANEL, _PAPER)
    draw = ImageDraw.Draw(image)
    plot = _Plot(curve)
    draw.text((_MARGIN[0], 10), curve.title, _INK, _font(16))
    for value, label in plot.y_ticks():
        y = plot.y(value)
        draw.line((plot.left, y, plot.right, y), _GRID)
        draw.text((plot.left - 8, y), label, _INK, _font(12), anchor="rm")
    for value, label in plot.x_ticks():
        x = plot.x(value)
        draw.line((x, plot.top, x, plot.bottom), _GRID)
        draw.text((x, plot.bottom + 6), label, _INK, _font(12), anchor="mt")
    if curve.target is not None:
        y = plot.y(curve.target)
        for x in range(plot.left, plot.right, 10):
            draw.line((x, y, x + 5, y), _TARGET, 2)
        draw.text((plot.right - 4, y + 4), f"target {curve.target:g}", _TARGET, _font(12), anchor="rt")
    for colour, values in zip(_colours(len(curve.series)), curve.series.values(), strict=True):
        _line(draw, plot, curve.x, values, colour)
    draw.line((plot.left, plot.top, plot.left, plot.bottom, plot.right, plot.bottom), _INK)
    draw.text(((plot.left + plot.right) / 2, plot.bottom + 24), curve.x_label, _INK, _font(12), anchor="mt")
    draw.text((_MARGIN[0], 30), curve.y_label, _INK, _font(12))
    _legend(draw, curve, plot)
    return image


def contact(
    strips: list[tuple[str, NDArray[np.uint8]]], columns: list[str], *, head: str = "latent"
) -> Image.Image:
    """Rows of pictures, uint8 `[columns, H, W, 3]` each, a label on the left, above the columns what `head` names."""
    height, width = strips[0][1].shape[1:3]
    label, top_margin, gap = 84, 26, 6
    size = (label + len(columns) * (width + gap), top_margin + len(strips) * (height + gap))
    page = Image.new("RGB", size, _PAPER)
    draw = ImageDraw.Draw(page)
    draw.text((gap, top_margin / 2), head, _INK, _font(13), anchor="lm")
    for column, name in enumerate(columns):
        draw.text(
            (label + column * (width + gap) + width / 2, top_margin / 2), name, _INK, _font(13), anchor="mm"
        )
    for row, (name, pictures) in enumerate(strips):
        top = top_margin + row * (height + gap)
        draw.multiline_text((gap, top + height / 2), name.replace(" ", "\n"), _INK, _font(13), anchor="lm")
        for column, picture in enumerate(pictures):
            page.paste(Image.fromarray(picture), (label + column * (width + gap), top))
    return page


class _Plot:
    """Where values of a curve stand on its panel, in pixels."""

    def __init__(self, curve: Curve) -> None:
        self.left, self.top = _MARGIN[0], _MARGIN[1] + 6
        self.right, self.bottom = _PANEL[0] - _MARGIN[2], _PANEL[1] - _MARGIN[3]
        self._log = curve.log_x
        self._xs = curve.x or [0.0, 1.0]
        values = [v for series in curve.series.values() for v in series if v is not None]
        values += [] if curve.target is None else [curve.target]
        low, high = curve.y_range or (min(values, default=0.0), max(values, default=1.0))
        pad = 0.0 if curve.y_range else (high - low) * 0.05 or 0.5
        self._low, self._high = low - pad, high + pad

    def x(self, value: float) -> float:
        low, high, value = (math.log(v) if self._log else v for v in (self._xs[0], self._xs[-1], value))
        return self.left + (value - low) / ((high - low) or 1.0) * (self.right - self.left)

    def y(self, value: float) -> float:
        value = min(max(value, self._low), self._high)
        return self.bottom - (value - self._low) / (self._high - self._low) * (self.bottom - self.top)

    def x_ticks(self) -> list[tuple[float, str]]:
        if self._log or len(self._xs) <= 2 * _TICKS:
            return [(value, f"{value:g}") for value in self._xs]
        return [(value, f"{value:g}") for value in _round_ticks(self._xs[0], self._xs[-1])]

    def y_ticks(self) -> list[tuple[float, str]]:
        return [(value, f"{value:g}") for value in _round_ticks(self._low, self._high)]


def _round_ticks(low: float, high: float) -> list[float]:
    """About `_TICKS` round numbers from low to high."""
    rough = (high - low) / _TICKS or 1.0
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= rough)
    return [round(n * step, 12) for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _line(
    draw: ImageDraw.ImageDraw, plot: _Plot, xs: list[float], values: list[float | None], colour: str
) -> None:
    points = [(plot.x(x), plot.y(v)) for x, v in zip(xs, values, strict=True) if v is not None]
    if len(points) > 1:
        draw.line(points, colour, 3, joint="curve")
    if len(points) <= 40:
        for x, y in points:
            draw.ellipse((x - 3.5, y - 3.5, x + 3.5, y + 3.5), colour)


def _legend(draw: ImageDraw.ImageDraw, curve: Curve, plot: _Plot) -> None:
    x, y = plot.left, plot.bottom + 46
    for colour, name in zip(_colours(len(curve.series)), curve.series, strict=True):
        width = 34 + int(_font(12).getlength(name))
        if x > plot.left and x + width > _PANEL[0] - 8:
            x, y = plot.left, y + 20
        draw.line((x, y + 7, x + 16, y + 7), colour, 3)
        draw.text((x + 21, y), name, _INK, _font(12))
        x += width


def _colours(count: int) -> list[str]:
    return [COLOURS[place % len(COLOURS)] for place in range(count)]


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
