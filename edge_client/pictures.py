"""Pictures as SVG: colours for light and dark, text that stays text.

matplotlib (extra `simulate`) draws in the light colours. A style sheet within the picture exchanges them where a reader
prefers dark ones; a viewer that knows no style sheets shows the light ones.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib.util import find_spec
from io import StringIO
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from .errors import RuntimeMissing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED, GRID, CARD = "#17202e", "#55617a", "#d9dfe8", "#ffffff"
LINES = ("#0b62b5", "#c44900", "#0a7d5a", "#9c3a93", "#8a6a00", "#3a4253", "#c2185b", "#4b52c4")
"""Told apart by those who see few colours, and with a contrast of 3 on the card."""
_DARK_LINES = ("#6cb0ff", "#ff9457", "#3fc796", "#e08fd8", "#d9bb3d", "#cfd6e2", "#ff7aa8", "#a3a8ff")
DARK = {
    INK: "#e6ebf2", MUTED: "#a2aec0", GRID: "#303a49", CARD: "#191f29",
    **dict(zip(LINES, _DARK_LINES, strict=True)),
}  # fmt: skip
SVG = "http://www.w3.org/2000/svg"


def require_drawing(what: str) -> None:
    """Refuse what ends in a picture, before it works for it, where none can be drawn."""
    if find_spec("matplotlib") is None:
        raise RuntimeMissing(what, "simulate")


def styled(name: str) -> AbstractContextManager[None]:
    """Within it, matplotlib draws in this style a picture of this name."""
    import matplotlib as mpl

    library: Any = mpl
    settings = {
        "svg.fonttype": "none", "svg.hashsalt": name, "font.size": 10, "text.color": INK, "axes.labelcolor": MUTED,
        "xtick.color": GRID, "ytick.color": GRID, "xtick.labelcolor": MUTED, "ytick.labelcolor": MUTED,
        "axes.edgecolor": GRID, "grid.color": GRID, "grid.linewidth": 0.6, "axes.spines.top": False,
        "axes.spines.right": False, "figure.facecolor": CARD, "axes.facecolor": "none", "legend.frameon": False,
    }  # fmt: skip
    context: AbstractContextManager[None] = library.rc_context(settings)
    return context


def style_sheet() -> str:
    """Exchanges each colour, wherever it is used, for readers who prefer dark."""
    rules = [
        f'[style*="{use}: {light}"] {{ {use}: {dark} !important; }}'
        for light, dark in DARK.items()
        for use in ("fill", "stroke")
    ]
    return f"@media (prefers-color-scheme: dark) {{ {' '.join(rules)} }}"


def as_svg(figure: Figure, title: str, description: str, name: str) -> str:
    """Draw a figure as SVG, with a name and a description for those who do not see it, and both colour schemes."""
    out = StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    ET.register_namespace("", SVG)
    ET.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = ET.fromstring(out.getvalue())  # noqa: S314 -- matplotlib wrote it
    metadata = root.find(f"{{{SVG}}}metadata")
    if metadata is not None:
        root.remove(metadata)
    for element in root.iter():
        for key, value in element.attrib.items():
            if key == "id":
                element.set(key, f"{name}-{value}")
            elif value.startswith("#") and key.endswith("href"):
                element.set(key, f"#{name}-{value[1:]}")
            elif "url(#" in value:
                element.set(key, value.replace("url(#", f"url(#{name}-"))
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title {name}-description")
    for position, (tag, text) in enumerate((("title", title), ("desc", description), ("style", style_sheet()))):
        element = ET.Element(f"{{{SVG}}}{tag}")
        element.text = text
        if tag != "style":
            element.set("id", f"{name}-{'title' if tag == 'title' else 'description'}")
        root.insert(position, element)
    return ET.tostring(root, encoding="unicode")
