"""The tab "New release": from choices to a plan, its price, and a run that can be cancelled."""

from __future__ import annotations

from typing import Any

from shiny import Inputs, Session, reactive, render, ui

from tensorveil.app.choosing import choosing
from tensorveil.app.page import error_box, hint, notice, shown_plan, shown_progress
from tensorveil.app.runs import Run, job_text
from tensorveil.app.workspace import Workspace
from tensorveil.errors import TensorveilError

WATCH = 0.25  # seconds between looks at a run


def making(input: Inputs, session: Session, workspace: Workspace) -> None:
    """Everything that the tab does."""
    options = choosing(input, session, workspace)
    planning: list[tuple[Run, str]] = []  # the last plan and its job; watched, as the run is
    failed: reactive.Value[str] = reactive.value("")

    def stop_planning() -> None:
        for run, _ in planning:
            run.cancel()
        planning.clear()

    session.on_ended(stop_planning)

    @reactive.effect
    @reactive.event(input.plan)
    def _plan() -> None:
        stop_planning()
        failed.set("")
        try:
            workspace.target(input.name())
            asked = options()
            file = workspace.job_file(asked)
            run = workspace.command("complete", "--config", str(file), "--plan-only", "--json")
            planning.append((run, job_text(asked)))
        except TensorveilError as error:
            failed.set(str(error))

    @reactive.poll(lambda: [(id(run), run.status, run.task) for run, _ in planning], WATCH)
    def watched_plan() -> tuple[Run, str] | None:
        return planning[-1] if planning else None

    @reactive.calc
    def current_plan() -> dict[str, Any] | None:
        """The plan for exactly the settings on the page, or None."""
        found = watched_plan()
        return found[0].result if found is not None and found[1] == job_text(options()) else None

    @render.ui
    def planned() -> Any:
        if failed():
            return error_box(failed())
        found = watched_plan()
        if found is None:
            return None
        run, job = found
        if run.running:
            return notice("plain", "Planning", run.task)
        if run.result is None:
            return error_box(run.error)
        told = shown_plan(run.result, job)
        if current_plan() is None:
            return ui.TagList(notice("plain", "The settings have changed", "Plan again to see the price."), told)
        return told

    def run_state() -> Any:
        run = workspace.run
        if run is None:
            return None
        return (id(run), run.task, run.done, run.total, run.status, run.cancelled, run.running and int(run.seconds))

    @reactive.poll(run_state, WATCH)
    def watched_run() -> Run | None:
        return workspace.run

    @reactive.poll(lambda: workspace.run is not None and workspace.run.running, WATCH)
    def busy() -> bool:
        return workspace.run is not None and workspace.run.running

    @render.ui
    def start() -> Any:
        plan = current_plan()
        if busy():
            return ui.TagList(
                ui.input_action_button("cancel", "Cancel", class_="btn-outline-danger"),
                hint("What the run has reserved in the ledger by then counts as spent."),
            )
        if plan is None:
            return hint("Plan first: a run starts only from a plan whose price is on the screen.")
        paid = f"from {input.dataset()}" if input.dataset() else "without a ledger"
        return ui.input_action_button(
            "run", f"Run and spend epsilon {plan['epsilon']:.6g} {paid}", class_="btn-primary"
        )

    @reactive.effect
    @reactive.event(input.run)
    def _run() -> None:
        if current_plan() is None:
            return
        try:
            workspace.start(options())
        except TensorveilError as error:
            failed.set(str(error))
        stop_planning()

    @reactive.effect
    @reactive.event(input.cancel)
    def _cancel() -> None:
        if workspace.run is not None and workspace.run.running:
            workspace.run.cancel()

    @reactive.effect
    def _next_name() -> None:
        if not busy():
            ui.update_text("name", value=workspace.free_name())

    @render.ui
    def progress() -> Any:
        run = watched_run()
        if run is None:
            return None
        if run.running:
            return shown_progress(run)
        outcome = workspace.outcome()
        box = notice("good" if outcome.good else "bad", outcome.title, outcome.text)
        if not outcome.good:
            return box
        button = ui.tags.button("Open the release", class_="btn btn-primary", type="button", data_open=workspace.name)
        return ui.TagList(box, button)
