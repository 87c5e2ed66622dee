"""The processes that compute the answers of the page.

A process is ended when nobody waits for what it computes, when its time is up, and with the server (NumPy in a thread cannot be
stopped). Equal questions are one computation, and its answer is kept. Questions wait in the order in which they came.
"""

from __future__ import annotations

import asyncio
import json
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from anyio import CapacityLimiter, to_process

from moescale.errors import MoescaleError

MOST_COMPUTING = 2  # processes for questions, each of some 150 MB
LIMIT_S = 60.0  # of an answer; within the bounds of state.py two seconds of processor time, of a life in two shapes 17
GRACE_S = 2.0  # to finish for clients that have left: a new process takes longer to start than most answers
MOST_KEPT = 100  # answers, of some 64 MiB; the one that was not asked for the longest time goes first
MEMORY_LIMIT_BYTES = 8 * 2**30  # of addresses: what an upload unpacks to stays far below, a decompression bomb does not

Task = dict[str, Any]


def compute(task: Task | None) -> bytes:
    """The answer to a task as JSON, in a process; None: only load what answers need."""
    from moescale.web import api

    _prepare()
    try:
        return b"" if task is None else api.written(task)
    except Exception:
        traceback.print_exc()  # on the terminal, which BrokenError names
        raise


@cache
def _prepare() -> None:
    """Bound the memory of this process; and Ctrl-C is the server's, which ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(ImportError, OSError, ValueError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = MEMORY_LIMIT_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_LIMIT_BYTES, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


class BrokenError(MoescaleError):
    """A process ended without an answer: by an error of its own, or with the server."""

    def __init__(self) -> None:
        super().__init__("the answer ended unexpectedly", next_step="see the terminal that `moescale web` runs in")


@dataclass(eq=False, slots=True)
class Question:
    """One computation, and how many requests wait for it."""

    answer: asyncio.Task[bytes]
    askers: int = 0


class Pool:
    """Answers questions by a function, which other processes must be able to import."""

    def __init__(self, answer: Callable[[Task | None], bytes] = compute) -> None:
        self._questions: dict[str, Question] = {}  # the one asked last at the end
        self._answer = answer
        self._free = asyncio.Semaphore(MOST_COMPUTING)
        self._loading: list[asyncio.Task[bytes]] = []

    def start(self) -> None:
        """Start the processes; they load what they need while the page is on its way."""
        self._loading = [asyncio.create_task(self._compute(None)) for _ in range(MOST_COMPUTING)]

    async def ask(self, task: Task, left: asyncio.Future[None]) -> bytes:
        """The answer to a task as JSON; `left` is done when the client has gone, and nothing is returned then.

        Raises BrokenError, and MoescaleError after LIMIT_S.
        """
        # An uploaded law's name holds the hash of its text.
        key = json.dumps([task["name"], task["query"], [law.name for law in task["laws"]]], sort_keys=True)
        question = self._questions.pop(key, None)
        if question is None:
            question = Question(asyncio.create_task(self._compute(task)))
            question.answer.add_done_callback(lambda _: self._keep(key, question))
        self._questions[key] = question
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
        """End every process under way; what waits for one gets BrokenError. The others end with the event loop."""
        tasks = [*self._loading, *(question.answer for question in self._questions.values())]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _compute(self, task: Task | None) -> bytes:
        try:
            async with self._free, asyncio.timeout(LIMIT_S):
                return await to_process.run_sync(self._answer, task, cancellable=True, limiter=CapacityLimiter(1))
        except TimeoutError as error:
            raise MoescaleError(
                f"the answer took longer than {LIMIT_S:g} s and was stopped",
                where="address",
                next_step="leave out expert counts, allow fewer GPUs, or run the command line, which has no such limit",
            ) from error
        except Exception as error:  # of the process, or of the answer
            raise BrokenError from error

    def _keep(self, key: str, question: Question) -> None:
        """Keep the answer of a question, as one of MOST_KEPT; forget a question without one."""
        failed = question.answer.cancelled() or question.answer.exception()  # as whoever asks is told
        if failed and self._questions.get(key) is question:
            del self._questions[key]
        for old in [old for old, each in self._questions.items() if each.answer.done()][:-MOST_KEPT]:
            del self._questions[old]

    def _drop(self, key: str, question: Question) -> None:
        if self._questions.get(key) is question and not question.askers and not question.answer.done():
            del self._questions[key]
            question.answer.cancel()
