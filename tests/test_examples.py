"""The examples of the gallery run as they are, without data of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def test_the_gallery_has_at_least_eight_examples_with_title_and_picture():
    assert len(EXAMPLES) >= 8
    for path in EXAMPLES:
        text = path.read_text()
        title, rule = text.splitlines()[1:3]
        assert set(rule) == {"="}
        assert len(rule) == len(title)
        assert "plt.show()" in text


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TENSORVEIL_DATA"}
    environment |= {"MPLBACKEND": "Agg", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, str(path)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()  # every example tells numbers
    assert list(tmp_path.iterdir()) == []
