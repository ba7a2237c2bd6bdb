"""Files damaged at random end in an error of ours or an answer, never in anything else."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tiny_network import forge, save_tiny

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import BundleError, ModelCorruptError
from vinoreward_actors.policies import load_policy

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("safetensors")
pytest.importorskip("resource")

TRIES = {
    "bundle.json": 400,
    "golden.npz": 300,
    "model.onnx": 200,
    "foreign.onnx": 300,
    "policy.json": 300,
    "policy.safetensors": 200,
}
"""File to the number of mutations; what each does depends on the file and its number alone."""

# No error, or no damage: a file may be changed where nothing reads it, and a changed description
# may be right for another network.
FINE = {"same", "loaded", "described", "other", "other frames that fit"}


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return save_tiny(tmp_path)


def damage(name: str, first: int, last: int) -> tuple[dict[int, str], int]:
    """Try mutations ``first`` to ``last`` in a process; return outcomes, and how it ended."""
    script = Path(__file__).parent / "support" / "file_mutations.py"
    command = [sys.executable, "-W", "ignore", script, name, str(first), str(last)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    outcomes: dict[int, str] = {}
    for text in done.stdout.splitlines():
        if text.startswith('{"'):
            line = json.loads(text)
            told = f"ended the process with {done.returncode}: {done.stderr[-500:]}"
            outcomes[line["number"]] = line.get("outcome", told)
    return outcomes, done.returncode


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(TRIES))
def test_each_mutation_ends_in_a_sentence_or_an_answer(name: str) -> None:
    outcomes: dict[int, str] = {}
    count = TRIES[name]
    while len(outcomes) < count:
        found, code = damage(name, len(outcomes), count)
        assert found or code == 0, "it cannot even begin"
        outcomes |= found
    refused = {number for number, outcome in outcomes.items() if outcome.endswith("Error")}
    fine = {number for number, outcome in outcomes.items() if outcome in FINE}
    assert not {n: outcome for n, outcome in outcomes.items() if n not in refused | fine}
    assert fine and len(refused) > count / 3  # else the mutations do nothing


def zipped(content: bytes, *, flags: int = 0, method: int | None = None) -> bytes:
    """An archive of one array, with the flags and the method that both its headers claim."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", content)
    made = bytearray(stream.getvalue())
    for sign, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        at = made.find(sign) + place
        made[at] |= flags
        if method is not None:
            made[at + 2] = method
    return bytes(made)


def damaged() -> bytes:
    """Deflated data that are none."""
    made = bytearray(zipped(bytes(2000)))
    made[45:50] = b"\xff" * 5
    return bytes(made)


def header(text: str) -> bytes:
    """An array of which there is only a header."""
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode()


BOMB = "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000, 1000000), }\n"


def arrays(*names: str) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **dict.fromkeys(names, np.zeros((2, 2), np.float32)))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (damaged(), "cannot be read"),
        (zipped(b"x", flags=1), "cannot be read"),  # encrypted
        (zipped(b"x", method=12), "cannot be read"),  # BZip2
        (zipped(header(BOMB)), "cannot be read"),
        (zipped(header("(" * 5000)), "cannot be read"),
        (zipped(bytes(65 << 20)), "unpacks to"),
        (arrays("images", "logits", "more"), "holds .*Expected images, logits"),
    ],
)
def test_golden_frames_that_cannot_be_read(bundle: Bundle, content: bytes, says: str) -> None:
    forge(bundle, "golden.npz", content)
    with pytest.raises(BundleError, match=rf"golden\.npz .*{says}"):
        _ = Bundle.load(bundle.path).golden


def test_names_that_are_no_text_and_a_deep_description(bundle: Bundle) -> None:
    content = (bundle.path / "model.onnx").read_bytes()
    for old in (b"logits", b"GlobalAveragePool", b"tiny"):
        forge(bundle, "model.onnx", content.replace(old, old[:-1] + b"\xff"))
        with pytest.raises(ModelCorruptError, match="not UTF-8"):
            Bundle.load(bundle.path).backend()
    for depth in (400, 100_000):
        text = '{"schema_version":' + "[" * depth + "]" * depth + "}"
        (bundle.path / "bundle.json").write_text(text)
        with pytest.raises(BundleError, match=r"bundle\.json.*(name is missing|not valid JSON)"):
            Bundle.load(bundle.path)


def test_a_policy_of_other_types(tmp_path: Path) -> None:
    for text in ("[" * 100_000, "[]", '{"weights": [[]]}', '"\xff"'):
        (tmp_path / "policy.json").write_text(text, encoding="latin-1")
        with pytest.raises(ModelCorruptError, match="cannot be read as a policy"):
            load_policy(tmp_path)


def test_a_home_folder_that_cannot_be_written() -> None:
    """The classifier needs none; the camera says what helps."""
    pytest.importorskip("warp")
    code = (
        "from vinoreward import Classifier\n"
        "from vinoreward.errors import ConfigError\n"
        "classifier = Classifier('panda-hover-classifier')\n"
        "classifier.probability(classifier.bundle.golden.images)\n"
        "from vinoreward_envs.warp_device import warp_module\n"
        "try:\n    warp_module()\nexcept ConfigError as error:\n    print(error)\n"
    )
    off = ("XDG_CACHE_HOME", "WARP_CACHE_PATH")
    environment = {name: value for name, value in os.environ.items() if name not in off}
    environment |= {"HOME": "/dev/null/home", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "set WARP_CACHE_PATH to another folder" in done.stdout
