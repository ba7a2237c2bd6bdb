"""An error carries the argument that is wrong; a command shows it as its option."""

from __future__ import annotations

import pickle

import pytest

from vinoreward.errors import ConfigError, VinorewardError


def test_an_error_makes_its_message_from_its_parts() -> None:
    error = ConfigError(field="exit_threshold", value=2.0, expected="a probability")
    assert str(error) == (
        "found exit_threshold=2.0. Expected a probability; change exit_threshold."
    )
    assert (error.field, error.value, error.expected) == ("exit_threshold", 2.0, "a probability")
    assert error.as_options({"exit_threshold"}) == (
        "found --exit-threshold 2.0. Expected a probability; change --exit-threshold."
    )


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("give `image_size`", "give --image-size"),
        ("give `posterior=True`", "give --posterior"),
        ("give `posterior=False`", "give --no-posterior"),
        ("give `scale=255`", "give scale=255"),
    ],
)
def test_a_command_shows_the_arguments_that_it_has_as_options(message: str, said: str) -> None:
    assert VinorewardError(message).as_options({"image_size", "posterior"}) == said


def test_an_error_survives_a_process() -> None:
    error = pickle.loads(pickle.dumps(ConfigError(field="hold", value=0, expected="1 or more")))
    assert (str(error), error.field) == ("found hold=0. Expected 1 or more; change hold.", "hold")
