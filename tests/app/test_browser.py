"""The app in a real browser: the whole way once, a wrong input, a cancel, an empty ledger."""

import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from urllib.parse import urlsplit

import numpy as np
import pytest
from typer.testing import CliRunner

import tensorveil as tv
from tensorveil.cli import app as cli
from tensorveil.release.ledger.ledger import Ledger
from tensorveil.release.report.plots import short

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium"),
]

WAIT = 600_000  # milliseconds, for a machine that is very busy
SECRET_VALUE, SECRET_TEXT = "3.7319", "told-to-the-doctor"
Opened = namedtuple("Opened", "page folder requests frames temporary process")


@pytest.fixture(scope="module")
def chromium():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium, tmp_path):
    """The app in a process of its own, open in the browser; with all that was asked for and all that was sent."""
    folder, temporary = tmp_path / "releases", tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-u", "-m", "tensorveil", "app", str(folder), "--no-browser", "--upload-limit", "1"]
    environment = {**os.environ, "TMPDIR": str(temporary), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            address = next(line.strip() for line in process.stdout if "http://" in line)
            with chromium.new_context(viewport={"width": 1280, "height": 900}) as context:
                page, requests, frames = context.new_page(), [], []
                page.set_default_timeout(WAIT)
                page.on("request", lambda request: requests.append(request.url))
                page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: frames.append(str(frame))))
                page.goto(address)
                page.wait_for_selector("#unit")
                yield Opened(page, folder, requests, frames, temporary, process)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)


@pytest.fixture
def ratings(tmp_path):
    generator = np.random.default_rng(4)
    path = tmp_path / "ratings.csv"
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["user", "film", "rating", "note"])
        for user in range(12):
            lines.writerows([f"u{user}", f"f{film}", generator.integers(1, 6), SECRET_TEXT] for film in range(9))
        lines.writerow(["u0", "f9", SECRET_VALUE, SECRET_TEXT])
    return path


def fill_in(page, path, low="1", high="5", rank="2"):
    """Steps 1 to 4."""
    page.set_input_files("#upload", path)
    choose(page, "modes", "user", "film")
    choose(page, "value", "rating")
    page.fill("#low", low)
    page.fill("#high", high)
    page.click("text=More settings")
    page.fill("#rank", rank)
    page.click("text=For the report")
    page.fill("#purpose", "a study of films")


def choose(page, field, *names):
    """Choose from a list with a field to search in."""
    for name in names:
        page.locator(f"#{field}-selectized").click()
        page.locator(f".selectize-dropdown-content [data-value={name}]:visible").click()
        page.wait_for_selector(f".selectize-control:has(#{field}-selectized) .item[data-value={name}]")


def pay_from(page, dataset):
    page.wait_for_selector(f"#dataset option[value={dataset}]", state="attached")
    page.select_option("#dataset", dataset)
    page.wait_for_selector("#balance .balance")


def plan_and_run(page):
    page.click("#plan")
    page.wait_for_selector("#planned .plan, #planned .notice.bad")
    assert page.query_selector("#planned .notice.bad") is None, page.inner_text("#planned")
    page.click("#run")


def text_of(page, selector):
    page.wait_for_selector(selector)
    return page.inner_text(selector)


def overflow(page):
    """By how many pixels the page is wider than the screen."""
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


def test_the_whole_way_from_a_file_to_a_release_and_its_predictions(opened, ratings, tmp_path):
    page = opened.page
    fill_in(page, ratings)
    page.click("text=Add a data set to the ledger")
    page.fill("#new_dataset", "films")
    page.fill("#new_epsilon", "5")
    page.click("#create")
    pay_from(page, "films")
    page.locator("#stops").fill("10")  # the slider moves the number
    assert page.input_value("#epsilon") == "5"
    page.locator("#stops").fill("7")
    assert page.input_value("#epsilon") == "2"
    page.click("#plan")
    assert "epsilon 2" in text_of(page, "#planned .plan")
    page.fill("#epsilon", "3")  # a run starts only from the plan of what is on the page
    page.wait_for_selector("#planned >> text=The settings have changed")
    page.wait_for_selector("#run", state="detached")
    page.fill("#epsilon", "2")
    page.wait_for_selector("#run")
    sent = "".join(opened.frames)
    assert "rating" in sent
    for secret in (SECRET_VALUE, SECRET_TEXT, "u11", "f8"):  # before the release, not even labels
        assert secret not in sent
    page.click("#run")
    assert "reservation 2 of data set 'films' (epsilon 2) counts as spent" in text_of(page, "#progress .notice.good")
    page.wait_for_selector("#balance >> text=epsilon 3")
    folder = opened.folder / "release 1"
    release = tv.Release.load(folder)
    assert all(check.state != "doubt" for check in tv.verify(folder, opened.folder / "ledger.sqlite"))

    page.click("#progress [data-open]")
    page.wait_for_selector("#opened >> text=Proven with epsilon = 2")
    with page.expect_download() as download:
        page.click("a[download='certificate.json']")
    assert download.value.path().read_bytes() == (folder / "certificate.json").read_bytes()
    page.click("#view >> text=Report")
    frame = page.frame_locator("iframe.report")
    assert frame.locator("h1").inner_text() == "Rating by user and film"
    assert "a study of films" in frame.locator("body").inner_text()

    page.click("#view >> text=Predictions")
    page.wait_for_selector("#predictions tbody tr")
    shown = page.locator("#predictions tbody tr").all_inner_texts()
    cells = [[0, film] for film in range(10)]
    found = release.predict(cells, interval=0.9)
    labels = [str(label) for label in release.labels[1]]
    wanted = [
        [label, short(middle), f"{short(low)} to {short(high)}"]
        for label, middle, low, high in zip(labels, *found, strict=True)
    ]
    assert [row.split("\t") for row in shown] == wanted
    page.click("#view >> text=Top list")
    page.wait_for_selector("#top_list tbody tr")
    best = release.top({"user": str(release.labels[0][0])}, 10).to_pydict()
    rows = [row.split("\t") for row in page.locator("#top_list tbody tr").all_inner_texts()]
    assert [row[1] for row in rows] == best["film"]
    page.click("#view >> text=Heat map")
    page.wait_for_selector("#tiles svg")
    page.click("#view >> text=Factors")
    page.wait_for_selector("#factors figure, #factors p")
    page.set_viewport_size({"width": 400, "height": 800})
    for tab in ("Releases", "New release"):
        page.click(f"#tab >> text={tab}")
        assert overflow(page) <= 0

    assert {urlsplit(url).hostname for url in opened.requests if not url.startswith("data:")} == {"127.0.0.1"}
    assert not any(secret in "".join(opened.frames) for secret in (SECRET_VALUE, SECRET_TEXT))
    assert list(opened.temporary.iterdir())
    opened.process.send_signal(signal.SIGINT)
    assert "uploads are deleted" in opened.process.stdout.read()
    assert opened.process.wait() == 0
    assert [path for path in opened.temporary.iterdir() if path.name.startswith("tensorveil")] == []


def test_a_wrong_input_is_told_in_the_words_of_the_command_line_and_nothing_is_shown_of_the_data(
    opened, ratings, tmp_path
):
    page = opened.page
    fill_in(page, ratings, low="5", high="1")
    page.click("#plan")
    shown = text_of(page, "#planned .notice.bad")
    common = ["--modes", "user,film", "--value", "rating", "--unit", "value", "--epsilon", "2", "--plan-only"]
    typed = CliRunner().invoke(cli.app, ["complete", str(ratings), *common, "--bounds", "5", "1"])
    assert str(typed.exception) in shown
    assert page.query_selector("#run") is None
    page.fill("#low", "1")
    page.fill("#high", "5")
    page.fill("#name", "../elsewhere")
    page.click("#plan")
    page.wait_for_selector("#planned >> text=the name of a release must be")
    headless = tmp_path / "headless.csv"
    headless.write_text("196,242,3\n186,302,3\n")
    page.set_input_files("#upload", headless)
    assert "must hold the names of the columns" in text_of(page, "#file_state .notice.bad")
    assert not any(number in "".join(opened.frames) for number in ("196,", "242", SECRET_VALUE))
    large = tmp_path / "large.csv"
    large.write_text("user,film,rating\n" * 100_000)
    page.set_input_files("#upload", large)
    assert "An upload must be at most 1 MB" in text_of(page, ".too-large")
    assert list(opened.folder.iterdir()) == []


def test_a_cancel_says_what_is_spent(opened, ratings):
    ledger = Ledger.create(opened.folder / "ledger.sqlite", "films", "value", 5.0)
    page = opened.page
    fill_in(page, ratings, rank="8")
    pay_from(page, "films")
    plan_and_run(page)
    page.wait_for_selector("#cancel")
    end = time.monotonic() + WAIT / 1000
    while len(ledger.entries()) < 3 and time.monotonic() < end:  # the data set, the reservation, the draw
        page.wait_for_timeout(10)
    page.click("#cancel")
    told = text_of(page, "#progress .notice")
    assert told.startswith("Cancelled")
    assert "reservation 2 of data set 'films' (epsilon 2) counts as spent" in told
    assert ledger.spent("films").epsilon == 2
    page.wait_for_selector("#balance >> text=epsilon 3")
    assert not (opened.folder / "release 1").exists()
    page.reload()  # the outcome is still there for a page that was closed
    assert text_of(page, "#progress .notice") == told


def test_an_empty_ledger_refuses_and_nothing_is_spent(opened, ratings):
    ledger = Ledger.create(opened.folder / "ledger.sqlite", "films", "value", 1.0)
    page = opened.page
    fill_in(page, ratings)
    pay_from(page, "films")
    plan_and_run(page)
    told = text_of(page, "#progress .notice.bad")
    assert told.startswith("Refused by the ledger")
    assert re.search(r"the budget of data set 'films' .* must cover the release, got epsilon 2", told)
    assert "Nothing was spent" in told
    assert ledger.spent("films").epsilon == 0
    assert not (opened.folder / "release 1").exists()


def test_the_advisor_runs_and_can_be_stopped(opened, ratings):
    page = opened.page
    fill_in(page, ratings)
    page.click("#advise")
    page.wait_for_selector("#curve >> text=made-up tensors")
    page.click("#stop_advice")
    page.wait_for_selector("#advise")
    assert page.query_selector("#curve .notice") is None


def test_a_browser_without_the_token_sees_nothing(opened, chromium):
    place = urlsplit(opened.page.url)
    with chromium.new_context() as stranger:
        answer = stranger.new_page().goto(f"{place.scheme}://{place.netloc}/")
        assert answer.status == 403
        assert "tensorveil app" in answer.text()
