"""The label log: every prefix of it reads, nothing that was acknowledged is lost."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from label_logs import DIGEST, TIME, label

from vinoreward.errors import DatasetError, RunFolderError
from vinoreward_training.labelling.labels import (
    ANSWERS,
    Entry,
    Label,
    LabelLog,
    Undo,
    agreed_labels,
    agreement,
    contradictions,
    counts,
    is_name,
    line_of,
    now,
    read_labels,
    standing,
)

printable = st.text(st.characters(exclude_categories=["C", "Zl", "Zp", "Zs"]), min_size=1)
names = printable.map(lambda text: text[:100]).filter(is_name)
labels = st.builds(
    Label,
    image=names,
    sha256=st.just(DIGEST),
    label=st.sampled_from(ANSWERS),
    by=st.sampled_from(["ann", "bob", "Zoë 李"]),
    time=st.just(TIME),
    seconds=st.floats(0, 3600),
    duplicate=st.booleans(),
)
entries: st.SearchStrategy[Entry] = labels | st.builds(
    Undo, by=st.sampled_from(["ann", "bob"]), time=st.just(TIME)
)


def quietly_read(path: Path) -> list[Label]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read_labels(path)


def naive(entries: list[Entry]) -> list[Label]:
    """What stands, by the definition."""
    found: list[Label] = []
    for entry in entries:
        if isinstance(entry, Label):
            found.append(entry)
        else:
            for place in range(len(found) - 1, -1, -1):
                if found[place].by == entry.by:
                    del found[place]
                    break
    return found


@given(st.lists(entries, max_size=12), st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_log_that_was_cut_off_anywhere_reads_as_what_was_whole(
    tmp_path: Path, given_entries: list[Entry], data: st.DataObject
) -> None:
    lines = [line_of(entry) for entry in given_entries]
    whole = b"".join(lines)
    cut = data.draw(st.integers(0, len(whole)))
    path = tmp_path / "labels.jsonl"
    path.write_bytes(whole[:cut])
    # Its line break is all that a whole line may lack.
    ends = [len(b"".join(lines[: n + 1])) - 1 for n in range(len(lines))]
    kept = sum(end <= cut for end in ends)
    assert quietly_read(path) == naive(given_entries[:kept]) == standing(given_entries[:kept])
    # The next start goes on behind what was whole.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with LabelLog(path) as log:
            assert log.entries == given_entries[:kept]
            log.add(label("new.png"))
    assert read_labels(path) == naive([*given_entries[:kept], label("new.png")])


def test_a_damaged_last_line_is_dropped_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    good = line_of(label())
    for tail in (good[:30], good[:30] + b"\n", b"\0\0\0\0", b"\xff\xfe\n", b"[" * 9000):
        path.write_bytes(good + tail)
        with pytest.warns(UserWarning, match=r"line 2.*does not count"):
            assert read_labels(path) == [label()]
        with pytest.warns(UserWarning, match="line 2"), LabelLog(path):
            pass
        assert path.read_bytes() == good


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"success", b"maybe"), (b"1.2", b"NaN"), (b"1.2", b"-1"), (b"a.png", b"../a.png"),
        (b"a.png", b"/etc/passwd"), (DIGEST.encode(), b"00"), (b'"ann"', b'""'),
        (line_of(label()), b"{"), (line_of(label()), b"\xff"), (line_of(label()), b"[" * 9000),
        (line_of(label()), b'{"undo": false, "by": "ann", "time": "t"}'),
        (line_of(label()), b'{"undo": true, "by": "' + b"a" * 20000 + b'", "time": "t"}'),
    ],
)  # fmt: skip
def test_an_earlier_damaged_line_is_an_error_that_says_which(
    tmp_path: Path, old: bytes, new: bytes
) -> None:
    path = tmp_path / "labels.jsonl"
    good = line_of(label())
    before = good + good.replace(old, new).rstrip(b"\n") + b"\n" + good
    path.write_bytes(before)
    for attempt in (lambda: read_labels(path), lambda: LabelLog(path).__enter__()):
        with pytest.raises(DatasetError, match="line 2:"):
            attempt()
    assert path.read_bytes() == before


def test_a_line_is_what_the_documentation_says(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    with LabelLog(path) as log:
        log.add(label("b/a.png"))
        log.add(Undo(by="ann", time=TIME))
    first, second = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert first == {
        "image": "b/a.png", "sha256": DIGEST, "label": "success", "by": "ann", "time": TIME,
        "seconds": 1.2, "duplicate": False,
    }  # fmt: skip
    assert second == {"undo": True, "by": "ann", "time": TIME}
    assert now().endswith("+00:00")


def test_a_second_labeller_gets_a_clear_sentence(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    with LabelLog(path), pytest.raises(RunFolderError, match=r"somebody else is labelling.*--out"):
        LabelLog(path).__enter__()
    with LabelLog(path):  # and the lock is given back
        pass


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    (tmp_path / "labels.jsonl").symlink_to(target)
    with pytest.raises(RunFolderError, match="link"), LabelLog(tmp_path / "labels.jsonl"):
        pass
    assert target.read_text() == "mine"


def test_each_label_is_on_the_disk_before_it_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "labels.jsonl"
    seen: list[bytes] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            seen.append(path.read_bytes())

    with LabelLog(path) as log:
        monkeypatch.setattr(os, "fsync", fsync)
        for number in range(3):
            log.add(label(f"{number}.png"))
            assert seen[-1] == b"".join(line_of(label(f"{n}.png")) for n in range(number + 1))


def test_contradictions_are_left_out_and_reported() -> None:
    every = [
        label("same.png"), label("same.png", by="bob"),
        label("two.png"), label("two.png", "failure", by="bob"),
        label("twice.png"), label("twice.png", "failure", duplicate=True),
        label("steady.png", "failure"), label("steady.png", "failure", duplicate=True),
        label("changed.png"), label("changed.png", "failure"),
        label("skipped.png", "skip"),
        label("unsure.png"), label("unsure.png", "skip", by="bob"),
        label("taken.png"), label("taken.png", "skip"),
    ]  # fmt: skip
    assert {name for name, _ in contradictions(every)} == {"two.png", "twice.png"}
    assert {one.image: one.label for one in agreed_labels(every)} == {
        "same.png": "success", "steady.png": "failure", "changed.png": "failure",
        "unsure.png": "success",
    }  # fmt: skip
    # A replaced file is another image.
    other = Label("a.png", "f" * 64, "failure", "ann", TIME, 1.0)
    assert contradictions([label("a.png"), other]) == {}
    assert len(agreed_labels([label("a.png"), other])) == 2


def test_agreement_is_that_of_blind_duplicates() -> None:
    every = [
        label("a.png"), label("a.png", duplicate=True),
        label("b.png"), label("b.png", "failure", duplicate=True),
        label("c.png"), label("c.png", "skip", duplicate=True),
        label("d.png"), label("d.png", by="bob"),
        label("e.png", duplicate=True),
    ]  # fmt: skip
    found = agreement(every)
    assert found.startswith("1 of 2 images") and "(50 %; 95 % interval 1 to 99 %)" in found
    assert agreement([]) == "no image was labelled twice"
    assert counts(every) == {"success": 5, "failure": 0, "skip": 0}
