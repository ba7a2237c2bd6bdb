"""The lowest versions that are allowed, and the exact ones that continuous integration installs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomllib")

ROOT = Path(__file__).parents[2]
CI = {"python_version": "3.11", "python_full_version": "3.11.7", "sys_platform": "linux"}


def requirements() -> list[Requirement]:
    """All of the package and its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    texts = [*project["dependencies"], *(text for extra in extras for text in extra)]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize(
    ("name", "vulnerable"),
    [
        ("pillow", "10.2.0"),  # CVE-2024-28219, a buffer overflow
        ("tqdm", "4.66.2"),  # CVE-2024-34062
        ("onnx", "1.20.1"),  # CVE-2025-51480, CVE-2026-34445: external data
        ("starlette", "0.49.0"),  # CVE-2025-62727, quadratic time
        ("h11", "0.14.0"),  # CVE-2025-43859, request smuggling
        ("torch", "2.5.1"),  # CVE-2025-32434, code in weights_only files
    ],
)
def test_no_version_with_a_known_advisory_is_allowed(name: str, vulnerable: str) -> None:
    found = [each for each in requirements() if each.name == name]
    assert found
    assert not any(vulnerable in each.specifier for each in found)


def test_the_lock_has_hashes_and_what_pyproject_asks_for() -> None:
    lines = (ROOT / ".ci" / "requirements.txt").read_text().splitlines()
    pins = [re.fullmatch(r"([\w.-]+)==(\S+) --hash=sha256:[0-9a-f]{64}", one) for one in lines[1:]]
    assert all(pins), "every line names one file by its hash"
    versions = {canonicalize_name(pin[1]): pin[2] for pin in pins if pin}
    for each in requirements():
        if each.name == "vinoreward" or (each.marker and not each.marker.evaluate(CI)):
            continue
        if (version := versions.get(canonicalize_name(each.name))) is not None:
            assert version in each.specifier, f"renew the lock with .ci/lock: {each}, {version}"
        else:
            assert each.name in OF_OTHER_EXTRAS, f"renew the lock with .ci/lock: {each}"


OF_OTHER_EXTRAS = {"mkdocs", "mkdocs-material", "mkdocstrings", "mkdocstrings-python"}
"""Of the extra ``docs``, which ``dev`` leaves out."""
