"""A figure of the report: drawn once, kept as SVG that follows the page's colours and as PNG beside the page."""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by colour-blind readers; lines differ in style as well.
INK, MUTED, GRID = "#1b1f24", "#5f6873", "#d8dde3"
BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"
VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", BLUE: "blue", ORANGE: "orange", GREEN: "green"}
STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "leonardo",
}


@dataclass(frozen=True)
class Plot:
    """One figure of the report.

    Attributes:
        name: of the PNG file; ``title`` above, ``caption`` below, ``alt`` for those who cannot see it.
        svg: for inlining into HTML, ``""`` where there was nothing to draw (``caption`` then says why).
        png: the file's content, white background.
    """

    name: str
    title: str
    caption: str
    alt: str = ""
    svg: str = ""
    png: bytes = b""


def draw_plot(
    name: str, title: str, caption: str, draw: Callable[[Axes], bool], alt: str, wide: bool = False, rows: int = 0
) -> Plot:
    """Draw with ``draw``, which returns whether there was anything to draw."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.4 if wide else 4.7, 0.9 + 0.36 * rows if rows else 2.5), layout="constrained")
        axes = figure.subplots()
        if not draw(axes):
            return Plot(name, title, "Not recorded in this run.")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, borderaxespad=0.1, handlelength=1.4,
                        columnspacing=1.2)  # fmt: skip
        image, drawing = io.BytesIO(), io.StringIO()
        figure.savefig(image, format="png", dpi=160, facecolor="white", metadata={"Description": alt})
        figure.set_layout_engine("none")  # laid out by now; doing it again costs as much as drawing
        figure.savefig(drawing, format="svg", transparent=True)
    return Plot(name, title, caption, alt, _inline(drawing.getvalue(), name), image.getvalue())


def _inline(svg: str, name: str) -> str:
    """An SVG file's root element for use inside HTML: no addresses, no styles that would leak, ids of its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*|<style.*?</style>\s*|<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r'(\sid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r'<svg[^>]*?(viewBox="[^"]*")[^>]*>', r'<svg \1 aria-hidden="true">', svg, count=1)
    svg = re.sub(r"'DejaVu Sans'(, sans-serif)?", "system-ui, sans-serif", svg)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var(--{variable})")
    return svg.strip()
