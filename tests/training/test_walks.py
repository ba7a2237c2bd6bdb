"""The walks of the docs: a page's commands run as they stand there, with less to do."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from vinoreward_training.cli import main

ROOT = Path(__file__).parents[2]
SHORT = {
    "capture": {"--frames": "120"},
    "finetune": {"--epochs": "1", "--target-fpr": "0.2"},
    "train": {"--timesteps": "105"},
    "play": {},
}
MORE = {
    "train": ["--force", "--final-episodes", "2", "--no-progress"],
    "play": ["--episodes", "2", "--film", "1", "--no-progress"],
}


def commands_of(page: Path) -> list[list[str]]:
    """The command lines in a page's console blocks, without the program's name."""
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = [re.sub(r"\\\n\s*", "", block) for block in blocks]
    return [
        shlex.split(line.removeprefix("$ vinoreward "))
        for line in "\n".join(lines).splitlines()
        if line.startswith("$ vinoreward ")
    ]


def shortened(words: list[str]) -> list[str]:
    name, *options = words
    for option, value in SHORT[name].items():
        if option in options:
            options[options.index(option) + 1] = value
    return [name, *options, *MORE.get(name, [])]


@pytest.mark.slow
def test_the_walk_of_pendulum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pygame", reason="Pendulum draws with gymnasium[classic-control]")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    walk = commands_of(ROOT / "docs" / "pendulum.md")
    assert [words[0] for words in walk] == [
        "capture", "finetune", "quantize", "train", "play", "train",
    ]  # fmt: skip
    for words in walk:
        if words[0] == "quantize":  # refuses a classifier that is near its threshold everywhere
            continue
        # So few pictures make a classifier that finetune calls useless: 3.
        assert main(shortened(words)) in ((0, 3) if words[0] == "finetune" else (0,)), words
    said = capsys.readouterr().out
    assert said.count("true success:") == 3 and "not known (see" not in said
    assert (tmp_path / "runs" / "pendulum-policy" / "play.gif").is_file()
