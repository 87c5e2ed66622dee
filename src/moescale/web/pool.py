"""The processes that answer: few at a time, each ended when nobody waits for it, when its time is up, and with the server.

Equal questions are one computation, and its answer is kept. Questions wait in the order in which they came, drafts before
others.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from moescale.errors import MoescaleError

COMMAND = (sys.executable, "-m", "moescale.web.calculator")
MOST_WORKING = 2  # processes, each of some 150 MB
LIMIT_S = 30.0  # of an answer; those within the bounds of state.py take about two seconds of processor time at most
GRACE_S = 2.0  # to finish for clients that have left: a new process takes longer to start than most answers
LONGEST_WAIT_S = 60.0  # of a question for its turn: one that would wait longer is refused, and asked again later
USUAL_S = 0.3  # of an answer, until one was computed: a plan with the defaults takes as long
RECENT = 0.2  # share of the newest answer in the mean time of such answers
FIRST = ("draft", "catalogue")  # what the page draws at once goes first,
MOST_IN_A_ROW = 4  # but so many at most before another question has its turn
KEPT_BYTES = 64 * 2**20  # of answers: some hundred; the one that was not asked for the longest time goes first
LINE_LIMIT_BYTES = 256 * 2**20  # of an answer


class BusyError(MoescaleError):
    """The questions that wait would take longer than LONGEST_WAIT_S; `retry_s` is when a tenth of them is answered."""

    def __init__(self, ahead: int, wait_s: float) -> None:
        self.retry_s = math.ceil(wait_s / 10)
        what = f"{ahead} questions wait already, about {wait_s:.0f} s of work"
        super().__init__(what, next_step=f"ask again in {self.retry_s} s")


class BrokenError(MoescaleError):
    """A process ended without an answer: by an error of its own, or with the server."""

    def __init__(self) -> None:
        super().__init__("the answer ended unexpectedly", next_step="see the terminal that `moescale web` runs in")


@dataclass(eq=False, slots=True)
class Work:
    """One computation, and how many requests wait for it."""

    key: str
    task: dict[str, Any]
    answer: asyncio.Future[bytes]
    askers: int = 0
    reply: asyncio.Task[bytes] | None = None  # once a process computes it


class Pool:
    """Processes that run `command`: one from `start` on, the others once it has answered, so that they do not load at a time."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = command
        self._answers: OrderedDict[str, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._under_way: dict[str, Work] = {}
        self._first: deque[Work] = deque()
        self._others: deque[Work] = deque()
        self._in_a_row = 0
        self._mean_s: dict[str, float] = {}
        self._most_working = 1
        self._working: set[asyncio.Task[None]] = set()
        self._more: asyncio.Task[None] | None = None
        self._idle: list[Process] = []
        self._every: set[Process] = set()
        self._closed = False

    async def start(self) -> None:
        """Start the first process, which loads what it needs while the page is on its way."""
        self._idle.append(await self._started())

    async def ask(self, task: dict[str, Any], left: asyncio.Future[None]) -> bytes:
        """The answer to a task as JSON; `left` is done when the client has gone, and nothing is returned then.

        Raises BusyError, BrokenError, and MoescaleError after LIMIT_S.
        """
        key = key_of(task)
        if (known := self._answers.get(key)) is not None:
            self._answers.move_to_end(key)
            return known
        work = self._under_way.get(key) or self._wait(key, task)
        work.askers += 1
        try:
            await asyncio.wait({work.answer, left}, return_when=asyncio.FIRST_COMPLETED)
            return work.answer.result() if work.answer.done() else b""
        finally:
            work.askers -= 1
            self._let_go(work)

    def place(self, task: dict[str, Any]) -> tuple[int, float] | None:
        """How many questions are before this one, and the seconds that they take; None where it does not wait."""
        work = self._under_way.get(key_of(task))
        queue = self._queue(task)
        return self._ahead(queue, queue.index(work)) if work in queue else None

    async def close(self) -> None:
        """End every process; what waits for one gets BrokenError."""
        self._closed = True
        for process in list(self._every):
            await self._end(process)

    def _queue(self, task: dict[str, Any]) -> deque[Work]:
        return self._first if task["name"] in FIRST else self._others

    def _ahead(self, queue: deque[Work], index: int) -> tuple[int, float]:
        before = [*([] if queue is self._first else self._first), *list(queue)[:index]]
        return len(before), sum(self._mean_s.get(work.task["name"], USUAL_S) for work in before) / MOST_WORKING

    def _wait(self, key: str, task: dict[str, Any]) -> Work:
        queue = self._queue(task)
        ahead, wait_s = self._ahead(queue, len(queue))
        if wait_s > LONGEST_WAIT_S:
            raise BusyError(ahead, wait_s)
        work = self._under_way[key] = Work(key, task, asyncio.get_running_loop().create_future())
        queue.append(work)
        self._hire()
        return work

    def _let_go(self, work: Work) -> None:
        """End a computation that nobody waits for: at once where it has not begun, else after GRACE_S."""
        if work.askers or work.answer.done():
            return
        if work in (queue := self._queue(work.task)):
            queue.remove(work)
            del self._under_way[work.key]
        else:
            asyncio.get_running_loop().call_later(GRACE_S, self._abandon, work)

    def _abandon(self, work: Work) -> None:
        if not work.askers and not work.answer.done() and work.reply is not None:
            self._under_way.pop(work.key, None)  # who asks now starts it again
            work.reply.cancel()

    def _hire(self) -> None:
        if len(self._working) < self._most_working:
            working = asyncio.ensure_future(self._work())
            self._working.add(working)
            working.add_done_callback(self._working.discard)

    async def _work(self) -> None:
        while (work := self._next()) is not None:
            began = time.monotonic()
            try:
                line = await self._answered(work)
            except MoescaleError as error:
                work.answer.set_exception(error)
                work.answer.exception()  # asyncio reports one that nobody looks at
            else:
                work.answer.set_result(line)
                self._keep(work.key, line)
                name, took_s = work.task["name"], time.monotonic() - began
                self._mean_s[name] = (1 - RECENT) * self._mean_s.get(name, took_s) + RECENT * took_s
                self._more = self._more or asyncio.ensure_future(self._start_more())
            finally:
                if self._under_way.get(work.key) is work:
                    del self._under_way[work.key]

    def _next(self) -> Work | None:
        first = bool(self._first) and (not self._others or self._in_a_row < MOST_IN_A_ROW)
        self._in_a_row = self._in_a_row + 1 if first else 0
        queue = self._first if first else self._others
        return queue.popleft() if queue else None

    def _keep(self, key: str, line: bytes) -> None:
        self._answers[key] = line
        self._kept_bytes += len(line)
        while self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= len(self._answers.popitem(last=False)[1])

    async def _answered(self, work: Work) -> bytes:
        process = await self._process()
        reply = work.reply = asyncio.ensure_future(_exchange(process, work.task))
        await asyncio.wait({reply}, timeout=LIMIT_S)
        line = reply.result() if reply.done() and not reply.cancelled() else b""
        if line:
            self._idle.append(process)
            return line
        late = not reply.done()
        reply.cancel()
        await self._end(process)
        if late:
            raise MoescaleError(
                f"the answer took longer than {LIMIT_S:g} s and was stopped",
                where="address",
                next_step="leave out expert counts, allow fewer GPUs, or run the command line, which has no such limit",
            )
        raise BrokenError

    async def _process(self) -> Process:
        while self._idle:
            process = self._idle.pop()
            if process.returncode is None:
                return process
            self._every.discard(process)
        return await self._started()

    async def _start_more(self) -> None:
        with suppress(BrokenError):
            for _ in range(MOST_WORKING - 1):
                self._idle.insert(0, await self._started())  # those that have loaded are taken first
                self._most_working += 1
                self._hire()

    async def _started(self) -> Process:
        if self._closed:
            raise BrokenError
        # Its standard error is ours: an error of its own leaves its traceback there.
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, limit=LINE_LIMIT_BYTES
            )
        except OSError as error:  # no memory, or too many processes
            raise BrokenError from error
        self._every.add(process)
        if self._closed:  # in the meantime
            await self._end(process)
            raise BrokenError
        return process

    async def _end(self, process: Process) -> None:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        self._every.discard(process)


def key_of(task: dict[str, Any]) -> str:
    """What equal questions share. An uploaded law's name holds the hash of its text; its runs are there or not."""
    laws = [(law.name, bool(law.evidence)) for law in task["laws"]]
    return hashlib.sha256(json.dumps([task["name"], task["query"], laws], sort_keys=True).encode()).hexdigest()


async def _exchange(process: Process, task: dict[str, Any]) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(task, default=asdict).encode() + b"\n")
        await process.stdin.drain()
        line = await process.stdout.readline()
    except (ConnectionError, ValueError):  # ended, or a line beyond the limit
        return b""
    return line if line.endswith(b"\n") else b""
