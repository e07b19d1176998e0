"""`tensorveil shard`: a file, or a folder of files, as a folder of shards with a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tensorveil.cli.console import say
from tensorveil.cli.job import parsed_options, signature_with
from tensorveil.errors import InputError

NAMED = "input modes value format columns bin labels public_labels shape first_index duplicates"


def shard(
    *,
    by: Annotated[str, typer.Option(help="The mode whose indices stay whole, e.g. the mode that the unit protects.")],
    out: Annotated[Path, typer.Option(help="The folder to create, with Parquet parts and a manifest.")],
    rows_per_part: Annotated[int, typer.Option(help="About how many rows a part gets.")] = 2_000_000,
    **options: Any,
) -> None:
    """Write the observations of a file, or of a folder of files, as shards for `complete --engine dask`.

    Every shard holds all observations of its indices of one mode. The manifest lists the parts, their rows and hashes;
    it stays with the data holder. With --shape or --labels for every mode, files are read one after the other.

    Example:

    tensorveil shard ratings/ --by user --modes user,item,week --value stars --shape 1000000,50000,104 --out shards
    """
    from tensorveil.data.shards import write_shards

    given = parsed_options(options)
    if "input" not in given:
        raise InputError("INPUT must be given, got none; name a file or a folder of files")
    if "bin" in given:
        given["bins"] = given.pop("bin")
    shards = write_shards(given.pop("input"), by, out, rows_per_part=rows_per_part, **given)
    say(f"wrote {len(shards):,} rows in {len(shards.files):,} parts to {out} (for the data holder, not for release)")


vars(shard)["__signature__"] = signature_with(shard, NAMED.split())
