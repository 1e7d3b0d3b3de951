"""The page is one file that needs nothing, and in which text is only ever text."""

from __future__ import annotations

import base64
import hashlib
import json
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from sapwood.errors import MisuseError
from sapwood.view import render, report

HOSTILE = (
    "</script><script>owned = 1</script>",
    "<!--<script>",
    "<img src=x onerror='owned = 1'>",
    "{{SCRIPT}}{{DATA}}{{POLICY}}",
    "\u2028\u2029\0\ud800 \u202e",
    "'\"`${owned = 1}&lt;&#60;",
)


class Reader(HTMLParser):
    """Collects a page's elements, and the text inside each kind."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.texts, self.inside = [], {}, None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.texts[tag] = [*self.texts.get(tag, []), ""]
        self.inside = tag

    def handle_endtag(self, _):
        self.inside = None

    def handle_data(self, data):
        if self.inside:
            self.texts[self.inside][-1] += data

    def data(self):
        return json.loads(self.texts["script"][0])


def poison(value, text):
    """Return ``value`` with every text that is free replaced by ``text``."""
    free = {"name", "function", "signature", "text", "path", "role", "address", "made"}
    free |= {"sapwood"}
    if isinstance(value, dict):
        return {
            k: text if k in free and isinstance(v, str) else poison(v, text)
            for k, v in value.items()
        }
    if isinstance(value, list):
        return [poison(v, text) for v in value]
    return value


def test_the_page_holds_the_snapshot(snapshot):
    """What was given can be read back from the page, exactly."""
    assert Reader(render(snapshot)).data() == snapshot


def test_the_page_needs_nothing(snapshot):
    """No element loads anything, and links lead within the page."""
    for tag, attributes in Reader(render(snapshot)).elements:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base"}
        assert not attributes.keys() & {"src", "srcset", "style", "data", "action"}
        assert not [name for name in attributes if name.startswith("on")]
        assert attributes.get("href", "#").startswith("#")


def test_the_policy_allows_this_script_and_style_alone(snapshot):
    """The policy names the digests of what the page holds, and nothing by place."""
    read = Reader(render(snapshot))
    policy = next(
        a["content"]
        for tag, a in read.elements
        if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    allowed = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    for directive, text in (
        ("script-src", read.texts["script"][1]),
        ("style-src", read.texts["style"][0]),
    ):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert allowed[directive] == f"'sha256-{digest}'"
    assert allowed["default-src"] == allowed["base-uri"] == "'none'"
    assert "http" not in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_no_text_becomes_markup(snapshot, text):
    """Whatever functions and stores are called, the page has the same elements."""
    poisoned = poison(snapshot, text)
    read = Reader(render(poisoned))
    assert read.elements == Reader(render(snapshot)).elements
    assert read.data() == poisoned
    render(poisoned).encode()


def test_scripts_only_make_text():
    """No script parses text as markup or as code."""
    scripts = [f for f in (files("sapwood.view") / "page").iterdir() if ".js" in f.name]
    assert scripts
    for script in scripts:
        text = script.read_text()
        for danger in (
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "eval(",
            "Function(",
        ):
            assert danger not in text, script.name
        assert "fetch(" not in text


def test_the_same_snapshot_makes_the_same_page(make_snapshot):
    """A page depends on its snapshot alone."""
    assert render(make_snapshot(12)) == render(make_snapshot(12))
    assert render(make_snapshot(12)) != render(make_snapshot(12, seed=1))


def test_a_thousand_recordings_are_at_most_three_megabytes(make_snapshot):
    """The promised size, with thousands of calls."""
    snapshot = make_snapshot(1000)
    assert len(snapshot["calls"]) > 4000
    assert len(render(snapshot).encode()) <= 3_000_000


def test_a_report_replaces_what_was_there(snapshot, tmp_path):
    """The file is the page, and nothing else is left in the directory."""
    path = tmp_path / "report.html"
    path.write_text("old")
    report(snapshot, path)
    assert path.read_text(encoding="utf-8") == render(snapshot)
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_report_leaves_what_was_there(snapshot, tmp_path):
    """A wrong snapshot, or a target that cannot be replaced, changes nothing."""
    path = tmp_path / "report.html"
    path.mkdir()
    (path / "inside").touch()
    with pytest.raises(MisuseError, match=r"cannot be written to .*report\.html"):
        report(snapshot, path)
    with pytest.raises(MisuseError, match="schema is 3"):
        report(snapshot | {"schema": 3}, tmp_path / "other.html")
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_directory_is_named(snapshot, tmp_path):
    """The message names the file and says what to do."""
    with pytest.raises(MisuseError, match="in a directory that exists"):
        report(snapshot, tmp_path / "nowhere" / "report.html")
