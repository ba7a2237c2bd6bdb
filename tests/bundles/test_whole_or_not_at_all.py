"""A save that fails, is stopped or is killed leaves a whole bundle, old or new."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_network import COARSE, PASSED, SPEC, expected_logits, golden_images, network, snapshot

from vinoreward.bundles import save as save_module
from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.locate import previous_of
from vinoreward.bundles.save import save_bundle
from vinoreward.errors import BundleError, ConfigError, ModelNotFoundError, RunFolderError
from vinoreward_training.runs.bundles import add_int8

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def test_an_existing_bundle_is_not_replaced_unasked(bundle: Bundle, model: Path) -> None:
    images = golden_images()
    arguments = (bundle.path, SPEC, {"model.onnx": model}, images, expected_logits(images))
    with pytest.raises(ConfigError, match="overwrite=True"):
        save_bundle(*arguments)
    assert Bundle.load(save_bundle(*arguments, overwrite=True)) == bundle


def test_a_folder_that_is_no_bundle_is_never_replaced(tmp_path: Path, model: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("years of work")
    images = golden_images()
    with pytest.raises(ConfigError, match="something else"):
        save_bundle(
            home, SPEC, {"model.onnx": model}, images, expected_logits(images), overwrite=True
        )
    assert (home / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), RunFolderError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_failed_save_leaves_the_old_bundle_and_nothing_else(
    bundle: Bundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    raised: BaseException,
    expected: type[BaseException],
) -> None:
    before = snapshot(tmp_path)
    images = golden_images()

    def fail(*_: object) -> None:
        raise raised

    monkeypatch.setattr(save_module, "write_json", fail)
    arguments = (SPEC, {"model.onnx": tmp_path / "source.onnx"}, images, expected_logits(images))
    with pytest.raises(expected):
        save_bundle(bundle.path, *arguments, overwrite=True)
    with pytest.raises(expected):
        save_bundle(tmp_path / "new", *arguments)
    assert snapshot(tmp_path) == before
    assert sorted(os.listdir(tmp_path)) == ["source.onnx", "tiny"]
    assert Bundle.load(bundle.path) == bundle


def test_a_failed_rename_puts_the_old_bundle_back(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(tmp_path)
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.suffix == ".part":
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    coarse = network(tmp_path / "coarse.onnx", weights=COARSE)
    before = snapshot(tmp_path)
    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(RunFolderError, match="nothing was changed"):
        add_int8(bundle, coarse, PASSED, expected_logits(golden_images(), COARSE))
    assert snapshot(tmp_path) == before


def test_a_process_killed_while_saving_leaves_the_old_bundle(
    bundle: Bundle, tmp_path: Path
) -> None:
    before = snapshot(bundle.path)
    script = (
        "import os, sys\n"
        "from vinoreward.bundles import save\n"
        "from vinoreward.bundles.bundle import Bundle\n"
        "from vinoreward.bundles.schema import Quantization\n"
        "from vinoreward_training.runs.bundles import add_int8\n"
        "save.write_json = lambda *_: os._exit(9)\n"
        "bundle = Bundle.load(sys.argv[1])\n"
        "quantization = Quantization(passed=True, flips=0, frames=1, method='m')\n"
        "add_int8(bundle, sys.argv[2], quantization, bundle.golden.logits)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(bundle.path), str(tmp_path / "source.onnx")],
        check=False,
    )
    assert done.returncode == 9
    assert snapshot(bundle.path) == before
    assert Bundle.load(bundle.path) == bundle


def test_a_kill_between_the_two_renames_is_repaired(bundle: Bundle, tmp_path: Path) -> None:
    previous = previous_of(bundle.path)
    bundle.path.rename(previous)
    with pytest.raises(ModelNotFoundError, match=r"rename \.tiny\.previous to tiny"):
        Bundle.load(bundle.path)
    images = golden_images()
    with pytest.raises(ConfigError, match="already"):
        save_bundle(
            bundle.path, SPEC, {"model.onnx": tmp_path / "source.onnx"}, images,
            expected_logits(images),
        )  # fmt: skip
    assert Bundle.load(bundle.path) == bundle


def test_names_of_files_and_images_are_checked(tmp_path: Path, model: Path) -> None:
    images = golden_images()
    for files, extra, error in (
        ({"model.onnx": model, "code.py": b""}, {}, ConfigError),
        ({"model.onnx": model}, {"../a.png": model}, BundleError),
        ({"model.onnx": tmp_path / "absent.onnx"}, {}, ModelNotFoundError),
        ({"model.safetensors": b"x"}, {}, ConfigError),
    ):
        with pytest.raises(error):
            save_bundle(tmp_path / "b", SPEC, files, images, expected_logits(images), None, extra)
    assert sorted(os.listdir(tmp_path)) == ["source.onnx", "tiny"]
