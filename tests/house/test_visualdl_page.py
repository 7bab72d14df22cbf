"""VisualDL's page of a resumed run in a real browser."""

import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import cv2
import numpy as np
import pytest

from image_classification.parallel.env import free_port
from tests.helpers.browser import CHROMIUM, open_browser
from tests.helpers.entry import SMALL_VIT, run_well

TAGS = {"eval/loss", "eval/top1", "eval/top5", "train/loss", "train/top1", "train/lr", "train/loss_scale",
        "train/skipped_steps", "train/images_per_second", "train/grad_norm"}  # fmt: skip
ASKED = "[...new Set(performance.getEntriesByType('resource').map(e => new URL(e.name).searchParams.get('tag')))]"
TITLE = "bold 16px sans-serif"  # of a chart
CURVE = (41, 50, 225)  # the colour of the only run
OPEN_TRAIN = "[...document.querySelectorAll('h3')].find(e => e.innerText == 'train').parentElement.click()"


@pytest.fixture
def page(tmp_path):
    """Return the address at which VisualDL shows a run of two epochs that was resumed for a third."""
    run = tmp_path / "logs" / "run"
    run_well(*SMALL_VIT, "-num_epochs", 2, "-output", run, timeout=600)
    run_well(*SMALL_VIT, "-num_epochs", 3, "-output", run, "-resume", run, timeout=600)
    port = free_port()
    words = [Path(sys.executable).with_name("visualdl"), "--logdir", run.parent, "--port", str(port)]
    words += ["--host", "127.0.0.1", "--language", "en", "--disable-telemetry"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        address, deadline = f"http://127.0.0.1:{port}/app", time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"{address}/scalar", timeout=10).close()
                break
            except (urllib.error.URLError, OSError):
                assert server.poll() is None and time.monotonic() < deadline
                time.sleep(0.2)
        yield address
        server.terminate()


def check_picture(browser):
    """Each tag's name stands in the screenshot, once, with a curve below it.

    A name that is there is found to the last pixel; one with another letter in it resembles it to 0.98 at most.
    """
    titles = {tag: cv2.cvtColor(browser.drawn(tag, TITLE), cv2.COLOR_RGB2GRAY) for tag in TAGS}
    deadline = time.monotonic() + 60
    while True:  # the charts grow in
        picture = browser.screenshot()
        grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
        matches = {tag: cv2.matchTemplate(grey, title, cv2.TM_CCOEFF_NORMED) for tag, title in titles.items()}
        found = {tag: cv2.minMaxLoc(match) for tag, match in matches.items()}
        is_curve = np.abs(picture.astype(int) - CURVE).max(axis=2) < 40
        curves = {tag: is_curve[y + 40 : y + 290, x : x + 400].any(axis=0).sum() for tag, (*_, (x, y)) in found.items()}
        unseen = [tag for tag in TAGS if found[tag][1] < 0.99 or curves[tag] < 100]  # of 400 columns
        if not unseen:
            break
        assert time.monotonic() < deadline, unseen
        time.sleep(0.5)
    assert len({place for *_, place in found.values()}) == len(TAGS)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: make test-browser")
def test_page_of_a_resumed_run_draws_one_curve_of_each_tag(page, tmp_path):
    with open_browser(tmp_path / "profile") as browser:
        browser.open(f"{page}/scalar")
        browser.wait_for("document.querySelectorAll('h3').length == 2")
        browser.wait_for("document.querySelectorAll('canvas').length == 3")  # eval is open, train is not
        browser.evaluate(OPEN_TRAIN)
        browser.wait_for("document.querySelectorAll('canvas').length == 10")
        assert set(browser.wait_for(ASKED)) - {None} == TAGS
        check_picture(browser)
        script = f"fetch('{page}/api/scalar/list?run=run&tag=train/lr').then(a => a.json()).then(a => window.lr = a)"
        browser.evaluate(script)
        steps = [point[1] for point in browser.wait_for("window.lr")["data"]]
        assert steps == sorted(set(steps)) and steps[-1] == 33  # 11 steps in each of three epochs, each once
        browser.open(f"{page}/image")
        browser.wait_for("document.body && document.body.innerHTML.includes('eval/confusion')")
        browser.open(f"{page}/hyper-parameter/table")
        browser.wait_for("document.body && document.body.innerText.includes('weight_decay')")
