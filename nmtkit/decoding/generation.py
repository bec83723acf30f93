"""Translation of the texts of generated corpora (data/generated.py) into RUN/generated."""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from nmtkit.config.schema import Recipe
from nmtkit.console import counted, environment_number, log
from nmtkit.data.generated import USED, Generation
from nmtkit.decoding.engine_choice import load_engine
from nmtkit.decoding.file_translation import TranslationJob, translate_file
from nmtkit.decoding.request import Sampling, TranslationRequest
from nmtkit.distributed.workers import Workers
from nmtkit.errors import DataError, ModelError
from nmtkit.files import sha256_of
from nmtkit.json_toml import write_json


def generate_corpora(
    pending: Sequence[Generation], recipe: Recipe, *, device: str = "auto", threads: int | None = None
) -> None:
    """Translate the texts of generated corpora.

    All processes of a group call this once. The first one decides what is translated; the others give nothing.

    Args:
        pending: corpora of the recipe.
        device, threads: as for `translate`.

    Raises:
        NmtkitError: a text cannot be translated, or none of its translations can be used.
    """
    # Where a rule repairs or drops invalid UTF-8 later, it is only replaced for the translation.
    strict = recipe.cleaning.invalid_utf8 == "error"
    if not pending and environment_number("WORLD_SIZE", 1) == 1:
        return
    with ExitStack() as stack:
        workers = stack.enter_context(Workers.start(device, "float32", threads, for_decoding=True))
        is_shared = workers.num_processes > 1
        for generation in workers.gather(list(pending)):
            entry = generation.entry
            sampling = Sampling(entry.temperature, entry.top_k, entry.top_p, entry.seed) if entry.sample else None
            stated = {"--n-best": entry.n_best > 1, "--sample": entry.sample, "--processes": is_shared}
            engine = load_engine(
                generation.models,
                "auto",
                {} if entry.beam is None else {"beam": entry.beam},
                [name for name, is_stated in stated.items() if is_stated],
                workers,
                device=device,
                threads=threads,
            )
            # The sum was taken when `prepare` began, perhaps hours ago.
            if list(engine.model_sha256) != generation.made_from["model_sha256"]:
                raise ModelError(f"{generation.name}: its model has changed since this command began; run it again")
            request = TranslationRequest(n_best=entry.n_best, sampling=sampling, **generation.made_from["languages"])
            job = TranslationJob(engine, request, output="pairs")
            translate_file(
                job, entry.generate, generation.path, strict=strict, workers=workers if is_shared else None,
                title=f"generating {generation.name}", record=partial(_record, generation, job),
            )  # fmt: skip


def _record(generation: Generation, job: TranslationJob) -> None:
    """Count and record finished translations; the record makes them usable."""
    counts = Counter(outcome for outcome, *_ in generation.outcomes())
    others = ", ".join(f"{outcome}: {count:,}" for outcome, count in sorted(counts.items()) if outcome != USED)
    if not counts[USED]:
        generation.path.unlink()
        raise DataError(f"{generation.name}: no translation can be used ({others}); look at the model")
    left_out = f"; left out: {others}" if others else ""
    report = log.warning if 2 * counts[USED] < counts.total() else log.info
    report("generated %s: %s%s", generation.name, counted(counts[USED], "pair"), left_out)
    record = {"made_from": generation.made_from, "counts": counts, "made_with": job.description()}
    write_json(generation.record, {**record, "sha256": sha256_of(generation.path)})
