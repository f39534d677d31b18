"""Does `--parallel auto` find what a provider takes? `python benchmarks/pacing.py [--seconds 60]`

Three stand-in providers, 200 ms a call: one takes 50 calls at once; one has a token bucket of 10 calls a second and a burst
of 20, and sends Retry-After; one is the same without it. Each is run with `auto` and with fixed numbers of conversations.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

LATENCY_S = 0.2
PROVIDERS = {"50 at once": 250.0, "bucket, Retry-After": 10.0, "bucket, no hint": 10.0}
"""The calls a second that each takes."""
FIXED = {"50 at once": (25, 50, 100), "bucket, Retry-After": (2, 4, 8), "bucket, no hint": (2, 4, 8)}
ANSWER = {"choices": [{"message": {"role": "assistant", "content": "ok"}}], "model": "m", "usage": {"prompt_tokens": 9}}


class Provider:
    """Answers or refuses each call, and counts."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.in_flight = 0
        self.tokens, self.filled = 20.0, time.monotonic()
        self.accepted: list[float] = []
        self.rejected = 0
        self.first = 0.0

    def take(self) -> bool:
        if self.kind == "50 at once":
            return self.in_flight < 50
        now = time.monotonic()
        self.tokens, self.filled = min(20.0, self.tokens + 10 * (now - self.filled)), now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"GET"):
                    await self.answer(writer, "200 OK", {"accepted": self.accepted, "rejected": self.rejected})
                    continue
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                self.first = self.first or time.monotonic()
                if not self.take():
                    self.rejected += 1
                    hint = "Retry-After: 1\r\n" if "Retry-After" in self.kind else ""
                    await self.answer(writer, "429 Too Many Requests", {"error": {"message": "too many"}}, hint)
                    continue
                self.in_flight += 1
                try:
                    await asyncio.sleep(LATENCY_S)
                finally:
                    self.in_flight -= 1
                self.accepted.append(round(time.monotonic() - self.first, 3))
                await self.answer(writer, "200 OK", ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def answer(self, writer: asyncio.StreamWriter, status: str, value: Any, headers: str = "") -> None:
        body = json.dumps(value).encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        writer.write(head.encode() + body)
        await writer.drain()


async def serve(kind: str) -> None:
    server = await asyncio.start_server(Provider(kind).serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def measure(kind: str, parallel: str, seconds: float) -> dict[str, Any]:
    """One run of three calls a case, as many cases as the provider can take in that time."""
    with tempfile.TemporaryDirectory(prefix="viva-pacing-") as name:
        folder = Path(name)
        process = subprocess.Popen([sys.executable, __file__, "--serve", kind], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            url = f"http://127.0.0.1:{int(process.stdout.readline())}"
            connector = f'[connectors.c]\nbase_url = "{url}/v1"\nmodel = "m"\n'
            (folder / "viva.toml").write_text(connector + '[agents.a]\ntype = "chat"\nconnector = "c"\n')
            check = [{"type": "contains", "value": "ok"}]
            cases = [
                {"id": f"c{at}", "turns": [{"input": "x", "assertions": check}] * 3}
                for at in range(int(PROVIDERS[kind] * seconds / 3))
            ]
            (folder / "s.jsonl").write_text("\n".join(map(json.dumps, cases)))
            command = [sys.executable, "-m", "viva", "test", "s.jsonl", "-n", "a", "--parallel", parallel, "-q"]
            start = time.perf_counter()
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            wall = time.perf_counter() - start
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as answer:
                counts = json.load(answer)
        finally:
            process.terminate()
            process.wait()
        accepted, last = counts["accepted"], max(counts["accepted"])
        late = [at for at in accepted if 10 < at < last - 1]
        late_s = last - 11
        return {
            "lost": len(cases) * 3 - len(accepted) if done.returncode else 0,
            "rejected": counts["rejected"] / (counts["rejected"] + len(accepted)),
            "share": f"{len(late) / late_s / PROVIDERS[kind]:.0%}" if late_s > 1 else "too short",
            "wall": wall,
            "exit": done.returncode,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="the shortest possible time of each run")
    parser.add_argument("--serve", choices=PROVIDERS, help=argparse.SUPPRESS)
    parser.add_argument("--together", action="store_true", help="all runs at the same time, each with its own provider")
    a = parser.parse_args()
    if a.serve:
        asyncio.run(serve(a.serve))
        return
    os.environ["OPENAI_API_KEY"] = "x"
    print("| provider | conversations | run s | of its rate after 10 s | rejected | lost calls |\n|" + " --- |" * 6)
    runs = [(kind, parallel) for kind in PROVIDERS for parallel in ("auto", *map(str, FIXED[kind]))]
    with ThreadPoolExecutor(len(runs) if a.together else 1) as threads:
        for (kind, parallel), r in zip(
            runs, threads.map(lambda run: measure(run[0], run[1], a.seconds), runs), strict=True
        ):
            print(
                f"| {kind} | {parallel} | {r['wall']:.1f} | {r['share']} | {r['rejected']:.1%} | {r['lost']} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
