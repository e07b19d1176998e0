"""Progress where no bar can be drawn: a line now and then, with an honest time left."""

import json
import re
import time

import pytest

from tensorveil.cli import console
from tensorveil.cli.console import Pace, progress_bar


def test_the_time_left_follows_the_pace_of_the_task_without_what_was_prepared():
    pace = Pace(0.0)
    assert pace.line(5.0) == "starting, 0:05 so far"
    pace.advance("noise", 1, 1, 20.0)
    assert pace.left(21.0) is None
    pace.advance("sweeps", 1, 48, 100.0)  # 80 s of preparation and the first sweep
    assert pace.left(101.0) is None
    for sweep in range(2, 13):
        pace.advance("sweeps", sweep, 48, 100.0 + 2 * (sweep - 1))
    assert pace.left(122.0) == pytest.approx(36 * 2)
    assert pace.left(123.0) == pytest.approx(36 * 2 - 1)
    assert pace.line(122.0) == "sweeps 12 of 48, 2:02 so far, about 1:12 left for sweeps"
    pace.advance("writing", 0, 1, 5000.0)
    assert pace.line(5000.0) == "writing, 1:23:20 so far"


def test_in_a_log_there_is_a_line_every_few_seconds_and_none_after_the_end(monkeypatch, capsys):
    monkeypatch.setattr(console, "LINE_EVERY", 0.05)
    with progress_bar() as progress:
        progress("sweeps", 1, 9)
        time.sleep(0.3)  # one long step: lines appear all the same
        progress("sweeps", 2, 9)
        time.sleep(0.2)
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert 2 <= len(lines) <= 30
    assert lines[0] == "sweeps 1 of 9, 0:00 so far"
    assert re.fullmatch(r"sweeps 2 of 9, 0:0\d so far, about 0:\d\d left for sweeps", lines[-1])
    time.sleep(0.2)
    assert capsys.readouterr().err == ""


def test_a_program_gets_reports_as_lines_of_json_the_first_and_last_of_each_task_among_them(monkeypatch, capsys):
    monkeypatch.setenv("TENSORVEIL_PROGRESS", "json")
    monkeypatch.setattr(console, "REPORT_EVERY", 1000.0)
    with progress_bar() as progress:
        for done in range(10):
            progress("sweeps", done, 9)
        progress("writing", 0, 1)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["task"], line["done"], line["total"]) for line in lines] == [
        ("sweeps", 0, 9),
        ("sweeps", 9, 9),
        ("writing", 0, 1),
    ]
