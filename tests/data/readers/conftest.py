"""Files that tests of readers write."""

from pathlib import Path

import pytest


@pytest.fixture
def write(tmp_path):
    """Writes content to a file and gives its path."""

    def save(content, name="data.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return save
