"""Links, the site's pages, public names, and figures that stand in two documents."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PUBLIC = {
    "vinoreward": "vinoreward",
    "vinoreward.wrappers": "wrappers",
    "vinoreward.wrappers.vector": "wrappers",
    "vinoreward.wrappers.sb3": "wrappers",
    "vinoreward_actors.actor_learner": "actor_learner",
    "vinoreward_actors.policies": "policies",
    "vinoreward_actors.compression": "compression",
    "vinoreward_actors.correction": "correction",
    "vinoreward_actors.monitoring": "monitoring",
    "vinoreward.errors": "errors",
}
"""Each public package and its page of docs/reference."""


def prose(page: Path) -> str:
    """Return a page without its examples."""
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return what GitHub and the site make of a page's headings."""
    found = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def broken(page: Path, text: str) -> list[str]:
    """Return the relative links of a page's text that lead nowhere."""
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    return wrong


def test_every_relative_link_leads_to_a_file_and_its_heading() -> None:
    wrong = {str(page.relative_to(ROOT)): broken(page, prose(page)) for page in PAGES}
    assert {page: links for page, links in wrong.items() if links} == {}
    bad = "[a](docs/no.md) [b](docs/encoders.md#no) [c](#no) ![d](docs/images/no.png)"
    assert len(broken(ROOT / "README.md", bad)) == 4, "a link to nowhere is noticed"


def test_every_page_is_in_the_sites_navigation() -> None:
    def leaves(nav: object) -> list[str]:
        if isinstance(nav, str):
            return [nav]
        assert isinstance(nav, dict | list)
        inner = nav.values() if isinstance(nav, dict) else nav
        return [leaf for each in inner for leaf in leaves(each)]

    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert config["strict"] is True
    names = [page.relative_to(ROOT).as_posix().removeprefix("docs/") for page in PAGES]
    assert sorted(leaves(config["nav"])) == sorted(names)


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_is_in_the_reference(package: str) -> None:
    if package == "vinoreward.wrappers.sb3":
        pytest.importorskip("stable_baselines3")
    module = importlib.import_module(package)
    names = getattr(module, "__all__", None) or [
        name for name, value in inspect.getmembers(module, inspect.isclass)
        if value.__module__ == package
    ]  # fmt: skip
    page = (ROOT / "docs" / "reference" / f"{PUBLIC[package]}.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^::: ([\w.]+)$", page, flags=re.MULTILINE))
    for each in described:
        pkgutil.resolve_name(each)
    for name in names:
        # The top level repeats names of other pages; a table says which page.
        told = package == "vinoreward" and re.search(rf"`(vinoreward\.)?{name}`", page)
        assert f"{package}.{name}" in described or told, name


def test_every_benchmark_that_is_named_is_there() -> None:
    named = {
        name for page in PAGES for name in re.findall(r"benchmarks/(\w+\.py)", page.read_text())
    }
    assert named and all((ROOT / "benchmarks" / name).is_file() for name in named)


def test_the_readmes_figures_are_those_of_the_benchmarks() -> None:
    figures = (ROOT / "README.md").read_text(encoding="utf-8").split("## Ten figures")[1]
    full = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8").splitlines()
    rows = re.findall(r"^\| .* \| (.*) \| `(python .*)` \|$", figures, re.MULTILINE)
    assert len(rows) == 10
    for figure, command in rows:
        shown = [line.replace("*", "") for line in full if f"`{command}`" in line]
        for each in figure.split("; "):
            assert any(f"| {each} " in line for line in shown), (each, command, shown)
