"""The queue of requests to translate: those that wait are translated together.

    Job --oldest first, with others of equal options--> Engine.translations, in a thread --> translations of its lines

The engine gives a line the same translation whatever lines stand beside it.
"""

import asyncio
import copy
import dataclasses
import itertools
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Gauge, Histogram

from nmtkit.decoding.engine import Engine
from nmtkit.decoding.request import Batching, Translation, TranslationRequest
from nmtkit.serving.http import Limits, RequestError

_CHARACTERS_PER_TOKEN = 4
"""Jobs of a round are measured in characters; the engine, which knows their tokens, cuts the round into batches."""
_GATHERING_SECONDS = 0.003
"""Time without another request after which a round begins."""
Result = list[list[Translation]]
"""The translations of each line of a job, best first."""


# Compared by identity, as two clients may send the same lines.
@dataclass(eq=False)
class Job:
    """The lines of a request, each with the beginning of its translation; ``is_gone()``: its client has gone."""

    engine: Engine
    beam: int
    request: TranslationRequest
    lines: Sequence[tuple[str, str]]
    is_gone: Callable[[], bool]
    result: "asyncio.Future[Result]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def options(self) -> tuple[Engine, int, TranslationRequest, bool]:
        """Return what jobs that share a search have in common."""
        return self.engine, self.beam, self.request, any(prefix for _, prefix in self.lines)

    def is_over(self) -> bool:
        """Return whether the result is not needed (any more)."""
        return self.result.done() or self.is_gone()


class TranslationQueue:
    """Jobs that wait, and the thread that translates them; one for all models, as they share the processor."""

    def __init__(self, limits: Limits, batch_tokens: int, registry: CollectorRegistry) -> None:
        self._jobs: list[Job] = []
        self._limits, self._batch_tokens, self._has_arrived = limits, batch_tokens, asyncio.Event()
        self.thread, self.registry = ThreadPoolExecutor(1, "translation"), registry
        waiting = Gauge("nmtkit_waiting_requests", "Requests that wait to be translated.", registry=registry)
        waiting.set_function(lambda: len(self._jobs))
        self._sizes = Histogram(
            "nmtkit_round_lines", "Lines translated together.", buckets=[2**n for n in range(11)], registry=registry
        )

    async def translate(self, job: Job) -> Result:
        """Return the translations of a job; raise RequestError if the queue is full, or the error of the engine."""
        if len(self._jobs) >= self._limits.waiting:
            self._drop_over()
        if len(self._jobs) >= self._limits.waiting:
            raise RequestError(503, "too many requests are waiting; try again later", Retry_After="1")
        self._jobs.append(job)
        self._has_arrived.set()
        try:
            async with asyncio.timeout(self._limits.seconds):
                return await job.result
        except TimeoutError:
            raise RequestError(503, f"not translated within {self._limits.seconds:g} s") from None

    async def run(self) -> None:
        """Translate the jobs that come, until cancelled."""
        expected = 0
        while await self._has_arrived.wait():
            before = -1
            while before < len(self._jobs) < expected:  # clients that just got an answer are sending their next request
                before = len(self._jobs)
                await asyncio.sleep(_GATHERING_SECONDS)
            if not (jobs := self._take_round()):
                self._has_arrived.clear()
                continue
            self._sizes.observe(sum(len(job.lines) for job in jobs))
            results = await asyncio.get_running_loop().run_in_executor(self.thread, self._results, jobs)
            expected = len(jobs) + len(self._jobs)
            for job, result in zip(jobs, results, strict=True):
                if job.result.done():  # its time is over
                    continue
                if isinstance(result, Exception):
                    job.result.set_exception(result)
                else:
                    job.result.set_result(result)

    def _drop_over(self) -> None:
        for job in self._jobs:
            if job.is_over() and not job.result.done():
                # 499 is the code of nginx for this; no client receives it.
                job.result.set_exception(RequestError(499, "the client has closed the connection"))
        self._jobs = [job for job in self._jobs if not job.result.done()]

    def _take_round(self) -> list[Job]:
        """Remove and return the oldest job and, as far as they fit, others with its options; drop what is over."""
        self._drop_over()
        taken: list[Job] = []
        room = self._batch_tokens * _CHARACTERS_PER_TOKEN
        for job in self._jobs:
            size = sum(len(text) + 1 for text, _ in job.lines)
            if not taken or (size <= room and job.options() == taken[0].options()):
                taken.append(job)
                room -= size
        self._jobs = [job for job in self._jobs if job not in taken]
        return taken

    def _results(self, jobs: Sequence[Job]) -> Sequence[Result | Exception]:
        """Return the translations of each job, or its error; runs in the thread."""
        try:
            return self._translated_together(jobs)
        except Exception as error:  # whatever fails for one job, the others and the server go on
            failure = error
        traceback.clear_frames(failure.__traceback__)  # which hold the memory of the search
        try:
            return [failure] if len(jobs) == 1 else [result for job in jobs for result in self._results([job])]
        finally:
            del failure  # whose traceback holds this frame

    def _translated_together(self, jobs: Sequence[Job]) -> list[Result]:
        def check_needed() -> None:
            if all(job.is_over() for job in jobs):
                raise RequestError(499, "the result is not needed any more")

        engine, beam, request, _ = jobs[0].options()
        engine = copy.copy(engine)  # which shares the weights
        engine.decoding, engine.before_step = engine.decoding.model_copy(update={"beam": beam}), check_needed
        texts, prefixes = zip(*(line for job in jobs for line in job.lines), strict=True)
        request = dataclasses.replace(request, prefixes=prefixes if any(prefixes) else ())
        if request.glossary is not None:  # its terms are wrong or right whether they occur or not
            engine.check(request)
        found = engine.translations(
            texts, request, batching=Batching(tokens=self._batch_tokens), before_batch=check_needed
        )
        ends = itertools.accumulate(len(job.lines) for job in jobs)
        return [found[end - len(job.lines) : end] for job, end in zip(jobs, ends, strict=True)]
