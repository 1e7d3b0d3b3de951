"""Draw the picture of README: host time of a call, four models, four ways to call them.

From benchmarks/results/models.json, as an SVG for light pages and one for dark ones. By
path, this writes both into docs/images.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
MODELS: Final = {
    "gpt2": "GPT-2, a text of 64",
    "llama_decode": "Llama, a token, static cache",
    "bert": "BERT, with a mask",
    "vit": "ViT, one image",
}
WAYS: Final = {
    "eager": "eager",
    "trees": "torch.compile, reduce-overhead",
    "by hand": "CUDA graph by hand",
    "other inputs": "Sapwood",
}
LEFT: Final = 214
WIDTH: Final = 720
BAR: Final = 15
GAP: Final = 22
TOP: Final = 64
LEAST: Final = 5.0
MOST: Final = 10_000.0


class Look(NamedTuple):
    """Colors of a page: text, faint text, lines, and a bar of each way."""

    text: str
    faint: str
    line: str
    bars: tuple[str, str, str, str]


LOOKS: Final = {
    "light": Look(
        "#1f2328", "#59636e", "#d1d9e0", ("#b9c0c8", "#8fa3b8", "#6b7f94", "#2f7d4f")
    ),
    "dark": Look(
        "#f0f6fc", "#9198a1", "#3d444d", ("#4b535d", "#5f7389", "#8296ab", "#4cb57a")
    ),
}


def place(microseconds: float) -> float:
    """Return how far to the right a time is, on a scale of powers of ten."""
    share = math.log(microseconds / LEAST) / math.log(MOST / LEAST)
    return LEFT + share * (WIDTH - LEFT - 56)


def text(x: float, y: float, words: str, color: str, **more: Any) -> str:
    """Return words at a place."""
    others = "".join(
        f' {name.replace("_", "-")}="{value}"' for name, value in more.items()
    )
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{color}"{others}>{words}</text>'


def draw(rows: dict[str, Any], look: Look) -> str:
    """Return the picture as SVG."""
    parts, y = [], TOP
    for key, title in MODELS.items():
        middle = y + 2 * BAR + 4
        parts.append(text(LEFT - 10, middle, title, look.text, text_anchor="end"))
        for (column, _), color in zip(WAYS.items(), look.bars, strict=True):
            host = rows[key]["columns"][column]["host"]
            width = place(host) - LEFT
            parts.append(
                f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 2}" '
                f'fill="{color}"/>'
            )
            said = f"{host:,.0f}"
            parts.append(
                text(LEFT + width + 5, y + BAR - 4, said, look.faint, font_size=11)
            )
            y += BAR
        y += GAP
    for power in (10, 100, 1_000, 10_000):
        x = place(power)
        line = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{y - GAP + 4}"'
        parts.insert(0, f'{line} stroke="{look.line}"/>')
        parts.append(
            text(x, y, f"{power:,}", look.faint, text_anchor="middle", font_size=11)
        )
    x = 0.0
    for name, color in zip(WAYS.values(), look.bars, strict=True):
        parts.append(
            f'<rect x="{x:.0f}" y="34" width="11" height="11" fill="{color}"/>'
        )
        parts.append(text(x + 16, 44, name, look.faint, font_size=12))
        x += 34 + 6.6 * len(name)
    title = "Host time of a call, in microseconds (one H200, powers of ten)"
    parts.append(text(0, 16, title, look.text, font_size=14, font_weight=600))
    inside = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 10}" '
        f'role="img" aria-label="{title}" font-family="system-ui, sans-serif" '
        f'font-size="13">\n{inside}\n</svg>\n'
    )


def pictures() -> dict[str, str]:
    """Return the pictures by the names of their files."""
    found = json.loads((ROOT / "benchmarks/results/models.json").read_text())
    return {
        f"host-time-{name}.svg": draw(found["rows"], look)
        for name, look in LOOKS.items()
    }


def main() -> None:
    """Write the pictures."""
    folder = ROOT / "docs/images"
    folder.mkdir(exist_ok=True)
    for name, picture in pictures().items():
        (folder / name).write_text(picture)


if __name__ == "__main__":
    main()
