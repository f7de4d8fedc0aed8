"""Histograms on a logarithmic axis, as bars and ticks in the units of a drawing.

It sees numbers only; a template turns the result into SVG.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 480.0, 150.0  # of the area that bars fill, in units of the drawing
_MAX_BINS = 32


@dataclass(frozen=True)
class Bar:
    x: float
    width: float
    height: float
    text: str  # says what it counts, and how many


@dataclass(frozen=True)
class Tick:
    x: float
    text: str


@dataclass(frozen=True)
class Plot:
    title: str
    note: str
    bars: tuple[Bar, ...]
    ticks: tuple[Tick, ...]


def size_plot(sides: NDArray[np.float64]) -> Plot:
    """Square roots of box areas, in pixels."""
    quarters = np.percentile(sides, [10, 50, 90])
    note = "10 % are below {:.0f} px, half below {:.0f}, 90 % below {:.0f}.".format(*quarters)
    return _plot(sides, title="Box size, square root of the area in pixels", note=note, text=_side)


def ratio_plot(ratios: NDArray[np.float64]) -> Plot:
    """Width over height of boxes."""
    quarters = np.percentile(ratios, [10, 50, 90])
    note = "10 % are below {:.2f}, half below {:.2f}, 90 % below {:.2f}.".format(*quarters)
    return _plot(ratios, title="Box shape, width over height", note=note, text=_ratio)


def _side(exponent: float) -> str:
    return f"{2.0**exponent:.3g}"


def _ratio(exponent: float) -> str:
    return f"{2.0**exponent:.3g}:1" if exponent >= 0 else f"1:{2.0**-exponent:.3g}"


def _plot(
    values: NDArray[np.float64], *, title: str, note: str, text: Callable[[float], str]
) -> Plot:
    logs = np.log2(np.clip(values, 2.0**-20, None))
    low, high = np.floor(logs.min()), np.ceil(logs.max())
    high = max(high, low + 2)
    per_octave = max(1, min(4, int(_MAX_BINS // (high - low))))
    edges = np.linspace(low, high, int(high - low) * per_octave + 1)
    counts, _ = np.histogram(logs, edges)
    step, most = WIDTH / len(counts), counts.max()
    bars = tuple(
        Bar(
            i * step, step, HEIGHT * int(count) / int(most),
            f"{text(edges[i])} to {text(edges[i + 1])}: {int(count):,}",
        )
        for i, count in enumerate(counts)
    )  # fmt: skip
    every = max(1, int(np.ceil((high - low) / 8)))  # more words would touch
    octaves = np.arange(low, high + 1, every)
    scale = WIDTH / (high - low)
    ticks = tuple(Tick(float((octave - low) * scale), text(octave)) for octave in octaves)
    return Plot(title, note, bars, ticks)
