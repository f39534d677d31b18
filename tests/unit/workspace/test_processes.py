"""Commands and their families: what they say is bounded, and nothing of them survives, however they are left."""

import asyncio
import errno
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import uvloop

from real_clis import node
from viva.errors import AgentFailed, Undetermined, Unreachable
from viva.session.file_limit import raise_file_limit
from viva.workspace.processes import (
    TRIAL_VARIABLE,
    CommandLimits,
    Process,
    find_trial_processes,
    get_process_start_time,
    kill_orphans,
    run_command,
)

Run = Callable[[Coroutine[Any, Any, Any]], Any]
SLEEPS = "echo $$ ready; exec sleep 600"
IGNORES_TERM = "trap '' TERM; echo $$ ready; while :; do sleep 600; done"
DAEMON = "setsid sh -c 'trap \"\" TERM HUP; echo $$ ready; while :; do sleep 600; done' & wait"
"""It leaves its session, and is told to end to no avail."""
NAMELESS_DAEMON = "(env -i PATH=\"$PATH\" setsid sh -c 'echo $$ ready; exec sleep 600' &); exec sleep 600"
"""It leaves its session, its parent, and the environment by which it could be known."""
FAMILIES = [SLEEPS, IGNORES_TERM, DAEMON, NAMELESS_DAEMON]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return request.param


def environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"]}


def of_ours() -> dict[int, str]:
    """The living processes that this one has to answer for."""
    return {pid: mark for pid, mark in find_trial_processes().items() if f"-{os.getpid()}-" in mark}


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


async def ready(process: Process) -> int:
    """The process that says so."""
    async for line in process.lines():
        if line.endswith(b" ready"):
            return int(line.split()[0])
    raise AssertionError(process.stderr_tail)


def test_lines_code_and_errors_of_a_command(run: Run, tmp_path: Path):
    async def scenario() -> None:
        script = "pwd; printf 'a\\r\\nb\\n\\nlast'; echo oops >&2; cat; exit 3"
        async with run_command(["sh", "-c", script], cwd=str(tmp_path), env=environment()) as process:
            assert [line async for line in process.lines()] == [str(tmp_path).encode(), b"a", b"b", b"", b"last"]
            assert await process.wait() == 3
            assert process.stderr_tail == "oops\n"

    run(scenario())
    assert not of_ours()


def test_a_command_sees_only_the_environment_that_it_is_given(run: Run, tmp_path: Path):
    """P10: nothing is added but the mark, not even what Python would give itself for a locale."""

    async def scenario() -> set[bytes]:
        async with run_command(["env"], cwd=str(tmp_path), env={**environment(), "MORE": "ü"}) as process:
            return {line.partition(b"=")[0] async for line in process.lines()}

    assert run(scenario()) - {b"PWD", b"SHLVL", b"_"} == {b"PATH", b"MORE", TRIAL_VARIABLE.encode()}


def test_an_error_of_the_control_socket_is_not_the_end_of_the_command(tmp_path: Path):
    """A loop that cannot watch the socket for a moment cuts nothing off."""

    async def scenario() -> tuple[list[bytes], int]:
        loop: Any = asyncio.get_running_loop()
        receive, errors = loop.sock_recv, [OSError(errno.ENOMEM, "no memory")]

        async def sock_recv(sock: socket.socket, size: int) -> bytes:
            if errors:
                raise errors.pop()
            return await receive(sock, size)

        loop.sock_recv = sock_recv
        script = "echo one; sleep 0.1; echo two; exit 3"
        async with run_command(["sh", "-c", script], cwd=str(tmp_path), env=environment()) as process:
            return [line async for line in process.lines()], await process.wait()

    assert asyncio.run(scenario()) == ([b"one", b"two"], 3)


def test_a_command_that_is_killed_says_by_which_signal(tmp_path: Path):
    async def scenario() -> int:
        async with run_command(["sh", "-c", "kill -SEGV $$"], cwd=str(tmp_path), env=environment()) as process:
            return await process.wait()

    assert asyncio.run(scenario()) == -signal.SIGSEGV


def test_lines_can_be_left_and_taken_up_again(tmp_path: Path):
    async def scenario() -> list[bytes]:
        async with run_command(
            ["sh", "-c", "echo a; echo b; printf c"], cwd=str(tmp_path), env=environment()
        ) as process:
            return [*[await anext(process.lines()) for _ in range(2)], *[line async for line in process.lines()]]

    assert asyncio.run(scenario()) == [b"a", b"b", b"c"]


def test_what_is_sent_reaches_standard_input(run: Run, tmp_path: Path):
    async def scenario() -> list[bytes]:
        async with run_command(["cat"], cwd=str(tmp_path), env=environment(), stdin=True) as process:
            await process.send(b"one\n")
            received = [await anext(process.lines())]
            await process.send(b"two\n")
            process.close_stdin()
            return [*received, *[line async for line in process.lines()]]

    assert run(scenario()) == [b"one", b"two"]


@pytest.mark.parametrize("command", ["no-such-command", "./not-executable"])
def test_a_command_that_cannot_be_started_is_not_the_agents_failure(command: str, tmp_path: Path):
    (tmp_path / "not-executable").write_text("x")

    async def scenario() -> None:
        async with run_command([command], cwd=str(tmp_path), env=environment()) as process:
            await process.wait()

    with pytest.raises(Unreachable, match=f"{command}: cannot be started: "):  # N17
        asyncio.run(scenario())


def test_a_folder_that_the_agent_has_deleted_is_its_own_doing(tmp_path: Path):
    async def scenario() -> None:
        async with run_command(["true"], cwd=str(tmp_path / "gone"), env=environment()):
            pass

    with pytest.raises(AgentFailed, match=r"its working folder is gone: .*gone"):
        asyncio.run(scenario())


@pytest.mark.parametrize(("length", "at_least"), [(5000, 9_000_000), (1, 44_000)])
def test_a_hundred_megabytes_are_read_and_bounded(run: Run, tmp_path: Path, length: int, at_least: int):
    """The command ends although its output is not kept. Short lines count more than their bytes: they take more memory.

    What is kept ends with a whole read, so up to 64 KiB less than the limit: 32,768 of the 76,923 shortest lines.
    """

    async def scenario() -> tuple[int, int, bool]:
        script = f"yes {'x' * length} | head -c 100000000; echo; echo end"
        async with run_command(
            ["sh", "-c", script], cwd=str(tmp_path), env=environment(), limits=CommandLimits(max_bytes=10_000_000)
        ) as process:
            size = sum([len(line) async for line in process.lines()])
            return size, await process.wait(), process.has_overflowed

    size, code, overflowed = run(scenario())
    assert (code, overflowed) == (0, True)
    assert at_least < size <= 10_000_000 * length / (length + 100)


def test_a_process_with_very_many_open_files_can_run_commands(run: Run, tmp_path: Path):
    """`--parallel 5000` opens as many connections; a supervisor gets a descriptor with a number above theirs."""

    async def scenario() -> tuple[list[bytes], int]:
        async with run_command(["sh", "-c", "echo hi; exit 3"], cwd=str(tmp_path), env=environment()) as process:
            return [line async for line in process.lines()], await process.wait()

    with ExitStack() as files, raise_file_limit(1100):
        for _ in range(1100):
            files.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        assert run(scenario()) == ([b"hi"], 3)


def test_one_endless_line_is_left_out_and_the_next_one_is_read(run: Run, tmp_path: Path):
    async def scenario() -> tuple[list[bytes], int]:
        script = "echo first; head -c 50000000 /dev/zero; echo; echo last; head -c 200000 /dev/zero"
        async with run_command(
            ["sh", "-c", script], cwd=str(tmp_path), env=environment(), limits=CommandLimits(max_line_bytes=100_000)
        ) as process:
            return [line async for line in process.lines()], process.overlong_lines

    assert run(scenario()) == ([b"first", b"last"], 2)


def test_the_end_of_what_it_says_on_standard_error_is_kept(tmp_path: Path):
    async def scenario() -> str:
        script = "head -c 3000000 /dev/zero >&2; echo the end >&2"
        async with run_command(["sh", "-c", script], cwd=str(tmp_path), env=environment()) as process:
            await process.wait()
            return process.stderr_tail

    tail = asyncio.run(scenario())
    assert tail.endswith("the end\n")
    assert tail.startswith("…")
    assert len(tail) <= 16 * 1024 + 1


def test_an_unread_line_does_not_stop_the_command(run: Run, tmp_path: Path):
    """`wait` reads on: a full pipe would hang the command."""

    async def scenario() -> int:
        script = "echo first; head -c 3000000 /dev/zero; exit 7"
        async with run_command(["sh", "-c", script], cwd=str(tmp_path), env=environment()) as process:
            assert await anext(process.lines()) == b"first"
            return await process.wait()

    assert run(scenario()) == 7


class HastyLoop(asyncio.SelectorEventLoop):
    """A second is over at once, as on a loop that something else has kept busy."""

    def time(self) -> float:
        return super().time() * 10_000


@pytest.mark.parametrize("to_file", [False, True], ids=["pipe", "file"])
def test_a_busy_loop_does_not_cut_off_the_last_output(to_file: bool, tmp_path: Path):
    """P11: the output ends when no process can write any more, not after a time of silence."""

    async def scenario() -> list[bytes]:
        said: list[bytes] = []
        argv = ["seq", "-f", "%050g", "20000"]
        async with run_command(argv, cwd=str(tmp_path), env=environment(), to_file=to_file) as process:
            async for line in process.lines():
                said.append(line)
                for _ in range(3):
                    await asyncio.sleep(0)
            await process.wait()
        return said

    with asyncio.Runner(loop_factory=HastyLoop) as runner:
        assert runner.run(scenario()) == [b"%050d" % number for number in range(1, 20_001)]


LAST_WORDS = "trap 'echo last words; echo in trouble >&2; exit' TERM; echo $$ ready; while :; do sleep 0.01; done"


@pytest.mark.parametrize("to_file", [False, True], ids=["pipe", "file"])
def test_what_it_prints_while_it_is_ended_can_still_be_read(to_file: bool, run: Run, tmp_path: Path):
    async def scenario() -> tuple[list[bytes], str]:
        argv = ["sh", "-c", LAST_WORDS]
        async with run_command(
            argv, cwd=str(tmp_path), env=environment(), to_file=to_file, limits=CommandLimits(grace_s=20)
        ) as process:
            await ready(process)
        return [line async for line in process.lines()], process.stderr_tail

    said, tail = run(scenario())
    assert (said, tail[-11:]) == ([b"last words"], "in trouble\n")


def test_a_program_in_javascript_that_exits_at_once_loses_nothing_in_a_file(run: Run, tmp_path: Path):
    """P11: Node throws away what a pipe did not take when the program exits."""
    if (programs := node()) is None:
        return
    code = "process.stdout.write('x'.repeat(3000000) + '\\nend\\n'); process.exit(0)"

    async def scenario() -> list[tuple[int, bytes]]:
        argv = [str(programs / "node"), "-e", code]
        async with run_command(argv, cwd=str(tmp_path), env=environment(), to_file=True) as process:
            return [(len(line), line[-3:]) async for line in process.lines()]

    assert run(scenario()) == [(3_000_000, b"xxx"), (3, b"end")]


def test_a_file_is_read_while_it_grows(run: Run, tmp_path: Path):
    async def scenario() -> list[bytes]:
        os.mkfifo(tmp_path / "fifo")
        script = "echo $$ ready; read _ < fifo; echo done | cat; (echo and; echo more) & wait"
        async with run_command(["sh", "-c", script], cwd=str(tmp_path), env=environment(), to_file=True) as process:
            await ready(process)
            (tmp_path / "fifo").write_text("go\n")
            return [line async for line in process.lines()]

    assert run(scenario()) == [b"done", b"and", b"more"]


@pytest.mark.parametrize("script", ["exec yes", "trap '' TERM; yes & yes & wait"])
def test_one_that_floods_a_file_is_ended(script: str, run: Run, tmp_path: Path):
    async def scenario() -> tuple[int, bool, int]:
        argv = ["sh", "-c", script]
        async with run_command(
            argv, cwd=str(tmp_path), env=environment(), to_file=True, limits=CommandLimits(max_bytes=100_000)
        ) as process:
            size = sum([len(line) + 1 async for line in process.lines()])
            return await process.wait(), process.has_overflowed, size

    code, overflowed, size = run(scenario())
    assert (code < 0, overflowed) == (True, True)
    assert size <= 100_000
    assert not of_ours()


def test_a_sparse_file_is_not_read_to_its_end(run: Run, tmp_path: Path):
    async def scenario() -> tuple[list[bytes], bool]:
        script = "import os; print('said', flush=True); os.ftruncate(1, 1 << 60)"
        argv = [sys.executable, "-c", script]
        async with run_command(
            argv, cwd=str(tmp_path), env=environment(), to_file=True, limits=CommandLimits(max_bytes=100_000)
        ) as process:
            return [line async for line in process.lines()], process.has_overflowed

    assert run(scenario()) in (([b"said"], True), ([], True))


def test_output_of_a_process_that_killed_its_supervisor_is_not_read_forever(run: Run, tmp_path: Path):
    """It floods both streams, and ends when they are no longer read."""
    script = "setsid sh -c 'echo $$ ready; yes >&2 & exec yes' & read _ < fifo; kill -KILL $PPID; exec sleep 600"

    async def scenario() -> int:
        async with run_command(["sh", "-c", script], cwd=str(tmp_path), env=environment()) as process:
            pid = await ready(process)
            (tmp_path / "fifo").write_text("go\n")
            assert await process.wait() == -signal.SIGKILL
        return pid

    os.mkfifo(tmp_path / "fifo")

    assert gone(run(scenario()))


def test_a_message_that_no_command_line_can_hold_is_not_the_agents_failure(tmp_path: Path):
    async def scenario() -> None:
        async with run_command(["echo", "a\0b"], cwd=str(tmp_path), env=environment()):
            pass

    with pytest.raises(Undetermined, match="echo: cannot be started: embedded null byte"):
        asyncio.run(scenario())


@pytest.mark.parametrize("script", FAMILIES)
def test_a_timeout_ends_the_whole_family(script: str, run: Run, tmp_path: Path):
    """P7: TERM, then KILL, and no child survives, whatever it does to get away."""
    pids: list[int] = []

    async def scenario() -> None:
        async with run_command(
            ["sh", "-c", script], cwd=str(tmp_path), env=environment(), limits=CommandLimits(grace_s=0.2)
        ) as process:
            pids.append(await ready(process))
            assert of_ours()
            async with asyncio.timeout(0.05):
                await process.wait()

    with pytest.raises(TimeoutError):
        run(scenario())
    assert not of_ours()
    assert not is_alive(pids[0])


@pytest.mark.parametrize("script", FAMILIES)
def test_a_cancelled_task_leaves_no_process_even_if_it_is_cancelled_twice(script: str, tmp_path: Path):
    pids: list[int] = []

    async def work(said: asyncio.Event) -> None:
        async with run_command(
            ["sh", "-c", script], cwd=str(tmp_path), env=environment(), limits=CommandLimits(grace_s=0.2)
        ) as process:
            pids.append(await ready(process))
            said.set()
            await process.wait()

    async def scenario() -> None:
        said = asyncio.Event()
        task = asyncio.create_task(work(said))
        await said.wait()
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert not of_ours()
    assert not is_alive(pids[0])


def test_a_daemon_does_not_outlive_the_command_that_has_ended_well(run: Run, tmp_path: Path):
    """It holds the streams open, and still the last line comes."""
    script = "(setsid sh -c 'trap \"\" TERM; echo $$ ready; sleep 600; sleep 600' &); read _ < fifo; echo done"

    async def scenario() -> tuple[int, list[bytes], int]:
        os.mkfifo(tmp_path / "fifo")
        async with run_command(
            ["sh", "-c", script], cwd=str(tmp_path), env=environment(), limits=CommandLimits(grace_s=0.2)
        ) as process:
            pid = await ready(process)
            (tmp_path / "fifo").write_text("go\n")
            return pid, [line async for line in process.lines()], await process.wait()

    pid, said, code = run(scenario())
    assert (said, code) == ([b"done"], 0)
    assert not is_alive(pid)
    assert not of_ours()


LEADERLESS = """
import ctypes, os, signal, subprocess, threading, time
child = subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 600; done"])
def later():
    while open(f"/proc/{os.getpid()}/stat").read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    print(child.pid, "ready", flush=True)
    time.sleep(600)
threading.Thread(target=later).start()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ctypes.CDLL(None).syscall({"x86_64": 60}.get(os.uname().machine, 93), 0)  # ends this thread alone
"""


def test_a_program_whose_first_thread_has_ended_is_not_a_dead_one(tmp_path: Path):
    """P7: Linux shows it as a zombie, but its other threads run, and its children are still its own. So Node ends."""

    async def main() -> int:
        async with run_command(
            [sys.executable, "-c", LEADERLESS], cwd=str(tmp_path), env=environment(), limits=CommandLimits(grace_s=0.2)
        ) as process:
            return await ready(process)

    child = asyncio.run(main())
    assert not is_alive(child)
    assert not of_ours()


def test_one_that_listens_to_term_may_put_its_things_in_order(tmp_path: Path):
    script = "trap 'echo tidy > left; exit 0' TERM; echo $$ ready; while :; do sleep 0.01; done"

    async def scenario() -> None:
        async with run_command(
            ["sh", "-c", script], cwd=str(tmp_path), env=environment(), limits=CommandLimits(grace_s=20)
        ) as process:
            await ready(process)

    asyncio.run(scenario())
    assert (tmp_path / "left").read_text() == "tidy\n"


VIVA = """
import asyncio, os, sys
from viva.workspace.processes import CommandLimits, run_command

async def main():
    async with run_command(["sh", "-c", sys.argv[1]], cwd=".", env={"PATH": os.environ["PATH"]}, limits=CommandLimits(grace_s=0.2)) as process:
        async for line in process.lines():
            print(process._command.pid, line.decode(), flush=True)

asyncio.run(main())
"""


def gone(pid: int, within_s: float = 30) -> bool:
    """Waits for the end of a process that is no child of ours."""
    try:
        file = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([file], [], [], within_s)[0])
    finally:
        os.close(file)


def killed(script: str, folder: Path, *, with_supervisor: bool = False) -> tuple[int, int]:
    """A process like Viva that has started a command, and is killed: its supervisor and the one who said `ready`."""
    viva = subprocess.Popen([sys.executable, "-c", VIVA, script], cwd=folder, stdout=subprocess.PIPE, text=True)
    assert viva.stdout is not None
    supervisor, pid, _ = viva.stdout.readline().split()
    if with_supervisor:
        os.kill(viva.pid, signal.SIGSTOP)  # or it would see to what its supervisor has left
        os.kill(int(supervisor), signal.SIGKILL)
    viva.kill()
    viva.wait()
    viva.stdout.close()
    return int(supervisor), int(pid)


@pytest.mark.parametrize("script", FAMILIES)
def test_when_viva_itself_is_killed_its_commands_end_too(script: str, tmp_path: Path):
    supervisor, pid = killed(script, tmp_path)
    assert gone(pid)
    assert gone(supervisor)


def test_what_even_a_killed_supervisor_has_left_is_removed_at_the_next_start(tmp_path: Path):
    _, pid = killed(DAEMON, tmp_path, with_supervisor=True)
    assert is_alive(pid)
    assert pid in kill_orphans()
    assert gone(pid)


def test_a_sweep_leaves_those_alone_whose_viva_runs(tmp_path: Path):
    async def scenario() -> None:
        async with run_command(["sh", "-c", SLEEPS], cwd=str(tmp_path), env=environment()) as process:
            pid = await ready(process)
            assert pid not in kill_orphans()
            with pytest.MonkeyPatch.context() as patch:  # /proc cannot be read: nothing is known of the owner
                patch.setattr("viva.workspace.processes.get_process_start_time", lambda pid: 0)
                assert pid not in kill_orphans()
            assert is_alive(pid)

    asyncio.run(scenario())


def test_a_process_with_an_uncertain_mark_is_not_killed(tmp_path: Path):
    """Another container's processes, and marks of other people's making."""
    marks = ["1-1-1-1", "", "x", f"{os.stat('/proc/self/ns/pid').st_ino}-999999999-0-ab"]
    others = [subprocess.Popen(["sleep", "600"], env={**environment(), TRIAL_VARIABLE: mark}) for mark in marks]
    try:
        assert {other.pid for other in others} <= set(find_trial_processes())
        assert not {other.pid for other in others} & set(kill_orphans())
        assert all(is_alive(other.pid) for other in others)
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_the_same_process_id_at_another_time_is_another_process():
    assert get_process_start_time(os.getpid()) > 0
    assert get_process_start_time(2**22 + 1) == 0
