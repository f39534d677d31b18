"""One step of the GitHub Action (`action.yml`): run or merge, compare with the base branch, comment. Standard library only.

It never fails by itself: how the run went is its output `exit-code`, so that the artifacts are kept first.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

NAME = os.environ.get("VIVA_NAME", "viva")
SHARD = os.environ.get("VIVA_SHARD", "")
MERGE = os.environ.get("VIVA_MERGE") == "true"
COMPARE = os.environ.get("VIVA_COMPARE") == "true" and not SHARD
MARK = f"<!-- viva: {NAME} -->"
MOST = 60_000  # GitHub takes comments of 65,536 characters


def viva(*arguments: str) -> int:
    print("$ viva", shlex.join(arguments), flush=True)
    return subprocess.run([sys.executable, "-m", "viva", *arguments], check=False).returncode


def run(reports: Path) -> int:
    """`viva test` or, to make one run of all shards, `viva merge`; with all reports."""
    kinds = ("html", "xml", "jsonl", "md", "json")
    outputs = [flag for kind in kinds for flag in ("-o", str(reports / f"report.{kind}"))]
    if MERGE:
        return viva("merge", str(Path(os.environ["RUNNER_TEMP"]) / "viva-shards"), *outputs)
    inputs = [flag for line in os.environ["VIVA_INPUT"].splitlines() if line.strip() for flag in ("-i", line.strip())]
    if agent := os.environ.get("VIVA_AGENT"):
        inputs += ["-n", agent]
    shard = ["--shard", SHARD] if SHARD else []
    return viva("test", *inputs, *shlex.split(os.environ.get("VIVA_ARGS", "")), *shard, *outputs)


def keep_journal(reports: Path) -> None:
    """Add the journal of a shard to its artifact: `viva merge` needs it."""
    report = reports / "report.json"
    if report.is_file():
        shutil.copy(json.loads(report.read_bytes())["run"]["settings"]["journal"], reports)


def compare(base: Path, reports: Path) -> int:
    """0, or 1 where the run is worse than the base branch by the rule that was asked for."""
    if not base.is_file() or not (reports / "report.jsonl").is_file():
        print("there is no run of the base branch to compare with yet")
        return 0
    rule = os.environ.get("VIVA_FAIL_ON", "never")
    chosen = [] if rule == "never" else [flag for gate in rule.split() for flag in ("--fail-on", gate)]
    code = viva("compare", str(base), str(reports / "report.jsonl"), *chosen, "-o", str(reports / "comparison.md"))
    return 0 if rule == "never" else code


def told(reports: Path) -> str:
    """What the pull request is told: the summary, and below it what changed."""
    parts = [reports / "report.md", reports / "comparison.md"]
    texts = [part.read_text(encoding="utf-8") for part in parts if part.is_file()]
    text = "\n\n".join(texts) or "Viva wrote no report; the log of the job says why."
    return text if len(text) <= MOST else f"{text[:MOST]}\n\n… cut; the artifact {NAME!r} holds the whole report."


def call(method: str, path: str, body: dict[str, str] | None = None) -> Any:
    request = urllib.request.Request(  # noqa: S310 -- the address is the runner's own
        f"{os.environ['GITHUB_API_URL']}/repos/{os.environ['GITHUB_REPOSITORY']}/{path}",
        json.dumps(body).encode() if body else None,
        {"Authorization": f"Bearer {os.environ['VIVA_TOKEN']}", "Accept": "application/vnd.github+json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 -- as above
        return json.load(answer)


def comment(text: str, pull_request: str) -> None:
    """One comment for each pull request: the one of before is written anew."""
    body = {"body": f"{MARK}\n{text}"}
    try:
        page, known = 1, list[dict[str, Any]]()
        while found := call("GET", f"issues/{pull_request}/comments?per_page=100&page={page}"):
            known += [each for each in found if str(each["body"]).startswith(MARK)]
            page += 1
        if known:
            call("PATCH", f"issues/comments/{known[-1]['id']}", body)
        else:
            call("POST", f"issues/{pull_request}/comments", body)
    except (urllib.error.URLError, TimeoutError) as trouble:  # a fork's token may not comment: the run counts, not this
        print(f"::warning::Viva could not comment on the pull request: {trouble}")


def main() -> None:
    temporary = Path(os.environ["RUNNER_TEMP"])
    reports, base = temporary / "viva-reports", temporary / "viva-base" / "report.jsonl"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir(parents=True)
    code, artifact = run(reports), NAME
    if SHARD:
        artifact = f"{NAME}-shard-{SHARD.replace('/', '-of-')}"
        keep_journal(reports)
        code = 0 if code in (0, 1, 5) else code  # the merged run decides about its cases
    if COMPARE:
        code = compare(base, reports) or code
        if (reports / "report.jsonl").is_file():
            base.parent.mkdir(exist_ok=True)
            shutil.copy(reports / "report.jsonl", base)
    with Path(os.environ["GITHUB_STEP_SUMMARY"]).open("a", encoding="utf-8") as summary:
        summary.write(told(reports) + "\n")
    with Path(os.environ["GITHUB_OUTPUT"]).open("a", encoding="utf-8") as outputs:
        outputs.write(f"exit-code={code}\nreports={reports}\nartifact={artifact}\n")
    pull_request = os.environ.get("VIVA_PULL_REQUEST")
    if pull_request and COMPARE:
        comment(told(reports), pull_request)


if __name__ == "__main__":
    main()
