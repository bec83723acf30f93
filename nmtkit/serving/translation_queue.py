"""The queue of requests to translate: those that wait are translated together.

    Job --oldest first, with others of equal options--> Engine.translations, in a thread --> the translations of its lines

The engine gives a line the same translation whatever lines stand beside it.
"""

import asyncio
import copy
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Gauge, Histogram

from nmtkit.decoding.engine import Batching, Engine, Translation, TranslationRequest
from nmtkit.errors import NmtkitError
from nmtkit.serving.http import RequestError

_CHARACTERS_PER_TOKEN = 4
"""The jobs of a round are counted in characters; the engine, which knows their tokens, cuts the round into batches."""

Result = list[list[Translation]]
"""The translations of each line of a job, best first."""


@dataclass(frozen=True)
class Line:
    """A line to translate, the beginning of its translation, and phrases that must be in it."""

    text: str
    prefix: str = ""
    required: tuple[str, ...] = ()


@dataclass(eq=False)
class Job:
    """The lines of a request; ``is_gone()``: its client has closed the connection."""

    engine: Engine
    beam: int
    request: TranslationRequest
    lines: Sequence[Line]
    is_gone: Callable[[], bool]
    result: "asyncio.Future[Result]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def options(self) -> tuple[Engine, int, TranslationRequest, bool]:
        """What jobs that share a search have in common."""
        return self.engine, self.beam, self.request, any(line.required for line in self.lines)


class TranslationQueue:
    """Jobs that wait, and the thread that translates them; one thread for all models, which share the processor."""

    def __init__(self, max_jobs: int, batch_tokens: int, registry: CollectorRegistry) -> None:
        """Set the limits; ``registry`` receives metrics."""
        self._jobs: list[Job] = []
        self._max_jobs, self._batching = max_jobs, Batching(tokens=batch_tokens)
        self._has_arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "translation")
        waiting = Gauge("nmtkit_waiting_requests", "Requests that wait to be translated.", registry=registry)
        waiting.set_function(lambda: len(self._jobs))
        sizes = [2**power for power in range(11)]
        self._num_lines = Histogram(
            "nmtkit_round_lines", "Lines translated together.", buckets=sizes, registry=registry
        )

    async def translate(self, job: Job, seconds: float) -> Result:
        """Return the translations of a job.

        Raises:
            RequestError: too many jobs wait, the time is over, or the engine refuses the request.
        """
        if len(self._jobs) >= self._max_jobs:
            raise RequestError(503, "too many requests are waiting; try again later", {"Retry-After": "1"})
        self._jobs.append(job)
        self._has_arrived.set()
        try:
            async with asyncio.timeout(seconds):
                return await job.result
        except TimeoutError:
            raise RequestError(503, f"not translated within {seconds:g} s", {"Retry-After": "5"}) from None
        except NmtkitError as error:
            raise RequestError(400, str(error)) from None

    async def run(self) -> None:
        """Translate the jobs that come, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._has_arrived.wait()
            if not (jobs := self._take_round()):
                self._has_arrived.clear()
                continue
            self._num_lines.observe(sum(len(job.lines) for job in jobs))
            results = await loop.run_in_executor(self._thread, self._results, jobs)
            for job, result in zip(jobs, results, strict=True):
                if job.result.done():  # cancelled, as its time was over
                    continue
                if isinstance(result, Exception):
                    job.result.set_exception(result)
                else:
                    job.result.set_result(result)

    def _take_round(self) -> list[Job]:
        """Remove and return the oldest job and, as far as they fit, others with its options."""
        for job in self._jobs:
            if job.is_gone() and not job.result.done():
                job.result.set_exception(_gone())
        self._jobs = [job for job in self._jobs if not job.result.done()]
        taken: list[Job] = []
        room = self._batching.tokens * _CHARACTERS_PER_TOKEN
        for job in self._jobs:
            size = sum(len(line.text) + 1 for line in job.lines)
            if not taken or (size <= room and job.options == taken[0].options):
                taken.append(job)
                room -= size
        self._jobs = [job for job in self._jobs if job not in taken]
        return taken

    def _results(self, jobs: Sequence[Job]) -> list[Result | Exception]:
        """Return the translations of each job, or its error; runs in the thread."""
        try:
            return [*self._translated_together(jobs)]
        except Exception as error:  # whatever fails for one job, the others and the server go on
            if len(jobs) > 1:
                return [result for job in jobs for result in self._results([job])]
            if isinstance(error, MemoryError | RuntimeError):
                from nmtkit.distributed.workers import is_out_of_memory  # imports torch

                if isinstance(error, MemoryError) or is_out_of_memory(error):
                    return [RequestError(503, "out of memory; send less text, or a smaller beam", {"Retry-After": "5"})]
            return [error]

    def _translated_together(self, jobs: Sequence[Job]) -> list[Result]:
        def check_needed() -> None:
            if all(job.result.done() or job.is_gone() for job in jobs):
                raise _gone()

        engine, beam, request, _ = jobs[0].options
        engine = copy.copy(engine)  # which shares the weights
        engine.decoding = engine.decoding.model_copy(update={"beam": beam})
        engine.before_step = check_needed
        lines = [line for job in jobs for line in job.lines]
        prefixes, required = [line.prefix for line in lines], [line.required for line in lines]
        found = engine.translations(
            [line.text for line in lines],
            dataclasses.replace(
                request, prefixes=prefixes if any(prefixes) else (), required=required if any(required) else ()
            ),
            batching=self._batching,
            before_batch=check_needed,
        )
        ends = itertools.accumulate(len(job.lines) for job in jobs)
        return [found[end - len(job.lines) : end] for job, end in zip(jobs, ends, strict=True)]


def _gone() -> RequestError:
    return RequestError(499, "the client has closed the connection")
