"""What the tutorial and the example print for RL Zoo runs, or fits what RL Zoo would do with it."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import gymnasium as gym
import yaml

import vinoreward  # noqa: F401  (registers the environments)

FILE = "examples/rl_zoo/sac.yml"
PAGE = "docs/your-own-robot.md"


def commands(project_root: Path) -> list[list[str]]:
    """Return every RL Zoo command that is printed, trainings before what they left is played."""
    page = (project_root / PAGE).read_text(encoding="utf-8")
    example = (project_root / FILE).read_text(encoding="utf-8")
    text = f"{page}\n" + re.sub(r"^#", " ", example, flags=re.MULTILINE)
    text = text.replace("\\\n", " ")
    found = re.findall(r"^\W*(python -m rl_zoo3\..*)$", text, flags=re.MULTILINE)
    return sorted((shlex.split(line) for line in {" ".join(x.split()) for x in found}), key=str)[
        ::-1
    ]


def option(words: list[str], name: str) -> list[str]:
    """Return the values of an option."""
    if name not in words:
        return []
    rest = words[words.index(name) + 1 :]
    end = next((at for at, word in enumerate(rest) if word.startswith("--")), len(rest))
    return rest[:end]


def test_the_printed_commands_fit_the_file(project_root: Path) -> None:
    entries = yaml.safe_load((project_root / FILE).read_text(encoding="utf-8"))
    trained, enjoyed = set(), set()
    for words in commands(project_root):
        (env,) = option(words, "--env")
        assert option(words, "--gym-packages") == ["vinoreward"]
        if words[2] == "rl_zoo3.enjoy":
            # Where training writes; RL Zoo looks for its own trained agents otherwise.
            assert option(words, "--folder") == ["logs"]
            enjoyed.add(env)
            continue
        trained.add(env)
        assert option(words, "--conf-file") == [FILE]
        # RL Zoo gives the file's env_kwargs to the training environment alone.
        given = (pair.split(":", 1) for pair in option(words, "--eval-env-kwargs"))
        evaluated = {name: ast.literal_eval(value) for name, value in given}
        assert evaluated == entries[env].get("env_kwargs", {})
    assert trained == enjoyed == set(entries)


def test_the_wrapped_environment_steps_as_rl_zoo_makes_it(project_root: Path) -> None:
    for env_id, entry in yaml.safe_load((project_root / FILE).read_text(encoding="utf-8")).items():
        env: gym.Env[Any, Any] = gym.make(env_id, **entry.get("env_kwargs", {}))
        for wrapper in entry.get("env_wrapper", []):
            ((name, arguments),) = wrapper.items()
            module, _, kind = name.rpartition(".")
            env = getattr(importlib.import_module(module), kind)(env, **arguments)
        env.reset(seed=0)
        *_, info = env.step(env.action_space.sample())
        assert "reward_prob" in info and "is_success" in info and "true_success" in info
        env.close()
