"""The picture of the benchmark: an episode's time by contestant, on a logarithmic scale."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure


def draw(episode_ms: Mapping[str, float], path: Path) -> None:
    """Bars of the median episode, the fastest on top, written as PNG to ``path``."""
    names = sorted(episode_ms, key=lambda name: -episode_ms[name])
    figure = Figure(figsize=(8, 0.9 + 0.45 * len(names)), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(names, [episode_ms[name] for name in names], color="#3465a4")
    axes.bar_label(bars, [f"{episode_ms[name]:.0f} ms" for name in names], padding=4)
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.set_xlabel("one episode: reset, ten commands, verification, end (median)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
