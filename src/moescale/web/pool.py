"""The processes that answer: few at a time, each ended when its client has left, when its time is up, and with the server."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from moescale.errors import MoescaleError

COMMAND = (sys.executable, "-m", "moescale.web.calculator")
MOST_WORKING = 2  # processes, each of some 150 MB
MOST_WAITING = 16  # requests; a page has at most three under way
LIMIT_S = 30.0  # of an answer; those within the bounds of state.py take about two seconds of processor time at most
GRACE_S = 2.0  # to finish for a client that has left: a new process takes longer to start than most answers
LINE_LIMIT_BYTES = 256 * 2**20  # of an answer


class BusyError(MoescaleError):
    """MOST_WAITING requests wait already."""

    def __init__(self) -> None:
        super().__init__("the server has too many questions under way", next_step="ask again in a second")


class BrokenError(MoescaleError):
    """A process ended without an answer: by an error of its own, or with the server."""

    def __init__(self) -> None:
        super().__init__("the answer ended unexpectedly", next_step="see the terminal that `moescale web` runs in")


class Pool:
    """Processes that run `command`: one from `start` on, the others once it has answered, so that they do not load at a time."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = command
        self._turns = asyncio.Semaphore(1)
        self._more: asyncio.Task[None] | None = None
        self._idle: list[Process] = []
        self._every: set[Process] = set()
        self._asked = 0
        self._closed = False

    async def start(self) -> None:
        """Start the first process, which loads what it needs while the page is on its way."""
        self._idle.append(await self._started())

    async def ask(self, task: dict[str, Any], left: asyncio.Future[None]) -> bytes:
        """The answer to a task as JSON; `left` is done when the client has gone, and nothing is returned then.

        Raises BusyError, BrokenError, and MoescaleError after LIMIT_S.
        """
        if self._asked >= MOST_WORKING + MOST_WAITING:
            raise BusyError
        self._asked += 1
        turn = asyncio.ensure_future(self._turns.acquire())
        try:
            await asyncio.wait({turn, left}, return_when=asyncio.FIRST_COMPLETED)
            return await self._answer(task, left) if turn.done() else b""
        finally:
            self._asked -= 1
            if turn.done():
                self._turns.release()
            turn.cancel()

    async def close(self) -> None:
        """End every process; what waits for one gets BrokenError."""
        self._closed = True
        for process in list(self._every):
            await self._end(process)

    async def _answer(self, task: dict[str, Any], left: asyncio.Future[None]) -> bytes:
        process = await self._process()
        reply = asyncio.ensure_future(_exchange(process, task))
        try:
            await asyncio.wait({reply, left}, timeout=LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
            if left.done():
                await asyncio.wait({reply}, timeout=GRACE_S)
            elif not reply.done():
                raise MoescaleError(
                    f"the answer took longer than {LIMIT_S:g} s and was stopped",
                    where="address",
                    next_step="leave out expert counts, allow fewer GPUs, or run the command line, which has no such limit",
                )
            line = reply.result() if reply.done() else b""
            if not line and not left.done():
                raise BrokenError
            return line
        finally:
            if reply.done() and not reply.cancelled() and reply.result():
                self._idle.append(process)
                self._more = self._more or asyncio.ensure_future(self._start_more())
            else:
                reply.cancel()
                await self._end(process)

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
                self._turns.release()

    async def _started(self) -> Process:
        if self._closed:
            raise BrokenError
        # Its standard error is ours: an error of its own leaves its traceback there.
        process = await asyncio.create_subprocess_exec(*self._command, stdin=PIPE, stdout=PIPE, limit=LINE_LIMIT_BYTES)
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


async def _exchange(process: Process, task: dict[str, Any]) -> bytes:
    """The line that answers a task, or nothing where the process ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(task).encode() + b"\n")
        await process.stdin.drain()
        line = await process.stdout.readline()
    except (ConnectionError, ValueError):  # ended, or a line beyond the limit
        return b""
    return line if line.endswith(b"\n") else b""
