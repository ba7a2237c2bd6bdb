"""calibrate, audit and finetune with any judge: a function of images that a user names."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from image_folders import make_images
from PIL import Image

from vinoreward import Judge
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, ModelNotFoundError, OutputError
from vinoreward.rewards.calibration import clopper_pearson
from vinoreward.rewards.classifier import Classifier, sigmoid
from vinoreward_training.classifier.agreement import compare_with_judge
from vinoreward_training.cli import main
from vinoreward_training.data.dataset import load_dataset
from vinoreward_training.judges import CachedJudge, load_judge
from vinoreward_training.labelling.sources import of_folder

JUDGES = '''
import pathlib
import numpy as np

CALLS = pathlib.Path(__file__).with_name("calls.txt")


def red(images):
    """Honest: a success has a bright red half."""
    with CALLS.open("a") as stream:
        stream.write(f"{len(images)}\\n")
    left = images[:, :, :20].astype(float).mean((1, 2))
    return 1 / (1 + np.exp(-(left[:, 0] - left[:, 1:].mean(1) - 50) / 8))


def corner(images):
    """A planted shortcut: it looks at the brightness of one corner alone."""
    return images[:, :4, :4].mean((1, 2, 3)) / 255


def unsteady(images):
    """Another score each time, and it abstains from some images."""
    scores = np.clip(red(images) + np.random.default_rng().normal(0, 0.05, len(images)), 0, 1)
    return np.where(images[:, 0, 0, 2] % 8 == 0, np.nan, scores)


def breaks(images):
    if CALLS.exists():
        raise TimeoutError("no answer")
    return red(images)


def cell(images):
    """Of the toy corridor: claims the last two cells, which are redder."""
    return 1 / (1 + np.exp(16 - 20 * images[..., 0].mean((1, 2)) / 255))


def blue(images):
    """Of the toy corridor: claims by a colour that says nothing."""
    return images[..., 2].mean((1, 2)) / 255
'''


@pytest.fixture
def judges(tmp_path: Path) -> str:
    path = tmp_path / "judges.py"
    path.write_text(JUDGES)
    return str(path)


def calls(judges: str) -> int:
    """How many images the judges were asked about."""
    file = Path(judges).with_name("calls.txt")
    return sum(map(int, file.read_text().split())) if file.exists() else 0


def write_images(folder: Path, count: int, *, seed: int = 0, corner: bool = False) -> Path:
    """Write labelled images, each of an episode; with a bright ``corner`` in a success."""
    images, labels = make_images(count, seed)
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        if corner:
            image[:4, :4] = 250 if label else 20
        path = folder / ("success" if label else "failure") / f"{index:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path, compress_level=1)
    return folder


def write_pairs(folder: Path, *, corner: bool = False) -> Path:
    """Write images of success, and of the same without its cause."""
    images, labels = make_images(80, 3)
    for number, image in enumerate(images[labels == 1]):
        if corner:
            image[:4, :4] = 250
        without = image.copy()
        without[:, :20, 0] -= 100
        if corner:
            without[:4, :4] = 250
        for name, one in (("success", image), ("removed", without)):
            (folder / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(one).save(folder / name / f"{number:02d}.png")
    return folder


# --- scores that are kept ----------------------------------------------------------------------


def test_no_image_is_scored_twice_in_any_run(judges: str) -> None:
    images = make_images(50)[0]
    first = CachedJudge(f"{judges}:red")
    scores = first(np.concatenate([images, images[::-1]]))
    assert first.calls == calls(judges) == 50
    np.testing.assert_array_equal(scores[:50], scores[50:][::-1])
    first.close()
    again = CachedJudge(f"{judges}:red", max_calls=0)
    np.testing.assert_array_equal(again(images), scores[:50])
    assert again.calls == 0
    # Other code is another judge.
    Path(judges).write_text(JUDGES + "\n# mended\n")
    assert CachedJudge(f"{judges}:red").sha256 != again.sha256


def test_a_spent_budget_is_said_and_the_next_run_goes_on(judges: str) -> None:
    images = make_images(100)[0]
    for run in range(3):
        one = CachedJudge(f"{judges}:red", max_calls=40)
        if run < 2:
            with pytest.raises(ConfigError, match=f"scored 40 images.*and {60 - 40 * run} or more"):
                one(images)
            assert calls(judges) == 40 * (run + 1)
        else:
            assert len(one(images)) == 100 == calls(judges)
        one.close()


def test_what_was_scored_before_a_failure_is_kept(judges: str) -> None:
    images = make_images(80)[0]
    one = CachedJudge(f"{judges}:breaks")
    with pytest.raises(OutputError, match="failed on 32 images: TimeoutError: no answer"):
        one(images)
    assert len(CachedJudge(f"{judges}:breaks", max_calls=0)(images[:32])) == 32


def test_scores_that_change_are_said_with_their_spread(judges: str) -> None:
    images = make_images(60)[0]
    judge = CachedJudge(f"{judges}:unsteady")
    first, spread = judge(images), judge.score_again(images)
    assert (spread.images, judge.calls) == (20, 80)
    assert spread.differ > 0 and "got another score, by up to" in str(spread)
    np.testing.assert_array_equal(judge(images), first)
    assert judge.score_again(images) == spread and judge.calls == 80
    assert "the same scores" in str(CachedJudge(f"{judges}:red").score_again(images))


# --- calibrate ---------------------------------------------------------------------------------


def test_a_calibrated_judge_keeps_threshold_detector_and_rates(
    judges: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, data = f"{judges}:unsteady", write_images(tmp_path / "data", 400)
    with pytest.raises(ModelNotFoundError, match="calibrate --judge"):
        load_judge(name)
    words = ["calibrate", "--judge", name, "--data", str(data), "--target-fpr", "0.05"]
    assert main([*words, "--max-calls", "300"]) == 1
    assert "as --max-calls 300 allows" in capsys.readouterr().err
    assert main(words) == 0
    said, asked = capsys.readouterr().out, calls(judges)
    assert "at most 1460 calls" in said and "got another score" in said
    assert "can support a false-positive rate of" in said
    assert asked <= 1460
    folder = tmp_path / "judges.unsteady"
    record = json.loads((folder / "judge.json").read_text())
    abstained = np.isnan(CachedJudge(name, max_calls=0)(load_dataset(data).images))
    assert f"abstains from {abstained.sum()} of 400" in said and abstained.any()
    assert record["metrics"]["test"]["frames"] < 80
    page = (folder / "report.html").read_text()
    assert "Reliability" not in page and "reliability.png" in page and "roc.png" in page
    judge = load_judge(name)
    assert judge.threshold == record["decision"]["threshold"]
    images, labels = make_images(200, seed=9)
    found = judge.predict(images)
    claimed = (found.probability >= np.float32(judge.threshold)) & (found.ood_score <= 1)
    assert clopper_pearson(int(claimed[labels == 0].sum()), 100, 0.95, "lower")[0] <= 0.05
    assert judge.guard is not None and judge.predict(np.zeros_like(images)).ood_score.min() > 1
    Path(judges).write_text(JUDGES + "\n# mended\n")
    with pytest.raises(ConfigError, match="another version of its file"):
        load_judge(name)


def write_scores(path: Path, episodes: int, *, labels: tuple[str, str] = ("0", "1")) -> Path:
    """Three scores of each episode; those of successes are higher, and too sure of themselves."""
    random = np.random.default_rng(0)
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["score", "label", "episode"])
        for episode in range(episodes):
            for _ in range(3):
                label = int(random.random() < 0.4)
                odds = random.normal(3.0 if label else -3.0, 2.0)
                writer.writerow([f"{sigmoid(4 * odds):.6f}", labels[label], f"run {episode}"])
        writer.writerow(["", labels[1], "run 0"])
    return path


@pytest.mark.parametrize("labels", [("0", "1"), ("nothing", "success")])
def test_scores_of_a_table_get_a_threshold_with_its_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], labels: tuple[str, str]
) -> None:
    table = write_scores(tmp_path / "scores.csv", 400, labels=labels)
    assert main(["calibrate", "--scores", str(table), "--target-fpr", "0.05"]) == 0
    said = capsys.readouterr().out
    record = json.loads((tmp_path / "scores-calibration" / "calibration.json").read_text())
    chosen = record["decision"]["chosen_for"]
    assert chosen["fpr_upper"] <= 0.05 and chosen["episode_fpr_upper"] <= 0.05
    assert "1 of 1201 rows have no score" in said and "can support a false-positive rate" in said
    # The scores' log-odds are four times what they should be, and the temperature finds that out.
    assert record["decision"]["temperature"] == pytest.approx(4 * 2 / 3, rel=0.25)
    rows = list(csv.DictReader(table.read_text().splitlines()))
    judge = Judge(
        lambda _: [float(row["score"] or "nan") for row in rows],
        record["decision"]["threshold"],
        temperature=record["decision"]["temperature"],
    )
    found = judge.predict(np.zeros((len(rows), 2, 2, 3), np.uint8)).probability
    wrong = (found >= np.float32(judge.threshold)) & [row["label"] == labels[0] for row in rows]
    counted = chosen.get("at_raised", chosen)["false_positives"]
    assert wrong.sum() == counted + record["metrics"]["test"]["false_positives"]
    assert "reliability.png" in (tmp_path / "scores-calibration" / "report.html").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("score,label\n0.5,1\n", "its columns are score, label"),
        ("score,label,episode\n1.5,1,a\n", "line 2: the score is 1.5"),
        ("score,label,episode\nhigh,1,a\n", "line 2: could not convert"),
        ("score,label,episode\n0.5,,a\n", "there is no label"),
        ("score,label,episode\n0.5,Success,a\n0.1,success,b\n", "'Success' and 'success'"),
        ("score,label,episode\n", "has no rows"),
        ("score,label,episode\n0.5,1,a\n0.1,0,b\n", "fewer than two classes"),
    ],
)
def test_a_table_that_cannot_work_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (tmp_path / "scores.csv").write_text(text)
    assert main(["calibrate", "--scores", str(tmp_path / "scores.csv")]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["calibrate"], "nothing to calibrate"),
        (["calibrate", "--scores", "a.csv", "--judge", "a.py:b"], "--judge and --scores"),
        (["calibrate", "--judge", "a.py:b"], "--data None"),
        (["calibrate", "--judge", "package.module:b", "--data", "."], "FILE.py:FUNCTION"),
        (["calibrate", "--judge", "nowhere.py:b", "--data", "."], "a file that can be read"),
        (["audit", "--data", "."], "nothing to audit"),
        (["audit", "--data", ".", "--bundle", "toy", "--judge", "a.py:b"], "--bundle and --judge"),
        (["finetune", "--max-calls", "3"], "--max-calls 3"),
    ],
)
def test_options_that_cannot_work_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(words) == 1
    assert message in capsys.readouterr().err


# --- audit -------------------------------------------------------------------------------------


def test_a_planted_shortcut_is_flagged_and_an_honest_judge_passes(
    judges: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_images(tmp_path / "data", 160, corner=True)
    pairs = write_pairs(tmp_path / "pairs", corner=True)
    calibrate = ["calibrate", "--data", str(data), "--target-fpr", "0.05", "--judge"]
    status, reports = {}, {}
    for name in ("red", "corner"):
        assert main([*calibrate, f"{judges}:{name}"]) == 0, "a shortcut looks well on such images"
        out = tmp_path / name
        words = ["audit", "--judge", f"{judges}:{name}", "--data", str(data)]
        status[name] = main([*words, "--pairs", str(pairs), "--out", str(out)])
        reports[name] = json.loads((out / "audit.json").read_text())
        said = capsys.readouterr().out
        assert f"{judges}:{name} scores at most" in said.replace("\n", " ")
    assert status == {"red": 0, "corner": 3}
    assert reports["red"]["safe"] and not reports["red"]["faults"]
    assert any("stay when the cause is removed" in one for one in reports["corner"]["faults"])
    assert (tmp_path / "corner" / "findings" / "00.png").is_file()


def test_in_an_environment_a_policy_learns_from_a_judge(
    judges: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = np.zeros((80, 6, 8, 3), np.uint8)
    random = np.random.default_rng(0)
    images[..., 0] = np.where(np.arange(80) % 2, 219, 109)[:, None, None]
    images[..., 2] = random.integers(0, 256, 80)[:, None, None]
    for number, image in enumerate(images):
        path = tmp_path / "data" / ("failure", "success")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    words = ["audit", "--data", str(tmp_path / "data"), "--learn-steps", "150"]
    words += ["--env", "toy_environments:ToyCorridor-v0"]
    found = {}
    for name in ("cell", "blue"):
        out = tmp_path / name
        main([*words, "--judge", f"{judges}:{name}", "--out", str(out)])
        found[name] = json.loads((out / "audit.json").read_text())
    assert "and 10200 of the environment" in capsys.readouterr().out  # 150 of them to learn
    false = {name: one["learned_policy"]["false"] for name, one in found.items()}
    assert false["blue"] > 5 > false["cell"]
    assert any("learned from it" in fault for fault in found["blue"]["faults"])


# --- distil ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_student_of_a_slow_oracle_agrees_with_it_on_fresh_episodes(
    judges: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "photos"
    data.mkdir()
    for index, image in enumerate(make_images(300)[0]):
        Image.fromarray(image).save(data / f"{index:04d}.png", compress_level=1)
    words = ["finetune", "--labels-from", f"{judges}:red", "--data", str(data)]
    words += ["--out", str(tmp_path / "run"), "--epochs", "3", "--int8", "off"]
    words += ["--target-fpr", "0.2"]
    assert main([*words, "--max-calls", "200"]) == 1
    assert "as --max-calls 200 allows, and 8 or more are left" in capsys.readouterr().err
    assert main([*words]) == 0
    assert calls(judges) == 300 + 16, "each image once, and 16 of them twice"
    assert "held-out images" in capsys.readouterr().out
    bundle = Bundle.load(tmp_path / "run" / "bundle")
    agreement = bundle.spec.metrics["agreement"]
    assert agreement["same"] >= 0.97 * agreement["frames"]
    assert bundle.spec.dataset["labels_from"]["labelled"] == 300
    assert "Agreement with the judge" in (tmp_path / "run" / "report.html").read_text()
    fresh = make_images(400, seed=7)[0]
    judge = CachedJudge(f"{judges}:red")(fresh) >= 0.5
    with Classifier(bundle) as student:
        same = int(((student.compute_reward(fresh) > 0) == judge).sum())
    low = clopper_pearson(same, 400, side="lower")[0]
    print(f"agrees on {same} of 400 fresh episodes, at least {low:.1%}")
    assert same >= 0.97 * 400


def test_images_on_which_they_differ_wait_for_a_label(tmp_path: Path) -> None:
    dataset = load_dataset(write_images(tmp_path / "data", 60))
    test = np.arange(20, 60)
    claims = dataset.labels[test] == 1
    claims[[3, 8]] ^= True
    found, section = compare_with_judge(dataset, test, claims, tmp_path)
    low = clopper_pearson(38, 40, side="lower")[0]
    assert found.as_dict == {
        "frames": 40, "same": 38, "episodes": 40, "same_episodes": 38, "episodes_low": low,
    }  # fmt: skip
    assert "agree on 38 of 40 held-out images (95.0%)" in section.text
    source = of_folder(tmp_path / "differences")
    assert [Path(image).name for image in source.names] == ["0000.png", "0001.png"]
    for number, index in enumerate((3, 8)):
        np.testing.assert_array_equal(source.read(number), dataset.images[test[index]])
    compare_with_judge(dataset, test, dataset.labels[test] == 1, tmp_path)
    assert not (tmp_path / "differences").exists()
