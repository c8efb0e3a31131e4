"""Names beside points, where they do not cover each other."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from tfsim.plots.style import INK, settle

# Where a name may stand: offset from its point in points, and which side of it that is.
_PLACES = (
    (6, 0, "left", "center"), (-6, 0, "right", "center"), (0, 6, "center", "bottom"), (0, -6, "center", "top"),
    (5, 8, "left", "bottom"), (-5, 8, "right", "bottom"), (5, -8, "left", "top"), (-5, -8, "right", "top"),
    (14, 18, "left", "bottom"), (-14, 18, "right", "bottom"), (14, -18, "left", "top"), (-14, -18, "right", "top"),
)  # fmt: skip
_DOT, _MARK = 4.0, 9.0  # half the width of a dot and of a mark, in points
_LETTER, _LINE = 0.56, 1.25  # width of a letter and height of a line, in font sizes

Box = tuple[float, float, float, float]


def name_points(
    axes: Axes, points: Sequence[tuple[float, float, str]], avoid: Sequence[tuple[float, float]] = (), size: float = 8.0
) -> None:
    """Dots at (x, y) with their names, each at the first of a dozen places that covers no dot, no name and no mark to
    ``avoid``.

    Call it last: the places hold for the axes' limits and the figure's layout as they are.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    settle(figure)
    unit = figure.dpi / 72
    dots = [axes.transData.transform((x, y)) / unit for x, y, _ in points]
    frame = axes.get_window_extent()
    inside = (frame.x0 / unit, frame.y0 / unit, frame.x1 / unit, frame.y1 / unit)
    marks = [axes.transData.transform(mark) / unit for mark in avoid]
    sized = [*((dot, _DOT) for dot in dots), *((mark, _MARK) for mark in marks)]
    taken: list[Box] = [(x - half, y - half, x + half, y + half) for (x, y), half in sized]
    for i, (x, y, name) in enumerate(points):
        width, height = _LETTER * size * len(name), _LINE * size
        others = taken[:i] + taken[i + 1 :]
        boxes = [_box(dots[i][0] + p[0], dots[i][1] + p[1], width, height, p[2], p[3]) for p in _PLACES]
        free = [j for j, box in enumerate(boxes) if _within(box, inside) and not any(_meet(box, o) for o in others)]
        place = _PLACES[free[0] if free else 0]
        taken.append(boxes[free[0] if free else 0])
        axes.scatter([x], [y], s=22, color=INK, linewidths=0, zorder=5)
        axes.annotate(name, (x, y), xytext=place[:2], textcoords="offset points", ha=place[2], va=place[3],
                      fontsize=size, zorder=6)  # fmt: skip


def _box(x: float, y: float, width: float, height: float, ha: str, va: str) -> Box:
    left = x - {"left": 0.0, "center": 0.5, "right": 1.0}[ha] * width
    low = y - {"bottom": 0.0, "center": 0.5, "top": 1.0}[va] * height
    return left, low, left + width, low + height


def _meet(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _within(a: Box, b: Box) -> bool:
    return a[0] >= b[0] and a[1] >= b[1] and a[2] <= b[2] and a[3] <= b[3]
