"""Fits under way: each a worker process whose lines become server-sent events; cancelled by ending the process.

A fit that nobody listens to is cancelled too: the page that started it was closed.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from moescale.errors import InputError, MoescaleError
from moescale.web.store import Laws, Uploaded
from moescale.web.worker import error_record

COMMAND = (sys.executable, "-m", "moescale.web.worker")
MOST_RUNNING = 2
MOST_KEPT = 16
LONELY_S = 20.0  # that a fit goes on without a listener: a browser that lost its connection is back after some seconds
LINE_LIMIT_BYTES = 64 * 2**20  # a worker's last line holds the runs
ENDS = ("done", "error", "cancelled")


class Job:
    """One fit: its events so far, and a signal that there are more."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.more = asyncio.Condition()
        self.process: Process | None = None
        self.task: asyncio.Task[None] | None = None
        self.listeners = 0
        self.lonely: asyncio.TimerHandle | None = None

    @property
    def ended(self) -> bool:
        """Whether the last event is there."""
        return bool(self.events) and self.events[-1][0] in ENDS

    async def tell(self, kind: str, data: dict[str, Any]) -> None:
        """Add an event; none comes after the last one."""
        async with self.more:
            if not self.ended:
                self.events.append((kind, data))
            self.more.notify_all()


class Jobs:
    """This session's fits."""

    def __init__(self, laws: Laws) -> None:
        self._laws = laws
        self._jobs: OrderedDict[str, Job] = OrderedDict()

    def find(self, key: str) -> Job:
        """The job of this name; InputError where there is none."""
        if key not in self._jobs:
            raise InputError("there is no such fit", where="fit", next_step="upload the table again")
        return self._jobs[key]

    def start(self, task: dict[str, Any], data: bytes) -> str:
        """Start a fit of the table in `data`; returns the job's name. InputError where too many are under way."""
        if sum(not job.ended for job in self._jobs.values()) >= MOST_RUNNING:
            raise InputError(f"{MOST_RUNNING} fits are under way", where="fit", next_step="wait for one, or cancel it")
        key, job = secrets.token_hex(8), Job(str(task["name"]))
        self._jobs[key] = job
        for old in [k for k, j in self._jobs.items() if j.ended][: max(len(self._jobs) - MOST_KEPT, 0)]:
            del self._jobs[old]
        job.task = asyncio.create_task(self._run(job, task, data))
        self._expect_listener(job)
        return key

    async def events(self, key: str) -> AsyncIterator[str]:
        """The events of a job from its first on, as lines of a text/event-stream."""
        job, told = self.find(key), 0
        job.listeners += 1
        try:
            while True:
                async with job.more:
                    while told == len(job.events):
                        await job.more.wait()
                    new = job.events[told:]
                for kind, data in new:
                    yield f"event: {kind}\ndata: {json.dumps(data, allow_nan=False)}\n\n"
                told += len(new)
                if job.ended and told == len(job.events):
                    return
        finally:
            job.listeners -= 1
            self._expect_listener(job)

    async def cancel(self, key: str) -> None:
        """End a job's process and wait until it is gone; nothing of the fit is kept."""
        await self._cancel(self.find(key))

    async def close(self) -> None:
        """End every process."""
        for job in self._jobs.values():
            await self._cancel(job)

    def _expect_listener(self, job: Job) -> None:
        if job.lonely is not None:
            job.lonely.cancel()
        if not job.ended:
            job.lonely = asyncio.get_running_loop().call_later(LONELY_S, self._leave, job)

    def _leave(self, job: Job) -> None:
        if not job.listeners:
            _kill(job.process)  # ends as a failure, which nobody reads

    async def _cancel(self, job: Job) -> None:
        await job.tell("cancelled", {"name": job.name})
        _kill(job.process)
        if job.task is not None:
            with suppress(asyncio.CancelledError):
                await job.task

    async def _run(self, job: Job, task: dict[str, Any], data: bytes) -> None:
        process = job.process = await asyncio.create_subprocess_exec(
            *COMMAND, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=LINE_LIMIT_BYTES
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if job.ended:  # cancelled before it began
                process.kill()
            with suppress(ConnectionError):
                process.stdin.write(json.dumps(task).encode() + b"\n" + data)
                await process.stdin.drain()
                process.stdin.close()
            async for line in process.stdout:
                await self._take(job, json.loads(line))
            await process.wait()
            if not job.ended:
                failed = MoescaleError(
                    f"the fit ended unexpectedly (exit code {process.returncode})",
                    where=job.name,
                    next_step="try `moescale fit` on the file to see why",
                )
                await job.tell("error", error_record(failed))
        finally:
            _kill(process)
            await process.wait()

    async def _take(self, job: Job, message: dict[str, Any]) -> None:
        if "progress" in message:
            step, share = message["progress"]
            await job.tell("progress", {"step": step, "share": share})
        elif "error" in message:
            await job.tell("error", message["error"])
        elif not job.ended:
            kept = Uploaded(**message["done"])
            self._laws.keep(kept)
            await job.tell("done", {"law": kept.name, "name": kept.law_name, "fit": kept.evidence["fit"]})


def _kill(process: Process | None) -> None:
    if process is not None and process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
