"""What the commands share that import somebody else's network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from vinoreward.errors import VinorewardError

_IN_OPTIONS = (
    (r"give Bundle\.from_\w+ the arguments ", "give "),
    (r"give Bundle\.from_\w+ ", "give "),
    (r"height=, width=|height=|width=", "--size HEIGHT WIDTH"),
    (r"correct height and width", "correct --size"),
    (r"(labels|layout|mean|std|scale|output)=(?=[ ,.;])", r"--\1"),
    (r"success_label=", "--success-label "),
    (r"output='(\w+)'", r"--output \1"),
    (r"correct outputs=|with outputs=", "with --outputs"),
    (r"\boutputs is", "--outputs is"),
    (r"posterior=True", "--posterior"),
    (r"posterior=False", "--no-posterior"),
    (r"posterior=None", "no --posterior or --no-posterior"),
    (r"latent_size=None", "no --latent"),
    (r"latent_size= ", "--latent "),
    (r"latent_size=", "--latent "),
    (r"color_order='(\w+)'", r"--color-order \1"),
    (r"color_order=(?=[ ,.;])", "--color-order"),
    (r"\bscale=(\d+)", r"--scale \1"),
    (r"mean (0|0\.5) and std (1|0\.5)", r"--mean \1 \1 \1 and --std \2 \2 \2"),
    (r"ImageNet's mean and std", "--mean 0.485 0.456 0.406 and --std 0.229 0.224 0.225"),
    (r"look at mean, std and scale", "look at --mean, --std and --scale"),
    (r"; give --image-size \d+ \d+ to resize them all", "; bring them to one"),
    (r"capture more, or raise --frames", "put more into --images"),
    (r"with --data", "with --images"),
    (
        r"if you trust its source, load it with trusted=True \([^)]*\)",
        "export it again from usual operators, with its weights inside the file",
    ),
)
"""The library's names of arguments, and this command's options."""


@contextmanager
def in_options() -> Iterator[None]:
    """Name this command's options in errors that name the library's arguments."""
    try:
        yield
    except VinorewardError as error:
        raise type(error)(as_options(str(error))) from error


def as_options(text: str) -> str:
    """Return a text with this command's options for the library's arguments."""
    for pattern, option in _IN_OPTIONS:
        text = re.sub(pattern, option, text)
    return text
