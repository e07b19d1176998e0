"""The tab "New release": from choices to a plan, its price, and a run that can be cancelled."""

from __future__ import annotations

from typing import Any

from shiny import Inputs, Session, reactive, render, ui

from tensorveil.app.choosing import choosing
from tensorveil.app.page import error_box, hint, notice, shown_advice, shown_plan, shown_progress
from tensorveil.app.runs import Run, advice_arguments, job_text
from tensorveil.app.workspace import Workspace
from tensorveil.errors import TensorveilError

WATCH = 0.25  # seconds between looks at a run


def making(input: Inputs, session: Session, workspace: Workspace) -> None:
    """Everything that the tab does."""
    options = choosing(input, session, workspace)
    planning: list[tuple[Run, str]] = []  # the last plan and its job; watched, as the run is
    advising: list[tuple[Run, list[str]]] = []  # the last advice and what was asked
    failed: reactive.Value[str] = reactive.value("")

    def stop_planning() -> None:
        for run, _ in planning:
            run.cancel()
        planning.clear()

    def stop_advising() -> None:
        for run, _ in advising:
            run.cancel()
        advising.clear()

    session.on_ended(stop_planning)
    session.on_ended(stop_advising)

    @reactive.effect
    @reactive.event(input.advise)
    def _advise() -> None:
        stop_advising()
        asked = advice_arguments(options())
        advising.append((workspace.command(*asked), asked))

    @reactive.effect
    @reactive.event(input.stop_advice)
    def _stop_advice() -> None:
        stop_advising()

    @reactive.poll(lambda: [run.progress for run, _ in advising], WATCH)
    def watched_advice() -> tuple[Run, list[str]] | None:
        return advising[-1] if advising else None

    @render.ui
    def curve() -> Any:
        found = watched_advice()
        if found is None:
            return None
        run, asked = found
        if run.running:
            return shown_progress(run)
        if run.result is None:
            return error_box(run.error)
        if asked != advice_arguments(options()):
            return notice("plain", "The settings have changed", "Estimate the accuracy again.")
        return shown_advice(run.result, input.epsilon())

    @reactive.poll(lambda: [run.running for run, _ in advising], WATCH)
    def is_advising() -> bool:
        return any(run.running for run, _ in advising)

    @render.ui
    def advice_button() -> Any:
        if is_advising():
            return ui.input_action_button("stop_advice", "Stop", class_="btn-outline-danger")
        return ui.input_action_button("advise", "Estimate the accuracy", class_="btn-outline-primary")

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

    @reactive.poll(lambda: None if workspace.run is None else workspace.run.progress, WATCH)
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
