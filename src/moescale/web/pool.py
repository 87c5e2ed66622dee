"""The processes that compute: for questions a few that stay, for each fit one of its own.

A process is ended when nobody waits for what it computes, when its time is up, and with the server (NumPy in a thread cannot be
stopped). Equal questions are one computation, and its answer is kept. Questions wait in the order in which they came, those that
the page draws at once before others.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import math
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from moescale.errors import InputError, MoescaleError

COMMAND = (sys.executable, "-m", "moescale.web.worker")
MOST_COMPUTING = 2  # processes for questions, each of some 150 MB
MOST_FITS = 2
LIMIT_S = 30.0  # of an answer; those within the bounds of state.py take about two seconds of processor time at most
GRACE_S = 2.0  # to finish for clients that have left: a new process takes longer to start than most answers
LONGEST_WAIT_S = 60.0  # of a question for its turn: one that would wait longer is refused, and asked again later
USUAL_S = 0.3  # of an answer, until one was computed: a plan with the defaults takes as long
RECENT = 0.2  # share of the newest answer in the mean time of such answers
FIRST = ("draft", "catalogue")  # what the page draws at once
KEPT_BYTES = 64 * 2**20  # of answers: some hundred; the one that was not asked for the longest time goes first
LINE_LIMIT_BYTES = 256 * 2**20  # of an answer

Task = dict[str, Any]


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


class Worker:
    """A process of `command` (web/worker.py says how it is spoken to); after one that broke or was stopped comes another."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: Process | None = None

    async def load(self) -> None:
        """Start the process where none runs, and wait until it is ready. Raises BrokenError."""
        if self._process is not None and self._process.returncode is None:
            return
        # Its standard error is ours: an error of its own leaves its traceback there.
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, limit=LINE_LIMIT_BYTES
            )
        except OSError as error:  # no memory, or too many processes
            raise BrokenError from error
        await self._line()

    async def lines(self, task: Task) -> AsyncIterator[bytes]:
        """What it writes of a task: lines of progress, and last the answer. Raises BrokenError; whoever stops early ends the process."""
        answered = False
        try:
            await self.load()
            assert self._process is not None
            assert self._process.stdin is not None
            with suppress(ConnectionError):  # it has ended, as its next line will say
                self._process.stdin.write(json.dumps(task, default=asdict).encode() + b"\n")
                await self._process.stdin.drain()
            while not answered:
                line = await self._line()
                answered = not line.startswith(b'{"progress"')
                yield line
        finally:
            if not answered:
                await self.end()

    async def end(self) -> None:
        """End the process, in the middle of its work too."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _line(self) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            line = await self._process.stdout.readline()
        except ValueError as error:  # beyond the limit
            raise BrokenError from error
        if not line.endswith(b"\n"):
            raise BrokenError
        return line


@dataclass(eq=False, slots=True)
class Question:
    """One computation, and how many requests wait for it."""

    key: str
    task: Task
    turn: tuple[bool, int]  # whether others go first, and its number
    answer: asyncio.Future[bytes]
    askers: int = 0
    limit: asyncio.Timeout | None = None  # once it is computed
    deadline: float = math.inf

    def expect(self, more: int) -> None:
        """So many more wait for it; where nobody does any longer, it has GRACE_S to finish."""
        self.askers += more
        if self.limit is not None and not self.limit.expired() and not self.answer.done():
            soon = asyncio.get_running_loop().time() + GRACE_S
            self.limit.reschedule(self.deadline if self.askers else min(soon, self.deadline))

    def fail(self, error: MoescaleError) -> None:
        """Answer with an error, which asyncio does not report where nobody looks at it."""
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()


class Pool:
    """Answers questions and fits tables with processes that run `command`."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = command
        self._answers: OrderedDict[str, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._questions: dict[str, Question] = {}  # that wait or are computed
        self._queue: asyncio.PriorityQueue[tuple[tuple[bool, int], Question]] = asyncio.PriorityQueue()
        self._numbers = itertools.count()
        self._mean_s: dict[str, float] = {}
        self._computing: list[asyncio.Task[None]] = []
        self._fits: set[Worker] = set()

    def start(self) -> None:
        """Start a process, which loads what it needs while the page is on its way."""
        self._computing.append(asyncio.create_task(self._compute()))

    async def ask(self, task: Task, left: asyncio.Future[None]) -> bytes:
        """The answer to a task as JSON; `left` is done when the client has gone, and nothing is returned then.

        Raises BusyError, BrokenError, and MoescaleError after LIMIT_S.
        """
        key = key_of(task)
        if (known := self._answers.get(key)) is not None:
            self._answers.move_to_end(key)
            return known
        question = self._questions.get(key)
        if question is None or (question.limit is not None and question.limit.expired()):
            question = self._wait(key, task)
        question.expect(1)
        try:
            await asyncio.wait({question.answer, left}, return_when=asyncio.FIRST_COMPLETED)
            return question.answer.result() if question.answer.done() else b""
        finally:
            question.expect(-1)
            if not question.askers and question.limit is None:
                self._forget(question)

    async def fit(self, task: Task) -> AsyncIterator[bytes]:
        """The lines of a fit, see `Worker.lines`; it ends with whoever reads them. Raises InputError where MOST_FITS are under way."""
        if len(self._fits) >= MOST_FITS:
            raise InputError(f"{MOST_FITS} fits are under way", where="fit", next_step="wait for one, or cancel it")
        worker = Worker(self._command)
        self._fits.add(worker)
        try:
            async for line in worker.lines(task):
                yield line
        finally:
            self._fits.discard(worker)
            await worker.end()

    def place(self, task: Task) -> tuple[int, float] | None:
        """How many questions are before this one, and the seconds that they take; None where it does not wait."""
        question = self._questions.get(key_of(task))
        return None if question is None or question.limit is not None else self._ahead(question.turn)

    async def close(self) -> None:
        """End every process; what waits for one gets BrokenError."""
        for question in self._questions.values():
            question.fail(BrokenError())
        for computing in self._computing:
            computing.cancel()
        await asyncio.gather(*self._computing, *(worker.end() for worker in list(self._fits)), return_exceptions=True)

    def _ahead(self, turn: tuple[bool, int]) -> tuple[int, float]:
        waiting = [each for each in self._questions.values() if each.limit is None and each.turn < turn]
        return len(waiting), sum(self._mean_s.get(each.task["name"], USUAL_S) for each in waiting) / MOST_COMPUTING

    def _wait(self, key: str, task: Task) -> Question:
        turn = (task["name"] not in FIRST, next(self._numbers))
        ahead, wait_s = self._ahead(turn)
        if wait_s > LONGEST_WAIT_S:
            raise BusyError(ahead, wait_s)
        question = self._questions[key] = Question(key, task, turn, asyncio.get_running_loop().create_future())
        self._queue.put_nowait((turn, question))
        return question

    def _forget(self, question: Question) -> None:
        if self._questions.get(question.key) is question:
            del self._questions[question.key]

    async def _compute(self) -> None:
        """Compute one question after another in a process."""
        worker = Worker(self._command)
        try:
            while True:
                with suppress(BrokenError):  # which the next question is told
                    await worker.load()
                _, question = await self._queue.get()
                if question.askers:
                    await self._answer(question, worker)
        finally:
            await worker.end()

    async def _answer(self, question: Question, worker: Worker) -> None:
        began, name = time.monotonic(), question.task["name"]
        question.deadline = asyncio.get_running_loop().time() + LIMIT_S
        try:
            async with asyncio.timeout_at(question.deadline) as question.limit:
                line = [line async for line in worker.lines(question.task)][-1]
        except TimeoutError:
            late = MoescaleError(
                f"the answer took longer than {LIMIT_S:g} s and was stopped",
                where="address",
                next_step="leave out expert counts, allow fewer GPUs, or run the command line, which has no such limit",
            )
            question.fail(late)
        except BrokenError as error:
            question.fail(error)
        else:
            took_s = time.monotonic() - began
            self._mean_s[name] = (1 - RECENT) * self._mean_s.get(name, took_s) + RECENT * took_s
            self._keep(question.key, line)
            if not question.answer.done():
                question.answer.set_result(line)
            if len(self._computing) < MOST_COMPUTING:  # processes do not load at a time
                self.start()
        finally:
            self._forget(question)

    def _keep(self, key: str, line: bytes) -> None:
        self._answers[key] = line
        self._kept_bytes += len(line)
        while self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= len(self._answers.popitem(last=False)[1])


def key_of(task: Task) -> str:
    """What equal questions share. An uploaded law's name holds the hash of its text; its runs are there or not."""
    laws = [(law.name, bool(law.evidence)) for law in task["laws"]]
    return hashlib.sha256(json.dumps([task["name"], task["query"], laws], sort_keys=True).encode()).hexdigest()
