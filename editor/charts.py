"""The report's charts as numbers: where each mark goes and what it says, drawn by the template."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from editor.records import CurvePoint, Estimate, Head, HeadEffect, ModelSpec, RandomSets
from editor.wording import MINUS

N_SHADES = 5
"""Shades on each side of the neutral one."""


class Cell(NamedTuple):
    """One head of a map."""

    x: int
    y: int
    css: str
    title: str


class HeadMap(NamedTuple):
    """All heads, layers from left to right, heads from top to bottom."""

    columns: tuple[int, ...]
    """The layer of each column; layers without heads have none."""
    n_rows: int
    cells: tuple[Cell, ...]
    chosen: tuple[Cell, ...]
    """The chosen heads again: their outlines are drawn last, on top."""
    legend: tuple[tuple[str, str], ...]
    """Class and value of each shade, from the lowest to the highest."""


class Tick(NamedTuple):
    """A mark on an axis."""

    at: float
    text: str


class Dot(NamedTuple):
    """A point of the curve."""

    x: float
    y: float
    title: str


class Curve(NamedTuple):
    """The target over the number of heads, in the units of the drawing (x, y down)."""

    width: int
    height: int
    left: int
    bottom: int
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    chosen: tuple[Dot, ...]
    band: str
    """Points of the polygon between the ends of the intervals."""
    random: tuple[Dot, ...]
    random_mean: tuple[Dot, ...]


def grid_of(
    spec: ModelSpec | None, estimates: Iterable[Estimate], heads: Iterable[Head]
) -> dict[int, int]:
    """Heads of each layer; without a spec, as many as the records mention."""
    if spec is not None:
        return {at.layer: at.n_heads for at in spec.layers}
    seen = [*heads, *(effect.head for at in estimates for effect in at.effects)]
    if not seen:
        return {}
    n_heads = 1 + max(head.head for head in seen)
    return {layer: n_heads for layer in range(1 + max(head.layer for head in seen))}


def head_map(
    estimate: Estimate,
    grid: dict[int, int],
    chosen: Iterable[Head],
    universal: Iterable[Head],
    *,
    floor: float = 0.0,
) -> HeadMap:
    """The effect of every head as a coloured cell.

    Args:
        estimate: The effects; a head that it lacks, or that no mask knocked out, stays blank.
        grid: Number of heads of each layer.
        chosen: Heads to outline.
        universal: Heads to hatch; they do not count for the scale.
        floor: The strongest colour stands for at least this effect.
    """
    effects = {effect.head: effect for effect in estimate.effects if effect.n_masks > 0}
    outside = frozenset(universal)
    top = max((floor, *(abs(at.effect) for at in effects.values() if at.head not in outside)))
    columns = tuple(sorted(grid))
    cells: list[Cell] = []
    for x, layer in enumerate(columns):
        for head in (Head(layer, h) for h in range(grid[layer])):
            css, title = _cell_text(effects.get(head), top=top, universal=head in outside)
            cells.append(Cell(x, head.head, css, f"{head}: {title}"))
    marked = {(columns.index(at.layer), at.head) for at in chosen if at.layer in grid}
    return HeadMap(
        columns,
        max(grid.values(), default=0),
        tuple(cells),
        tuple(cell for cell in cells if (cell.x, cell.y) in marked),
        tuple((_shade_class(at), signed(_shade_value(at, top))) for at in _shades()),
    )


def curve_of(points: Sequence[CurvePoint], *, width: int = 640, height: int = 320) -> Curve:
    """Lay out the curve over k in a drawing of `width` by `height` units."""
    left, right, top, bottom = 56, 12, 12, 44
    share, low, high, step = _y_scale(points)
    k_max = max(1, *(point.k for point in points))

    def at_x(k: float) -> float:
        return round(left + (width - left - right) * k / k_max, 1)

    def at_y(value: float) -> float:
        return round(height - bottom - (height - top - bottom) * (value - low) / (high - low), 1)

    def text(value: float) -> str:
        return f"{100 * value:.1f}%" if share else signed(value)

    def dot(k: int, value: float, label: str) -> Dot:
        return Dot(at_x(k), at_y(value), f"{k} {label}: {text(value)}")

    edges = [(at_x(at.k), at_y(at.chosen_ci[1])) for at in points]
    edges += [(at_x(at.k), at_y(at.chosen_ci[0])) for at in reversed(points)]
    k_step = max(1, math.ceil(k_max / 10))
    n_steps = round((high - low) / step)
    y_values = [low + i * step for i in range(n_steps + 1)]
    return Curve(
        width,
        height,
        left,
        height - bottom,
        tuple(Tick(at_x(k), str(k)) for k in range(0, k_max + 1, k_step)),
        tuple(Tick(at_y(v), f"{100 * v:.0f}%" if share else f"{v:.4g}") for v in y_values),
        tuple(
            Dot(
                at_x(at.k),
                at_y(at.chosen),
                f"{at.k} chosen: {text(at.chosen)} "
                f"[{text(at.chosen_ci[0])}, {text(at.chosen_ci[1])}]",
            )
            for at in points
        ),
        " ".join(f"{x},{y}" for x, y in edges),
        tuple(dot(at.k, value, "random") for at in points for value in at.random),
        tuple(
            dot(at.k, sum(at.random) / len(at.random), "random, mean") for at in points if at.random
        ),
    )


class Strip(NamedTuple):
    """Losses on one line: random sets as dots, the chosen set as a mark."""

    width: int
    height: int
    ticks: tuple[Tick, ...]
    random: tuple[Dot, ...]
    chosen: Dot


def strip_of(sets: RandomSets, *, width: int = 640, height: int = 72) -> Strip:
    """Lay out the losses of random sets beside that of the chosen heads."""
    values = [0.0, sets.chosen, *(at.loss for at in sets.sets)]
    low, high, step = _nice(min(values), max(values))
    side, middle = 24, height // 2 - 8

    def at_x(value: float) -> float:
        return round(side + (width - 2 * side) * (value - low) / (high - low), 1)

    ticks = [low + i * step for i in range(round((high - low) / step) + 1)]
    dots = [
        # In turn above and below the line, or equal losses would hide each other.
        Dot(
            at_x(one.loss),
            middle + 5 * (place % 3 - 1),
            f"{', '.join(map(str, one.heads))}: {signed(one.loss)}",
        )
        for place, one in enumerate(sorted(sets.sets, key=lambda one: one.loss))
    ]
    chosen = Dot(at_x(sets.chosen), middle, f"chosen: {signed(sets.chosen)}")
    return Strip(
        width, height, tuple(Tick(at_x(v), f"{v:.4g}") for v in ticks), tuple(dots), chosen
    )


def signed(value: float) -> str:
    """Three significant digits with a sign, or a bare zero."""
    if not value:
        return "0"
    text = f"{value:+.3f}" if abs(value) >= 0.0995 else f"{value:+.2g}"
    return text.replace("-", MINUS)


def _cell_text(effect: HeadEffect | None, *, top: float, universal: bool) -> tuple[str, str]:
    if effect is None:
        return ("u", "universal, kept out of the search") if universal else ("b", "not measured")
    numbers = f"{signed(effect.effect)} [{signed(effect.low)}, {signed(effect.high)}]"
    if universal:
        return "u", f"universal, {numbers}"
    # Faint where the sign is not certain, or noise would look like structure.
    certain = effect.low > 0 or effect.high < 0
    return _shade_class(_shade(effect.effect, top)) + ("" if certain else " w"), numbers


def _shade(effect: float, top: float) -> int:
    """-N_SHADES .. N_SHADES on a square-root scale: a few large effects leave the rest visible."""
    if not top or math.isnan(effect):
        return 0
    return round(math.copysign(N_SHADES * math.sqrt(min(1.0, abs(effect) / top)), effect))


def _shade_value(shade: int, top: float) -> float:
    return math.copysign(top * (shade / N_SHADES) ** 2, shade)


def _shade_class(shade: int) -> str:
    return f"p{shade}" if shade > 0 else f"n{-shade}" if shade else "z"


def _shades() -> range:
    return range(-N_SHADES, N_SHADES + 1)


def _y_scale(points: Sequence[CurvePoint]) -> tuple[bool, float, float, float]:
    """Whether the values are shares; lower end, upper end and step of the axis."""
    values = [value for at in points for value in (at.chosen, *at.chosen_ci, *at.random)]
    low, high = min(values), max(values)
    share = low >= 0 and high <= 1
    if share:
        low = 0.0
    return share, *_nice(low, high)


def _nice(low: float, high: float) -> tuple[float, float, float]:
    """Ends and step of an axis of round numbers that holds both values."""
    span = (high - low) or 1.0
    rough = span / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * at for at in (1, 2, 5, 10) if power * at >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return first * step, max(last, first + 1) * step, step
