"""The page in a real Chromium: keys, buttons, a phone, and what goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from label_logs import write_images
from labelling_client import QUIET, Labelling, chromium

from vinoreward_training.labelling.labels import read_labels

BROWSER = chromium()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium, and playwright to drive it"),
    # Playwright's transport, which it leaves to the end of the process.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
NAMES = [f"{number:02d}.png" for number in range(24)]


@pytest.fixture(scope="module")
def window() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=list(QUIET))
        yield browser
        browser.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images", NAMES, (96, 128))


@pytest.fixture
def page(window: Any) -> Iterator[Any]:
    """A page that has asked nobody else, and broken none of its own rules."""
    context = window.new_context(viewport={"width": 1000, "height": 700})
    page = context.new_page()
    page.asked, page.complaints = [], []
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    yield page
    context.close()


def opened(page: Any, running: Labelling) -> None:
    page.goto(running.address)
    page.wait_for_selector("body[data-image]")


def answered(page: Any, act: Any) -> None:
    """Do something that changes the image, and wait until it has."""
    before = page.get_attribute("body", "data-image")
    act()
    page.wait_for_function(
        "before => document.body.dataset.image !== before && !document.querySelector('.waiting')",
        arg=before,
    )


def press(page: Any, *keys: str) -> None:
    for key in keys:
        answered(page, lambda key=key: page.keyboard.press(key))


def answers(folder: Path) -> list[str]:
    return [label.label for label in read_labels(folder / "labels.jsonl")]


def test_keys_label_and_take_back(folder: Path, page: Any) -> None:
    with Labelling(["--data", str(folder)]) as running:
        opened(page, running)
        assert "#" not in page.url and running.token not in page.content()
        press(page, "ArrowRight", "ArrowLeft", "s", "F", " ")
        assert answers(folder) == ["success", "failure", "success", "failure", "skip"]
        assert "5 of 25 labelled" in page.inner_text("#progress")
        press(page, "z", "Backspace")
        assert answers(folder) == ["success", "failure", "success"]
        for key in ("Control+s", "Alt+ArrowLeft", "q", "1", "Shift"):
            page.keyboard.press(key)  # these are the browser's
        page.wait_for_timeout(100)
        assert len(answers(folder)) == 3
        style = page.evaluate("getComputedStyle(document.getElementById('image')).imageRendering")
        assert style == "pixelated" and page.locator("#image").bounding_box()["width"] > 600
        assert {url.split("/")[2] for url in page.asked if url.startswith("http")} == {
            f"127.0.0.1:{running.port}"
        }
    assert page.complaints == []
    assert all(label.seconds > 0 for label in read_labels(folder / "labels.jsonl"))


def test_the_end(folder: Path, page: Any) -> None:
    command = ["--data", str(folder), "--bundle", "panda-hover-classifier"]
    with Labelling(command) as running:
        opened(page, running)
        assert "lassifier" not in page.inner_text("body")
        press(page, "s")
        page.click("#stop")  # before all is labelled nothing is told of the classifier
        page.wait_for_selector("#end:visible")
        assert "lassifier claims" not in page.inner_text("#end")
        assert "are left" in page.inner_text("#title")
        page.keyboard.press("s")  # there is no image
        answered(page, lambda: page.click("#back"))
        while page.get_attribute("body", "data-image") is not None:
            press(page, "s")
        page.wait_for_selector("#end:visible")
        said = page.inner_text("#end")
        assert "All images are labelled" in said and "24 successes" in said
        assert "1 of 1 images that were shown twice got the same label" in said
        assert "The classifier claims" in said
        following = page.inner_text("#next")
        assert "vinoreward mend --bundle panda-hover-classifier" in following
        assert f"--labels {folder}" in following and "stands for the images" in following
        page.keyboard.press("z")
        page.wait_for_selector("body[data-image]")
        press(page, "f")
        printed = running.stop()
    assert "25 labelled now, 0 left" in printed
    assert page.complaints == []


def test_another_site_cannot_use_the_page(folder: Path, page: Any, tmp_path: Path) -> None:
    with Labelling(["--data", str(folder)]) as running:
        opened(page, running)
        own = f"http://127.0.0.1:{running.port}"
        evil = page.context.new_page()
        (tmp_path / "evil.html").write_text(
            f"<iframe src='{own}/'></iframe><img id=i src='{own}/image/0'>"
        )
        evil.goto((tmp_path / "evil.html").as_uri())
        told = evil.evaluate(
            """async (own) => {
                const tries = [
                    [own + '/api/state', {credentials: 'include'}],
                    [own + '/api/label', {method: 'POST', credentials: 'include',
                        headers: {'Content-Type': 'application/json'},
                        body: '{"image": 0, "label": "success", "seconds": 1}'}],
                ];
                const found = [];
                for (const [url, options] of tries) {
                    try { found.push(await (await fetch(url, options)).text()); }
                    catch { found.push(''); }
                }
                return found;
            }""",
            own,
        )
        assert told == ["", ""]
        assert evil.evaluate("document.getElementById('i').naturalWidth") == 0
        assert (folder / "labels.jsonl").read_bytes() == b""


def test_a_lost_connection_is_said_and_survived(folder: Path, page: Any) -> None:
    with Labelling(["--data", str(folder)]) as running:
        opened(page, running)
        press(page, "s")
        page.context.set_offline(True)
        page.keyboard.press("f")
        page.wait_for_selector("#problem:visible")
        assert "no connection to vinoreward label" in page.inner_text("#problem")
        page.keyboard.press("s")  # one label at a time
        assert answers(folder) == ["success"]
        page.context.set_offline(False)
        page.wait_for_selector("#problem", state="hidden")
        page.wait_for_function("() => document.body.dataset.image === '2'")
        assert answers(folder) == ["success", "failure"]
    with Labelling(["--data", str(folder)]) as running:
        page.goto(running.address)  # in the same tab
        page.wait_for_selector("body[data-image]")
        page.wait_for_function(
            "() => document.getElementById('progress').textContent.includes('2 of 25')"
        )
        press(page, "s")
    assert answers(folder) == ["success", "failure", "success"]


def test_markup_in_a_name_is_never_run(tmp_path: Path, page: Any) -> None:
    names = ["<img src=x onerror=document.title='owned'>.png", "a\nb.png", "b.png"]
    write_images(tmp_path, names)
    labeller = "<b onclick=alert(1)>bob</b>"
    with Labelling(["--data", str(tmp_path), "--labeller", labeller]) as running:
        opened(page, running)
        assert labeller in page.inner_text("#progress")
        while page.get_attribute("body", "data-image") is not None:
            press(page, "s")
        page.wait_for_selector("#end:visible")
        assert page.title() == "vinoreward label"
        assert page.locator("main b").count() == 0 and page.locator("img").count() == 1
    assert page.complaints == []
