"""`tensorveil app`: serves the app to the browser of this computer."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensorveil.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    from tensorveil.app.guard import Application
    from tensorveil.app.workspace import Workspace

HERE = "127.0.0.1"
GRACE = 2  # seconds for open connections at the end
DOWNLOADS = "/releases/"


def app(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where releases are written. It is created if it does not exist.")
    ] = Path("releases"),
    ledger: Annotated[Path | None, typer.Option(help="The ledger that pays. Default: ledger.sqlite in FOLDER.")] = None,
    port: Annotated[int, typer.Option(help="The port on this computer. Default: any free one.")] = 0,
    upload_limit: Annotated[int, typer.Option(help="The largest upload, in MB.")] = 500,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Make and explore releases in a browser.

    The page can be opened on this computer only, with the address that the command prints. It loads nothing from
    outside, and private values are not shown. Press Ctrl-C to end: a run that is going on is then interrupted, and
    uploads are deleted.

    Example: tensorveil app releases --ledger budget.sqlite
    """
    try:
        import shiny  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "shiny must be installed for the browser app, but is not; run pip install 'tensorveil[app]'"
        ) from error
    from tensorveil.app.workspace import Workspace

    if not 0 <= port < 2**16:
        raise InputError(f"port must be from 0 to 65535, got {port}; leave it out for any free one")
    if upload_limit < 1:
        raise InputError(f"upload_limit must be at least 1 MB, got {upload_limit}; give a larger one")
    workspace = Workspace(folder, ledger)
    before = tempfile.tempdir
    tempfile.tempdir = str(workspace.temporary)  # where uploads are written as they arrive
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Ctrl-C is no failure of this command
    try:
        _serve(workspace, port, upload_limit * 10**6, browser)
    except KeyboardInterrupt:
        pass  # the usual end
    finally:
        signal.signal(signal.SIGINT, interrupt)
        tempfile.tempdir = before
        ended = workspace.close()
    typer.echo("stopped; uploads are deleted" if ended is None else f"{ended.title}: {ended.text}")


def _serve(workspace: Workspace, port: int, upload_limit: int, browser: bool) -> None:
    import uvicorn

    from tensorveil.app.guard import Guard

    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HERE, port))
            listener.listen()  # a browser that is faster than the server waits
        except OSError as error:
            raise InputError(f"port must be a free one, got {port} ({error.strerror}); choose another") from error
        guard = Guard(application(workspace, upload_limit), listener.getsockname()[1], upload_limit)
        typer.echo(f"Open this address in a browser on this computer:\n\n    {guard.address}\n")
        typer.echo(f"Releases are in {workspace.folder}. Press Ctrl-C to end.")
        if browser:
            _open(guard.address, workspace.temporary)
        config = uvicorn.Config(
            guard,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=GRACE,
        )
        uvicorn.Server(config).run(sockets=[listener])


def _open(address: str, folder: Path) -> None:
    """Open the address through a file of one's own, since other users can read the arguments of a process."""
    page = folder / "open.html"
    with os.fdopen(os.open(page, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "w") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}"><title>tensorveil</title>')
    webbrowser.open(page.as_uri())


def application(workspace: Workspace, upload_limit: int) -> Application:
    """The page, and the files of releases."""
    os.environ["SHINY_OTEL_COLLECT"] = "none"  # no telemetry, whatever is installed
    from shiny import App, Inputs, Outputs, Session
    from starlette.responses import FileResponse, PlainTextResponse, Response

    from tensorveil.app.exploring import exploring
    from tensorveil.app.making import making
    from tensorveil.app.page import ASSETS, page

    def server(input: Inputs, output: Outputs, session: Session) -> None:
        making(input, session, workspace)
        exploring(input, session, workspace)

    shown = App(page(upload_limit), server, static_assets={"/assets": ASSETS, "/favicon.ico": ASSETS / "icon.svg"})

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(DOWNLOADS):
            await shown(scope, receive, send)
            return
        name, _, file = scope["path"].removeprefix(DOWNLOADS).partition("/")
        place = workspace.released_file(name, file)
        response: Response = PlainTextResponse("There is no such file.\n", status_code=404)
        if place is not None:
            response = FileResponse(place)
        await response(scope, receive, send)

    return answer
