"""What is installed is locked: by version, by hash, from no particular place."""

from __future__ import annotations

import re
import tomllib

import pytest

pytestmark = pytest.mark.style

LOCKS = ("demo", "dev")
FRAMEWORKS = ("torch",)


def _locked(root, kind) -> set[str]:
    text = (root / f"requirements/{kind}.lock").read_text()
    return {name.lower() for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}


def _names(requirements) -> set[str]:
    texts = [text for text in requirements if isinstance(text, str)]
    return {re.match(r"[\w.-]+", text)[0].lower() for text in texts}


@pytest.mark.parametrize("kind", [*LOCKS, *FRAMEWORKS])
def test_every_requirement_has_a_hash(root, kind):
    """No line of a lock is without a hash, and none names a host."""
    text = (root / f"requirements/{kind}.lock").read_text()
    assert "://" not in text
    for requirement in re.split(r"\n(?=\w)", text)[1:]:
        assert "--hash=sha256:" in requirement


def test_the_locks_cover_the_project(root):
    """All that pyproject.toml asks for is locked: run ``scripts/lock``."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    demo = _names(
        (
            *project["project"]["dependencies"],
            *project["project"]["optional-dependencies"]["demo"],
            *groups["build"],
        )
    )
    assert demo <= _locked(root, "demo")
    for framework in FRAMEWORKS:
        assert _names(groups.pop(framework)) <= _locked(root, framework)
    assert demo.union(*map(_names, groups.values())) <= _locked(root, "dev")


def test_the_demo_is_a_part_of_development(root):
    """Both locks agree on every version that they share."""
    lines = [
        set(re.findall(r"^[\w.-]+==.*?(?= \\$)", text, re.MULTILINE))
        for kind in LOCKS
        for text in [(root / f"requirements/{kind}.lock").read_text()]
    ]
    assert lines[0] <= lines[1]
