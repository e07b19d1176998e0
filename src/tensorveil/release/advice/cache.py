"""Results of earlier advice, one small file per run, in the cache folder of the user; public numbers only."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorveil import __version__


def folder() -> Path:
    """Where results are kept: `XDG_CACHE_HOME`, or .cache in the home folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tensorveil" / "advice"


def known(facts: Mapping[str, Any]) -> float | None:
    """The error of an earlier run with the same public facts and version, or None."""
    try:
        found = json.loads(_path(facts).read_text(encoding="utf-8"))["error"]
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):  # no home folder, no file, or not one of ours
        return None
    return float(found) if isinstance(found, int | float) and math.isfinite(found) and found >= 0 else None


def keep(facts: Mapping[str, Any], error: float) -> None:
    """Keep a result for later; where nothing can be written, nothing is kept."""
    try:
        path = _path(facts)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"error": error, "facts": dict(facts), "version": __version__}, file)
        Path(aside).replace(path)
    except (OSError, RuntimeError):
        return


def _path(facts: Mapping[str, Any]) -> Path:
    text = json.dumps({"version": __version__, **facts}, sort_keys=True)
    return folder() / f"{hashlib.sha256(text.encode()).hexdigest()}.json"
