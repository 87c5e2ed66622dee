"""The processes that compute the answers of the page.

A process is ended when nobody waits for what it computes, when its time is up, and with the server (NumPy in a thread cannot be
stopped). Equal questions are one computation, and its answer is kept. Questions wait in the order in which they came.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from moescale.errors import MoescaleError

COMMAND = (sys.executable, "-m", "moescale.web.worker")
MOST_COMPUTING = 2  # processes for questions, each of some 150 MB
LIMIT_S = 60.0  # of an answer; within the bounds of state.py two seconds of processor time, of a life in two shapes 17
GRACE_S = 2.0  # to finish for clients that have left: a new process takes longer to start than most answers
KEPT_BYTES = 64 * 2**20  # of answers: some hundred; the one that was not asked for the longest time goes first
LINE_LIMIT_BYTES = 256 * 2**20  # of an answer

Task = dict[str, Any]


class BrokenError(MoescaleError):
    """A process ended without an answer: by an error of its own, or with the server."""

    def __init__(self) -> None:
        super().__init__("the answer ended unexpectedly", next_step="see the terminal that `moescale web` runs in")


class Worker:
    """A process of `command` (web/worker.py says how it is spoken to); after one that broke or was stopped comes another."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: Process | None = None

    async def load(self) -> Process:
        """The process; where none runs one is started, and waited for until it is ready. Raises BrokenError."""
        if self._process is not None and self._process.returncode is None:
            return self._process
        try:  # its standard error is ours: an error of its own leaves its traceback there
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, limit=LINE_LIMIT_BYTES
            )
        except OSError as error:  # no memory, or too many processes
            raise BrokenError from error
        self._process = process
        await _line(process)
        return process

    async def answer(self, task: Task) -> bytes:
        """What it writes of a task. Raises BrokenError; whoever stops waiting ends the process."""
        line = None
        try:
            process = await self.load()
            assert process.stdin is not None
            with suppress(ConnectionError):  # it has ended, as its next line will say
                process.stdin.write(json.dumps(task, default=asdict).encode() + b"\n")
                await process.stdin.drain()
            line = await _line(process)
            return line
        finally:
            if line is None:
                await self.end()

    async def end(self) -> None:
        """End the process, in the middle of its work too."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


async def _line(process: Process) -> bytes:
    assert process.stdout is not None
    try:
        line = await process.stdout.readline()
    except ValueError as error:  # beyond the limit
        raise BrokenError from error
    if not line.endswith(b"\n"):
        raise BrokenError
    return line


@dataclass(eq=False, slots=True)
class Question:
    """One computation, how many requests wait for it, and the bytes of its answer once that is kept."""

    answer: asyncio.Task[bytes]
    askers: int = 0
    n_bytes: int = 0


class Pool:
    """Answers questions with processes that run `command`."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._questions: OrderedDict[str, Question] = OrderedDict()  # the one asked last at the end
        self._workers = [Worker(command) for _ in range(MOST_COMPUTING)]
        self._free: asyncio.LifoQueue[Worker] = asyncio.LifoQueue()
        self._loading: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start the processes one after another; they load what they need while the page is on its way."""
        self._load(*self._workers)

    async def ask(self, task: Task, left: asyncio.Future[None]) -> bytes:
        """The answer to a task as JSON; `left` is done when the client has gone, and nothing is returned then.

        Raises BrokenError, and MoescaleError after LIMIT_S.
        """
        # An uploaded law's name holds the hash of its text.
        key = json.dumps([task["name"], task["query"], [law.name for law in task["laws"]]], sort_keys=True)
        question = self._questions.get(key)
        if question is None:
            question = self._questions[key] = Question(asyncio.create_task(self._compute(task)))
            question.answer.add_done_callback(lambda _: self._keep(key, question))
        self._questions.move_to_end(key)
        question.askers += 1
        try:
            await asyncio.wait({question.answer, left}, return_when=asyncio.FIRST_COMPLETED)
            if question.answer.cancelled():
                raise BrokenError
            return question.answer.result() if question.answer.done() else b""
        finally:
            question.askers -= 1
            if not question.askers:
                asyncio.get_running_loop().call_later(GRACE_S, self._drop, key, question)

    async def close(self) -> None:
        """End every process; what waits for one gets BrokenError."""
        tasks: list[asyncio.Task[Any]] = [question.answer for question in self._questions.values()]
        tasks += self._loading
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(worker.end() for worker in self._workers))

    def _load(self, *workers: Worker) -> None:
        async def load() -> None:
            for worker in workers:
                with suppress(BrokenError):  # which its next question is told
                    await worker.load()
                self._free.put_nowait(worker)

        task = asyncio.create_task(load())
        self._loading.add(task)
        task.add_done_callback(self._loading.discard)

    async def _compute(self, task: Task) -> bytes:
        worker = await self._free.get()
        try:
            async with asyncio.timeout(LIMIT_S):
                return await worker.answer(task)
        except TimeoutError as error:
            raise MoescaleError(
                f"the answer took longer than {LIMIT_S:g} s and was stopped",
                where="address",
                next_step="leave out expert counts, allow fewer GPUs, or run the command line, which has no such limit",
            ) from error
        finally:
            self._load(worker)

    def _keep(self, key: str, question: Question) -> None:
        """Keep the answer of a question, within KEPT_BYTES of all; forget a question without one."""
        failed = question.answer.cancelled() or question.answer.exception() is not None  # as whoever asks is told
        if self._questions.get(key) is not question:
            return
        if failed:
            del self._questions[key]
            return
        question.n_bytes = len(question.answer.result())
        excess = sum(each.n_bytes for each in self._questions.values()) - KEPT_BYTES
        for old in [old for old, each in self._questions.items() if each.n_bytes]:
            if excess > 0:
                excess -= self._questions.pop(old).n_bytes

    def _drop(self, key: str, question: Question) -> None:
        if self._questions.get(key) is question and not question.askers and not question.answer.done():
            del self._questions[key]
            question.answer.cancel()
