"""`nmtkit run`."""

import functools
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from nmtkit import console
from nmtkit.cli import options
from nmtkit.cli.train import train_or_stop
from nmtkit.config.corpus_entries import stated_text
from nmtkit.config.data_schema import AVERAGE
from nmtkit.config.recipe import load_recipe
from nmtkit.errors import NmtkitError
from nmtkit.lines import any_text, read_lines

if TYPE_CHECKING:
    from nmtkit.evaluation.scores import Score

SHOWN_TRANSLATIONS = 4
_MOST_CHARACTERS = 500
"""Longer sources are not shown to their end."""
_MAIN_METRICS = (
    "sacrebleu", "chrf2", "ter", "evalb-f1", "evalb-precision", "evalb-recall", "nll", "perplexity",
    "bits-per-character", "rouge1", "rouge2", "rougeLsum", "accuracy", "f1", "macro-f1", "matthews",
    "pearson", "spearman", "success-rate", "shortest-rate", "mean-return",
)  # fmt: skip


def command(
    recipe: options.Recipe,
    run_dir: options.RunDir = None,
    set_: options.Set = None,
    mirror: options.Mirror = None,
    processes: Annotated[int, Option(min=1, help="Number of training processes, one per device.")] = 1,
    device: options.Device = "auto",
    threads: options.Threads = None,
    tracker: options.Tracker = None,
) -> None:
    """Prepare, train, average, translate and score. Steps that are finished are skipped.

    With --processes N, the training step runs in N new processes; the other steps run in this one.

    \b
    Examples:
      nmtkit run quickstart
      nmtkit run multi30k-en-de --processes 2 --threads 1
    """
    loaded = load_recipe(recipe, set_ or [])
    folder = options.run_folder(loaded.name, run_dir, recipe)

    from nmtkit.distributed.launch import launch
    from nmtkit.distributed.workers import check_processes
    from nmtkit.pipeline import run
    from nmtkit.run import Run, language_options
    from nmtkit.tasks.known import task_of

    if console.environment_number("WORLD_SIZE", 1) > 1:
        # One of several training processes; the process that started them does the other steps.
        if not console.is_launched():
            raise NmtkitError(
                "`run` starts its own processes with --processes N; under a launcher, use `prepare` and then `train`"
            )
        train_or_stop(loaded, folder, device=device, threads=threads, trackers=tracker or [])
        return
    launched = None
    if processes > 1:
        check_processes(processes, device)
        launched = functools.partial(launch, processes, sys.argv[1:])
    with options.resumable("stopped"):  # outside of training
        result = run(
            loaded, folder, mirror=mirror, device=device, threads=threads, trackers=tracker or [], launched=launched
        )
    if result.exit_code:
        if launched is None:
            console.log.info("saved; %s", options.resume_advice())
        sys.exit(result.exit_code)
    task = task_of(loaded.data)
    use = f"nmtkit {task.command} {shlex.quote(str(folder))}"
    if not task.has_text:
        environment = loaded.data.environment or "MODULE:FUNCTION"
        # `play` does not run code just because a model names it.
        use += f" --environment {shlex.quote(environment)}" if ":" in environment else ""
        use += " --random" if loaded.data.environment else ""
    elif task.has_source:
        test = next(iter(result.scores), "")
        sentence = _print_outputs(folder, test, task.noun) if test else ""
        direction = loaded.data.tests.get(test, loaded.data.directions[0])
        chosen = language_options(loaded.data, direction, Run(folder).tokenizer())
        use += "".join(f" {shlex.quote(part)}" for part in chosen)
        use = f"echo {shlex.quote(sentence)} | {use}" if sentence else f"{use} --input FILE"
    else:
        use += " --prompt '...'"
    if result.scores:
        tests = loaded.data.corpora("test") or loaded.data.train  # train: of which `test = N` holds pairs out
        is_made_up = all((stated_text(test, "corpus") or str(test)).startswith("builtin/") for test in tests)
        _print_main_scores(result.scores, is_made_up=is_made_up)
    _print_next_commands(folder, use)


def _print_outputs(run_dir: Path, test: str, noun: str) -> str:
    """Print a few sentences with their translations or labels, and return the shortest source for an example, or ""."""
    from nmtkit.run import Run

    sources, references = Run(run_dir).test_text(test).read()
    hypotheses = read_lines(Run(run_dir).translation(test))
    rows = []
    numbers = [number for number, pair in enumerate(zip(sources, references, strict=True)) if any_text(*pair)]
    chosen = numbers[:: max(1, len(numbers) // SHOWN_TRANSLATIONS)][:SHOWN_TRANSLATIONS]
    for number in chosen:
        source = sources[number]
        shown = source if len(source) <= _MOST_CHARACTERS else f"{source[:_MOST_CHARACTERS]}..."
        lines = {"source": shown, noun: hypotheses[number], "reference": references[number]}
        rows += [[name, line or "(empty)"] for name, line in lines.items()] + [["", ""]]
    among = f"{len(chosen)} of the {console.counted(len(numbers), 'sentence')} of the test set {test}"
    console.print_table(f"{noun.capitalize()}s of {among}", ["", ""], rows[:-1])
    usable = (sources[number] for number in chosen if len(sources[number]) <= _MOST_CHARACTERS)
    short = (source for source in usable if source.strip() and source.isprintable())
    return min(short, key=len, default="")


def _print_main_scores(scores: "dict[str, dict[str, Score]]", *, is_made_up: bool) -> None:
    """Print the main metrics of each test set, with the signatures of the first metric."""

    from nmtkit.evaluation.metric_names import comparable_to
    from nmtkit.evaluation.scores import shown_score

    def shown(metric: str, score: "Score | None") -> str:
        if score is None:
            return ""
        half = "" if score.interval is None else f" ± {shown_score(metric, score.interval.half_width)}"
        return shown_score(metric, score.score) + half

    tests = list(scores.values())
    metrics = [name for name in _MAIN_METRICS if name in tests[0]]
    rows = [[test, *(shown(name, entries.get(name)) for name in metrics)] for test, entries in scores.items()]
    stated = [(name, entries[name].signature) for name in metrics[:1] for test, entries in scores.items()
              if name in entries and test != AVERAGE]  # fmt: skip
    notes = [f"Signature of {name}: {signature}" for name, signature in dict.fromkeys(stated)]
    # Made-up text has no published score.
    notes += [] if is_made_up else [f"Comparable to: {comparable_to(name)}" for name in metrics[:1]]
    notes += [
        f"{test}: bleu-compound-split {shown('bleu-compound-split', entries['bleu-compound-split'])}; on newstest2014 "
        f"comparable to {comparable_to('bleu-compound-split')}"
        for test, entries in scores.items() if "bleu-compound-split" in entries and not is_made_up
    ]  # fmt: skip
    if is_made_up:
        notes.append("Text and test set are made up by nmtkit: this score shows that every step works, no more.")
    console.print_table("Test scores", ["test set", *metrics], rows, notes=notes)


def _print_next_commands(run_dir: Path, use: str) -> None:
    from nmtkit.run import Run, find_model

    folder = shlex.quote(str(run_dir))
    print(f"The model is in {find_model(run_dir)}. What to do next:")
    print(f"  {use}")
    for command, what in (("report", "curves, samples"), ("score", "all metrics"), ("cost", "time, FLOPs, memory")):
        if command == "score" and not Run(run_dir).scores.is_file():  # there is no test set
            continue
        print(f"  {f'nmtkit {command} {folder}':<{len(folder) + 14}}  # {what}")
