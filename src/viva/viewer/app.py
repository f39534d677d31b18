"""The HTTP API of the viewer: the page and its data. Only `--allow-run` lets it start runs; labels can always be given.

    GET  /                                   the page
    GET  api/status                          {allow_run, version, live: [run, ...]}
    GET  api/runs                            [run of the index with its summary and `live`, ...], newest first; a live one
                                             has its `progress`
    GET  api/runs/{run}                      Overview: the run's metrics and a row for each case
    GET  api/runs/{run}/live                 {progress, view: LiveView}: the conversations that run now, with their turns;
                                             null if the run has ended
    GET  api/runs/{run}/cases/{index}        {trials: [record, ...], attachments?}; `index` of the case's row
    GET  api/runs/{run}/labels               RunLabels: the labels of its verdicts, and how often people agree
    POST api/runs/{run}/cases/{index}/labels {label, trial?, check?, note?} -> 201 RunLabels: a person agrees, disagrees, is
                                             unsure, or takes that back (null). It is stored beside the run
    GET  api/labels                          [LabelPoint, ...]: the agreement of each run with labels, oldest first
    GET  api/runs/{run}/search?q=            [{index, hits?: [{trial, place, kind, snippet}]}]: the cases whose conversations,
                                             tool arguments or reasons have all words of `q`
    GET  api/runs/{run}/rows?offset=&limit=  {total, offset, rows, hits}: some rows of a run with more than 5,000 cases, whose
                                             overview has none; the filter of the page: status, fault, tag, suite, type,
                                             group, q, sort
    GET  api/runs/{run}/rows/case?of=&case=  {row, total, position?, before?, after?}: a case of suite `of` among these rows
    GET  api/runs/{run}/records              all records as JSON lines, for download
    GET  api/runs/{run}/events               text/event-stream: all events of the journal, one message each; then a
                                             message `end`: {run, killed, exit_code, stopped, stop_message}
    GET  api/compare?base=&head=             {comparison, base, head, differences}: the output of `viva compare -o x.json`, and
                                             what differs apart from the results; base_agent= and head_agent= choose among several
    GET  api/matrix?run=&run=                {matrix, columns: [{run, agent}, ...]}: all agents of one run or more
    GET  api/history                         {runs, lines: [HistoryLine, ...], flaky: [FlakyCase, ...]}: a line for each agent and
                                             suite, of the newest `runs`
    POST api/runs                            {inputs, agent?, only?, tags?, runs?} -> 201 {run}, with --allow-run
    POST api/runs/{run}/rerun                -> 201 {run}, with --allow-run: the same inputs, agent and settings
    POST api/runs/{run}/cases/{index}/rerun  -> 201 {run}, with --allow-run: only this case

`{run}` is an id, a prefix of one, `latest` or `latest~1`. Errors are {error} with a status.
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
from viva.history.index import History, read_run_start
from viva.history.lines import SuitePoint, build_suite_points, group_points_into_lines
from viva.history.trends import find_flaky_cases
from viva.model import codec
from viva.model.event import RunStarted
from viva.reporters.html import encode_case_trials
from viva.reporters.page import load_page
from viva.reporters.report import CaseTrials
from viva.viewer.labels import LabelRequest, LabelStore, RunLabels
from viva.viewer.launcher import RunLauncher, RunRequest
from viva.viewer.rows import MAX_BATCH_ROWS, RowFilter, RowTable
from viva.viewer.runs import ProjectRuns, RunAgent, RunJournal
from viva.viewer.stream import stream_journal

_MAX_POINTS = 100
_MAX_COLUMNS = 20
_FLAKY_WINDOW = 20
_MAX_BODY_BYTES = 64 * 1024
_MAX_SEARCH = 1000
_BODY_TIMEOUT_S = 5.0
_INDEX = re.compile(r"\d{1,12}", re.ASCII)


class ViewerRoutes:
    """The request handlers. Synchronous ones read files or the index: Starlette runs them in threads."""

    def __init__(
        self, history: History, launcher: RunLauncher | None, labels: LabelStore, is_closing: Callable[[], bool]
    ) -> None:
        self._labels = labels
        self._runs = ProjectRuns(history)
        self._launcher = launcher
        self._is_closing = is_closing
        self._points: dict[tuple[str, str | None], list[SuitePoint]] = {}

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/", self.get_page),
            Route("/api/status", self.get_status),
            Route("/api/runs", self.list_runs),
            Route("/api/runs", self.start_run, methods=["POST"]),
            Route("/api/runs/{run}", self.get_run),
            Route("/api/runs/{run}/live", self.get_live),
            Route("/api/runs/{run}/rerun", self.rerun, methods=["POST"]),
            Route("/api/runs/{run}/cases/{index}", self.get_case),
            Route("/api/runs/{run}/cases/{index}/rerun", self.rerun_case, methods=["POST"]),
            Route("/api/runs/{run}/cases/{index}/labels", self.add_label, methods=["POST"]),
            Route("/api/runs/{run}/labels", self.get_labels),
            Route("/api/labels", self.list_labels),
            Route("/api/runs/{run}/search", self.search_run),
            Route("/api/runs/{run}/records", self.download_records),
            Route("/api/runs/{run}/rows", self.list_rows),
            Route("/api/runs/{run}/rows/case", self.find_case),
            Route("/api/runs/{run}/events", self.stream_run),
            Route("/api/compare", self.compare_runs),
            Route("/api/matrix", self.get_matrix),
            Route("/api/history", self.get_history),
        ]

    def get_page(self, request: Request) -> Response:
        page = load_page()
        headers = {"content-security-policy": f"{page.policy}; frame-ancestors 'none'"}
        return Response(page.content, media_type="text/html", headers=headers)

    def get_status(self, request: Request) -> Response:
        allow_run = self._launcher is not None
        return _respond_json({"allow_run": allow_run, "version": viva.__version__, "live": self._runs.list_live_runs()})

    def list_runs(self, request: Request) -> Response:
        return _respond_json(self._runs.list_runs())

    def get_run(self, request: Request) -> Response:
        return Response(self._find(request).load_overview(), media_type="application/json")

    def get_live(self, request: Request) -> Response:
        run = self._find(request)
        view = run.load_live_view() if run.is_live else None
        return _respond_json({"progress": run.load_progress(), "view": view} if run.is_live else None)

    def get_case(self, request: Request) -> Response:
        run, case = self._find_case(request)
        settings = run.started.settings if run.started else {}
        folder = Path(dict(settings.get("options", {})).get("folder") or ".")
        return Response(encode_case_trials(case, folder, settings), media_type="application/json")

    def search_run(self, request: Request) -> Response:
        text = request.query_params.get("q", "")
        if len(text) > _MAX_SEARCH:
            raise HTTPException(400, f"The parameter q is longer than {_MAX_SEARCH} characters")
        return _respond_json(self._find(request).search(text))

    def list_rows(self, request: Request) -> Response:
        query = request.query_params
        numbers = [query.get(name, default) for name, default in (("offset", "0"), ("limit", str(MAX_BATCH_ROWS)))]
        if not all(map(_INDEX.fullmatch, numbers)):
            raise HTTPException(400, "offset and limit are numbers")
        table = self._find_row_table(request)
        return _respond_json(table.load_batch(RowFilter.from_query(query), *map(int, numbers)))

    def find_case(self, request: Request) -> Response:
        query = request.query_params
        table = self._find_row_table(request)
        position = table.find_case(
            RowFilter.from_query(query), (query.get("of", ""), query.get("case", ""), query.get("on", ""))
        )
        if position is None:
            raise HTTPException(404, "The run does not have this case")
        return _respond_json(position)

    def _find_row_table(self, request: Request) -> RowTable:
        if len(request.query_params.get("q", "")) > _MAX_SEARCH:
            raise HTTPException(400, f"The parameter q is longer than {_MAX_SEARCH} characters")
        table = self._find(request).load_row_table()
        if table is None:
            raise HTTPException(404, "The overview of this run has all its rows")
        return table

    def download_records(self, request: Request) -> Response:
        run = self._find(request)
        lines = (record + b"\n" for _, records in run.iter_raw_cases() for record in records)
        headers = {"content-disposition": f'attachment; filename="{run.path.parent.name}.jsonl"'}
        return StreamingResponse(lines, media_type="application/jsonl", headers=headers)

    def compare_runs(self, request: Request) -> Response:
        query = request.query_params
        base, head = (RunAgent(query.get(side, ""), query.get(f"{side}_agent", "")) for side in ("base", "head"))
        if not base.run or not head.run:
            raise HTTPException(400, "The parameters base and head are required")
        try:
            return _respond_json(self._runs.compare_runs(base, head))
        except BadInput as error:
            raise HTTPException(404, str(error)) from error

    def get_matrix(self, request: Request) -> Response:
        names = request.query_params.getlist("run")
        if not 1 <= len(names) <= _MAX_COLUMNS:
            raise HTTPException(400, f"The parameter run is required, at most {_MAX_COLUMNS} times")
        try:
            return _respond_json(self._runs.build_matrix(names))
        except BadInput as error:
            raise HTTPException(404, str(error)) from error

    def get_history(self, request: Request) -> Response:
        history = self._runs.history
        rows = history.list_runs(limit=_MAX_POINTS)
        ended = [row for row in reversed(rows) if row.ended is not None]
        keys = [(row.id, row.ended) for row in ended]  # a run that was resumed ends again
        for key, row in zip(keys, ended, strict=True):
            if key not in self._points:
                self._points[key] = build_suite_points(history, row, read_run_start(history.journal_path(row.id)))
        lines = group_points_into_lines(point for key in keys for point in self._points[key])
        flaky = find_flaky_cases(history, [row.id for row in rows[:_FLAKY_WINDOW]])
        return _respond_json({"runs": len(ended), "lines": lines, "flaky": flaky})

    def get_labels(self, request: Request) -> Response:
        return _respond_json(self._labels.load(self._find(request)))

    def list_labels(self, request: Request) -> Response:
        return _respond_json(self._labels.list_agreements(self._runs))

    async def add_label(self, request: Request) -> Response:
        raw = await _read_body(request)
        try:
            label = codec.decode(raw, type=LabelRequest)
        except codec.DecodeError as error:
            raise HTTPException(400, str(error)) from error
        return _respond_json(await run_in_threadpool(self._store_label, request, label), 201)

    def _store_label(self, request: Request, label: LabelRequest) -> RunLabels:
        run, case = self._find_case(request)
        return self._labels.add(run, case.records(), label)

    async def stream_run(self, request: Request) -> Response:
        run = await run_in_threadpool(self._find, request)

        async def should_stop() -> bool:
            return self._is_closing() or await request.is_disconnected()

        return StreamingResponse(stream_journal(run, should_stop), media_type="text/event-stream")

    async def start_run(self, request: Request) -> Response:
        launcher = self._require_launcher()
        raw = await _read_body(request)
        try:
            run_request = codec.decode(raw, type=RunRequest)
        except codec.DecodeError as error:
            raise HTTPException(400, str(error)) from error
        known_runs = await run_in_threadpool(self._runs.history.list_runs, limit=_MAX_POINTS)
        return _respond_json({"run": await launcher.start_run(run_request, known_runs)}, 201)

    async def rerun(self, request: Request) -> Response:
        launcher = self._require_launcher()
        run = await run_in_threadpool(self._find, request)
        return _respond_json({"run": await launcher.rerun(_require_started(run))}, 201)

    async def rerun_case(self, request: Request) -> Response:
        launcher = self._require_launcher()
        run, case = await run_in_threadpool(self._find_case, request)
        return _respond_json({"run": await launcher.rerun_case(_require_started(run), case.records()[0])}, 201)

    def _require_launcher(self) -> RunLauncher:
        if self._launcher is None:
            raise HTTPException(403, "This viewer is read-only. Start it with `viva view --allow-run` to start runs")
        return self._launcher

    def _find(self, request: Request) -> RunJournal:
        try:
            return self._runs.find(request.path_params["run"])
        except BadInput as error:
            raise HTTPException(404, str(error)) from error

    def _find_case(self, request: Request) -> tuple[RunJournal, CaseTrials]:
        run = self._find(request)
        index = request.path_params["index"]
        case = run.load_case(int(index)) if _INDEX.fullmatch(index) else None
        if case is None:
            raise HTTPException(404, "The run does not have this case, or the case is still running")
        return run, case


def make_app(
    history: History,
    *,
    launcher: RunLauncher | None = None,
    redact: Callable[[str], str] = str,
    is_closing: Callable[[], bool] = lambda: False,
) -> Starlette:
    """The app without access control. `redact` removes secrets from notes; `is_closing` tells streams that it shuts down."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncGenerator[None]:
        yield
        if launcher is not None:
            await launcher.close()

    viewer = ViewerRoutes(history, launcher, LabelStore(redact), is_closing)
    handlers: Any = {HTTPException: _handle_http_error, BadInput: _handle_bad_input}
    return Starlette(routes=viewer.routes(), exception_handlers=handlers, lifespan=lifespan)


def _require_started(run: RunJournal) -> RunStarted:
    if run.started is None:
        raise HTTPException(404, "The journal does not hold the start of this run")
    return run.started


async def _read_body(request: Request) -> bytes:
    raw = b""
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            async for piece in request.stream():
                raw += piece
                if len(raw) > _MAX_BODY_BYTES:
                    raise HTTPException(413, f"The body is larger than {_MAX_BODY_BYTES} bytes")
    except TimeoutError as error:
        raise HTTPException(408, "The body was not received in time") from error
    return raw


def _respond_json(value: Any, status: int = 200) -> Response:
    return Response(codec.encode(value), status, media_type="application/json")


def _handle_http_error(_request: Request, error: HTTPException) -> Response:
    return _respond_json({"error": error.detail}, error.status_code)


def _handle_bad_input(request: Request, error: BadInput) -> Response:
    """A damaged index, or a run that cannot be started."""
    return _respond_json({"error": str(error)}, 422 if request.method == "POST" else 503)
