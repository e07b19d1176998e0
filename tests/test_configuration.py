"""The page about configuration files: its example is a job, and it names every option."""

import re
from pathlib import Path

from tensorveil.cli.job import OPTIONS, job_of

PAGE = (Path(__file__).parents[1] / "docs" / "configuration.md").read_text()
EXAMPLE = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)[1]


def test_the_example_is_a_job(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(EXAMPLE)
    job = job_of({}, path)
    assert job.modes == {"user": "userId", "film": "movieId", "month": "timestamp"}
    assert (job.levels, job.bounds, job.rank, job.bin) == ((1, 2, 3, 4, 5), (1, 5), (12,), {"month": "month"})
    assert job_of({"epsilon": 1.0}, path).epsilon == 1.0


def test_every_option_is_on_the_page():
    shown = set(re.findall(r"^(\w+) =", EXAMPLE, re.MULTILINE)) | set(re.findall(r"^\[(\w+)\]", EXAMPLE, re.MULTILINE))
    listed = set(re.findall(r"`(\w+)`", PAGE.split("| name |")[1]))
    assert set(OPTIONS) <= shown | listed
