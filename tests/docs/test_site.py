"""The project's own site, in a real browser."""

from __future__ import annotations

import base64
import struct
import zlib

import pytest

PAGES = {
    "index.html": "Sapwood",
    "graph.html": "Graphed functions",
    "map/sapwood.tree.choose.decide.html": "sapwood.tree.choose.decide",
}
WIDTHS = {"wide": 1440, "narrow": 390}


def _colours(png):
    """Return the bytes of a PNG's rows; few of them where nothing is drawn."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, data = 8, b""
    while at < len(png):
        length, kind = struct.unpack_from(">I4s", png, at)
        data += png[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += length + 12
    return zlib.decompress(data)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_shown(site, chromium, page, width, scheme):
    """Nothing overflows to the side, nothing is logged, and the text can be read."""
    size = {"width": WIDTHS[width], "height": 900, "deviceScaleFactor": 1}
    chromium.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {**size, "mobile": width == "narrow"}
    )
    chromium.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    chromium.get((site / page).as_uri())
    ask = chromium.execute_script
    assert ask("return document.querySelector('h1').firstChild.data") == PAGES[page]
    assert ask("return document.documentElement.scrollWidth") <= WIDTHS[width]
    text, ground = (
        ask(f"return getComputedStyle(document.body).{each}")
        for each in ("color", "backgroundColor")
    )
    light = [sum(map(int, each[4:-1].split(","))) for each in (text, ground)]
    assert (light[0] < light[1]) == (scheme == "light")
    assert abs(light[0] - light[1]) > 300
    shot = base64.b64decode(chromium.get_screenshot_as_base64())
    assert len(set(_colours(shot)[::97])) > 20
    assert chromium.get_log("browser") == []
