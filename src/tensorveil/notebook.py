"""How objects show themselves in a notebook."""

from collections.abc import Iterable
from html import escape


def html_table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and texts with a caption; every text is escaped.

    Examples
    --------
    >>> html_table("Plan", [("unit", "a < b")]).count("&lt;")
    1
    """
    cells = "".join(
        f'<tr><th style="text-align:left;vertical-align:top">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(text)}</td></tr>'
        for name, text in rows
    )
    caption = f'<caption style="text-align:left;font-weight:bold">{escape(title)}</caption>'
    return f"<table>{caption}<tbody>{cells}</tbody></table>"
