"""The viewer's server: the page, and the data that it asks for. Everything is read-only unless runs are allowed.

    GET  /                                   the page
    GET  api/me                              {allow_run, version, live: [run, ...]}
    GET  api/runs                            [run of the index with its summary and `live`, ...], newest first
    GET  api/runs/{run}                      Overview: the run's figures and a row for each case
    GET  api/runs/{run}/cases/{index}        {trials: [record, ...], attachments?}; `index` is that of the case's row
    GET  api/runs/{run}/events               text/event-stream: the events of the journal, one message each, those before
                                             now too; then a message `end`: {run, killed, exit_code, stopped, why}
    GET  api/compare?base=&head=             what `viva compare -o x.json` writes
    GET  api/history                         {runs: [RunPoint, ...] oldest first, flaky: [FlakyCase, ...]}
    POST api/runs                            {inputs, agent?, only?, tags?, runs?} -> 201 {run}, with --allow-run
    POST api/runs/{run}/rerun                -> 201 {run}, with --allow-run: the same inputs, agent and settings
    POST api/runs/{run}/cases/{index}/rerun  -> 201 {run}, with --allow-run: only this case of it

`{run}` is an id, its beginning, `latest` or `latest~1`. What goes wrong is {error} with its status.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

import viva
from viva.errors import BadInput
from viva.history.index import History
from viva.history.trends import RunPoint, find_flaky_cases, make_run_point
from viva.model import codec
from viva.model.event import RunStarted
from viva.reporters.html import encode_case_trials
from viva.reporters.page import load_page
from viva.reporters.report import CaseTrials
from viva.viewer.launcher import RunLauncher, RunRequest
from viva.viewer.runs import ProjectRuns, RunJournal
from viva.viewer.stream import stream_journal

_MOST_POINTS = 100
_FLAKY_WINDOW = 20
_MOST_BODY = 64 * 1024
_BODY_S = 5.0
_INDEX = re.compile(r"\d{1,12}", re.ASCII)


class ViewerRoutes:
    """The handlers. Those that read files or the index are plain functions: the server runs them in threads."""

    def __init__(self, history: History, starter: RunLauncher | None, leaving: Callable[[], bool]) -> None:
        self._runs = ProjectRuns(history)
        self._starter = starter
        self._leaving = leaving
        self._points: dict[str, RunPoint] = {}

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/", self.get_page),
            Route("/api/me", self.get_status),
            Route("/api/runs", self.list_runs),
            Route("/api/runs", self.start_run, methods=["POST"]),
            Route("/api/runs/{run}", self.get_run),
            Route("/api/runs/{run}/rerun", self.rerun, methods=["POST"]),
            Route("/api/runs/{run}/cases/{index}", self.get_case),
            Route("/api/runs/{run}/cases/{index}/rerun", self.rerun_case, methods=["POST"]),
            Route("/api/runs/{run}/events", self.stream_run),
            Route("/api/compare", self.compare_runs),
            Route("/api/history", self.get_history),
        ]

    def get_page(self, request: Request) -> Response:
        built = load_page()
        headers = {"content-security-policy": f"{built.policy}; frame-ancestors 'none'"}
        return Response(built.content, media_type="text/html", headers=headers)

    def get_status(self, request: Request) -> Response:
        allow_run = self._starter is not None
        return _json({"allow_run": allow_run, "version": viva.__version__, "live": self._runs.list_live_runs()})

    def list_runs(self, request: Request) -> Response:
        return _json(self._runs.list_runs())

    def get_run(self, request: Request) -> Response:
        return _json(self._find(request).load_overview())

    def get_case(self, request: Request) -> Response:
        run, case = self._find_case(request)
        settings = run.started.settings if run.started else {}
        folder = Path(dict(settings.get("options", {})).get("folder") or ".")
        return Response(encode_case_trials(case, folder, settings), media_type="application/json")

    def compare_runs(self, request: Request) -> Response:
        names = [request.query_params.get(name, "") for name in ("base", "head")]
        if not all(names):
            raise HTTPException(400, "compare wants base and head")
        try:
            return _json(self._runs.compare_runs(*names))
        except BadInput as unknown:
            raise HTTPException(404, str(unknown)) from unknown

    def get_history(self, request: Request) -> Response:
        history = self._runs.history
        rows = history.list_runs(limit=_MOST_POINTS)
        for row in rows:
            if row.ended is None:
                self._points.pop(row.id, None)  # it was resumed
            elif row.id not in self._points and (point := make_run_point(history, row)) is not None:
                self._points[row.id] = point
        points = [self._points[row.id] for row in reversed(rows) if row.id in self._points]
        return _json({"runs": points, "flaky": find_flaky_cases(history, [row.id for row in rows[:_FLAKY_WINDOW]])})

    async def stream_run(self, request: Request) -> Response:
        run = await run_in_threadpool(self._find, request)

        async def leave() -> bool:
            return self._leaving() or await request.is_disconnected()

        return StreamingResponse(stream_journal(run, leave), media_type="text/event-stream")

    async def start_run(self, request: Request) -> Response:
        starter = self._allowed()
        raw = await _body(request)
        try:
            wanted = codec.decode(raw, type=RunRequest)
        except codec.DecodeError as wrong:
            raise HTTPException(400, str(wrong)) from wrong
        known = await run_in_threadpool(self._runs.history.list_runs, limit=_MOST_POINTS)
        return _json({"run": await starter.start_run(wanted, known)}, 201)

    async def rerun(self, request: Request) -> Response:
        starter = self._allowed()
        run = await run_in_threadpool(self._find, request)
        return _json({"run": await starter.rerun(_known_start(run))}, 201)

    async def rerun_case(self, request: Request) -> Response:
        starter = self._allowed()
        run, case = await run_in_threadpool(self._find_case, request)
        return _json({"run": await starter.rerun_case(_known_start(run), case.records()[0])}, 201)

    def _allowed(self) -> RunLauncher:
        if self._starter is None:
            raise HTTPException(403, "this viewer only shows; `viva view --allow-run` lets it start runs")
        return self._starter

    def _find(self, request: Request) -> RunJournal:
        try:
            return self._runs.find(request.path_params["run"])
        except BadInput as unknown:
            raise HTTPException(404, str(unknown)) from unknown

    def _find_case(self, request: Request) -> tuple[RunJournal, CaseTrials]:
        run = self._find(request)
        index = request.path_params["index"]
        case = run.load_case(int(index)) if _INDEX.fullmatch(index) else None
        if case is None:
            raise HTTPException(404, "the run has no such case, or it has not ended yet")
        return run, case


def make_app(
    history: History, *, launcher: RunLauncher | None = None, is_closing: Callable[[], bool] = lambda: False
) -> Starlette:
    """The app, unguarded. `leaving` tells streams that the server is about to end."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncGenerator[None]:
        yield
        if launcher is not None:
            await launcher.close()

    viewer = ViewerRoutes(history, launcher, is_closing)
    handlers: Any = {HTTPException: _say, BadInput: _say_bad_input}
    return Starlette(routes=viewer.routes(), exception_handlers=handlers, lifespan=lifespan)


def _known_start(run: RunJournal) -> RunStarted:
    if run.started is None:
        raise HTTPException(404, "nobody knows how that run was started")
    return run.started


async def _body(request: Request) -> bytes:
    """All that was sent, if it is little and comes soon."""
    raw = b""
    try:
        async with asyncio.timeout(_BODY_S):
            async for piece in request.stream():
                raw += piece
                if len(raw) > _MOST_BODY:
                    raise HTTPException(413, "that is too much")
    except TimeoutError as slow:
        raise HTTPException(408, "that took too long") from slow
    return raw


def _json(value: Any, status: int = 200) -> Response:
    return Response(codec.encode(value), status, media_type="application/json")


def _say(_request: Request, wrong: HTTPException) -> Response:
    return _json({"error": wrong.detail}, wrong.status_code)


def _say_bad_input(request: Request, wrong: BadInput) -> Response:
    """What was asked for cannot be had: a damaged index, or a run that cannot be started like this."""
    return _json({"error": str(wrong)}, 422 if request.method == "POST" else 503)
