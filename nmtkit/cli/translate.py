"""`nmtkit translate`."""

import io
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from typer import BadParameter, Option

from nmtkit import console
from nmtkit.cli import options
from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.files import is_stream, sha256_of
from nmtkit.lines import Snapshot

if TYPE_CHECKING:
    from nmtkit.decoding.file_translation import LineConstraints, TranslationJob
    from nmtkit.decoding.formats import OutputFormat
    from nmtkit.distributed.workers import Workers
    from nmtkit.text.terms import Kind


@options.search_options(*(name for name in DecodingConfig.model_fields if name != "average_last"))
def command(
    *,
    models: options.Models,
    input_: options.Input = None,
    output: Annotated[
        Path | None, Option(help="File for the translations, plain or .gz, .xz, .bz2, .zst.  [default: stdout]")
    ] = None,
    json_: Annotated[
        bool, Option(help="Write a JSON object per line: text, scores, tokens and their log-probabilities.")
    ] = False,
    n_best: Annotated[int, Option(min=1, help="Translations per line, as LINE ||| TEXT ||| FEATURES ||| SCORE.")] = 1,
    alignment: Annotated[bool, Option(help="With --json: add the source token each token attends to most.")] = False,
    status: Annotated[
        Path | None,
        Option(
            help="File for the status of each line as JSON: ok, or remarks such as empty, cut, length_limit and "
            "repeats, which docs/decoding.md explains."
        ),
    ] = None,
    from_: options.From = None,
    to: options.To = None,
    strict: options.Strict = False,
    search: dict[str, Any],
    forbid: options.Forbid = None,
    require: Annotated[
        Path | None, Option(help="File: for each line, phrases required in its translation, separated by tabs.")
    ] = None,
    prefix: Annotated[Path | None, Option(help="File: for each line, the beginning of its translation.")] = None,
    glossary: Annotated[
        Path | None, Option(help="File: lines of a term, a tab and its translation, required where the term occurs.")
    ] = None,
    keep: Annotated[
        str | None, Option(metavar="KINDS", help="Kinds of spans to copy unchanged: any of tags,urls,emails,numbers.")
    ] = None,
    split: Annotated[
        Literal["auto", "always", "never"] | None,
        Option(
            help="Translate each sentence of a line by itself; auto: for models that hardly saw lines of several "
            "sentences.  [default: auto; never for test sets of a run]"
        ),
    ] = None,
    sample: Annotated[bool, Option(help="Sample translations (as many as --n-best) instead of searching.")] = False,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    seed: options.Seed = None,
    mbr: Annotated[
        int | None,
        Option(
            min=1,
            help="Minimum Bayes risk: sample N translations and choose the one most similar to the others; "
            "with --n-best M, up to M different ones.",
        ),
    ] = None,
    mbr_metric: Annotated[
        Literal["chrf2", "sacrebleu"] | None, Option(help="Similarity of two samples.  [default: chrf2]")
    ] = None,
    max_source_tokens: Annotated[
        int | None,
        Option(
            min=1,
            help="Split sources of more tokens and join the translations; for summaries, read only the first N.  "
            "[default: the longest source in training]",
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        Option(
            metavar="SENTENCES",
            min=1,
            help="Sentences per batch; with 1, a small model uses at most two threads by default.",
        ),
    ] = None,
    batch_tokens: Annotated[
        int | None,
        Option(
            min=1,
            help="Maximum source tokens per batch.  [default: 2048; torch on a GPU: 16384; fewer with more than 8 "
            "hypotheses or samples]",
        ),
    ] = None,
    processes: Annotated[int, Option(min=1, help="Number of processes; needs --input and --output.")] = 1,
    engine: Annotated[
        Literal["auto", "torch", "ctranslate2"],
        Option(
            help="auto: CTranslate2 if the model has an export with the same translations (greedy search, or "
            "--finished beside with --length-penalty length or none), else torch."
        ),
    ] = "auto",
    precision: Annotated[
        Literal["float32", "bf16", "fp16"],
        Option(help="For torch: bf16 and (GPU only) fp16 are faster but change some translations."),
    ] = "float32",
    device: options.Device = "auto",
    threads: options.Threads = None,
) -> None:
    """Translate text: one line of output for each line of input, in order. Empty lines stay empty; for a model trained
    with context, they separate documents.

    With --input and --output, an interrupted translation can be resumed with the same command. From a pipe, each
    result is written as soon as it is ready.

    Example: nmtkit translate runs/quickstart --input text.en --output text.de
    """
    if batch_size is not None and batch_tokens is not None:
        raise BadParameter("give --batch-size or --batch-tokens, not both")
    if mbr is not None and sample:
        raise BadParameter("--mbr already samples; leave --sample out", param_hint="--sample")
    if mbr is not None and mbr < n_best:
        raise BadParameter(f"--n-best {n_best} needs at least {n_best} samples, not {mbr}", param_hint="--mbr")
    if alignment and not json_:
        raise BadParameter("--alignment needs --json")
    if mbr_metric is not None and mbr is None:
        raise BadParameter("needs --mbr", param_hint="--mbr-metric")
    refusal = None if sample or mbr is not None else "needs --sample or --mbr"
    sampling = options.sampling_of(temperature, top_k, top_p, seed, refusal)
    if sampling is not None and search.get("beam") is not None:
        raise BadParameter("sampling uses no beam; --n-best sets the number of samples", param_hint="--beam")
    options.check_files(
        [("--output", output), ("--status", status)],
        [("--input", input_), ("--prefix", prefix), ("--require", require), ("--glossary", glossary)],
    )
    kinds = _kinds(keep)
    has_stream = any(path is not None and is_stream(path) for path in (output, status))
    from_file_to_file = input_ is not None and output is not None and input_.is_file() and not has_stream
    launched = console.environment_number("WORLD_SIZE", 1)
    if max(processes, launched) > 1 and not from_file_to_file:
        from nmtkit.corpora.corpus import local_file

        if input_ is not None and local_file(input_)[1] is not None:
            raise BadParameter("several processes cannot read a member of an archive; unpack it", param_hint="--input")
        if input_ is not None and not input_.exists():
            raise BadParameter(f"{input_}: no such file", param_hint="--input")
        if processes == 1:
            raise BadParameter(
                f"WORLD_SIZE={launched} in the environment asks for several processes, which need --input and "
                "--output; unset it to use one"
            )
        raise BadParameter("several processes need --input and --output", param_hint="--processes")
    if processes > 1 and launched == 1:
        options.launch_processes(processes, device)

    only_torch = {
        "--n-best": n_best > 1, "--json": json_, "--status": status, "--forbid": forbid, "--require": require,
        "--prefix": prefix, "--glossary": glossary, "--keep": keep, "--sample": sample, "--mbr": mbr,
        "--processes": launched > 1, "--precision": precision != "float32",
    }  # fmt: skip

    from nmtkit.decoding.engine_choice import load_engine
    from nmtkit.decoding.file_translation import TranslationJob
    from nmtkit.decoding.request import Batching, TranslationRequest
    from nmtkit.run import set_translated_as
    from nmtkit.text.terms import Glossary

    terms = Glossary.read(glossary) if glossary is not None else None
    with ExitStack() as stack:
        workers = None
        if launched > 1:
            from nmtkit.distributed.workers import Workers  # imports torch, which CTranslate2 does not need

            workers = stack.enter_context(Workers.start(device, "float32", threads, for_decoding=True))
        translator = load_engine(
            models,
            engine,
            search,
            [name for name, is_given in only_torch.items() if is_given],
            workers,
            precision=precision,
            max_source_tokens=max_source_tokens,
            device=device,
            threads=threads,
        )
        if threads is None and batch_size == 1 and translator.is_small:
            from nmtkit.distributed.cpu import set_threads

            set_threads(min(2, translator.num_threads))
        request = TranslationRequest(
            n_best=mbr or n_best,
            sampling=sampling,
            forbidden=tuple(forbid or ()),
            attention=alignment,
            max_source_tokens=max_source_tokens,
            source_language=from_,
            target_language=to,
            # `run` translates its test sets line by line, too.
            split=split or ("never" if output is not None and set_translated_as(output) else "auto"),
            glossary=terms,
            keep=kinds,
        )
        output_format: OutputFormat = "json" if json_ else "n-best" if n_best > 1 else "text"
        job = TranslationJob(
            translator,
            request,
            Batching(batch_size, batch_tokens),
            output_format,
            _line_constraints("--prefix", prefix),
            _line_constraints("--require", require),
            (mbr_metric or "chrf2") if mbr else None,
            n_best,
        )
        if from_file_to_file:
            assert input_ is not None
            assert output is not None
            translate_to_file(job, input_, output, status, strict=strict, workers=workers)
        else:
            translate_stream(job, input_, output, status, strict=strict)


def _kinds(keep: str | None) -> tuple["Kind", ...]:
    from nmtkit.text.terms import Kind

    given = [] if keep is None else [kind.strip() for kind in keep.split(",")]
    choices: tuple[Kind, ...] = get_args(Kind)
    if unknown := [kind for kind in given if kind not in choices]:
        reason = f"{unknown[0]!r} is not one of {', '.join(choices)}"
        raise BadParameter(reason, param_hint="--keep")
    return tuple(kind for kind in choices if kind in given)


def _line_constraints(option: str, path: Path | None) -> "LineConstraints | None":
    from nmtkit.corpora.corpus import local_lines
    from nmtkit.decoding.file_translation import LineConstraints

    return LineConstraints(option, path, list(local_lines(path, "strict"))) if path is not None else None


def translate_to_file(
    job: "TranslationJob", input_: Path, output: Path, status: Path | None, *, strict: bool, workers: "Workers | None"
) -> None:
    """Translate from file to file, possibly with other processes; record translations of test sets."""
    from nmtkit.cli.streams import warn_of_invalid_lines
    from nmtkit.decoding.file_translation import translate_file
    from nmtkit.run import set_translated_as

    translated = set_translated_as(output)
    source_sha256 = sha256_of(input_) if translated else ""

    def record() -> None:
        if translated is not None:  # so that `score` can compare it with the recipe
            run, test_set = translated
            settings, sums = job.description(), list(job.engine.model_sha256)
            decoding = settings.pop("decoding")
            made_from = {"source_sha256": source_sha256, "decoding": decoding, "options": settings}
            run.record_translation(test_set, {"model_sha256": sums[0] if len(sums) == 1 else sums, **made_from})

    with options.resumable("stopped"):
        reader = translate_file(job, input_, output, status=status, strict=strict, workers=workers, record=record)
    warn_of_invalid_lines(reader)


def translate_stream(
    job: "TranslationJob", input_: Path | None, output: Path | None, status: Path | None, *, strict: bool
) -> None:
    """Translate lines as they arrive, from a pipe, a terminal or a special file, or to stdout."""
    from nmtkit.cli.streams import input_lines, result_lines, warn_of_invalid_lines
    from nmtkit.corpora.corpus import local_lines
    from nmtkit.decoding.file_translation import Window, as_they_come, most_lines, windows

    job.check()
    errors: Literal["strict", "replace"] = "strict" if strict else "replace"
    interactive = (
        input_ is None and output is None and sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    )
    reader = input_lines(input_, "text", errors, _prompted() if interactive else None)
    with ExitStack() as stack:
        write = stack.enter_context(result_lines(output))
        write_status = stack.enter_context(result_lines(status)) if status is not None else None
        total = snapshot = None
        if input_ is not None and input_.is_file():
            snapshot = Snapshot(input_)
            # A first pass finds faults before long work, and gives the time left.
            total = sum(1 for _ in job.checked(local_lines(input_, errors)))
            job.check_lines(total)
        advance = stack.enter_context(console.progress(job.engine.task.activity, total)) if not interactive else None
        # At a prompt in this thread, which receives signals; a line is read after the last result.
        cut = windows if interactive or total is not None else as_they_come
        most = 1 if interactive else most_lines(job.request)
        for window in cut(job.checked(reader), most, job.engine.tokenizer.context):

            def show_progress(share: float, window: Window = window) -> None:
                if advance is not None:
                    done = window.first_line - 1 + int(share * len(window.lines))
                    advance(done, note=console.counted(done, "line"))

            written = job.translate(window, reader.invalid_lines, show_progress)
            job.report_unmet(window.lines, written.status)
            write(written.output)
            if write_status is not None:
                write_status(written.status)
            show_progress(1.0)
        if snapshot is not None and snapshot.is_changed():
            raise snapshot.changed()
        job.check_lines(reader.num_lines)
    job.report_doubtful()
    warn_of_invalid_lines(reader)


def _prompted() -> Iterator[bytes]:
    """Yield lines typed on a terminal, until Ctrl-D."""
    import readline  # noqa: F401  enables editing and history of lines

    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    sys.stderr.write("type a line; Ctrl-D ends\n")
    while True:
        try:
            yield input("> ").encode("utf-8", errors="surrogateescape")
        except EOFError:
            sys.stderr.write("\n")
            return
