"""`nmtkit prepare`."""

from pathlib import Path
from typing import Annotated, Any

from typer import BadParameter, Option

from nmtkit import console
from nmtkit.cli import options
from nmtkit.config.corpus_entries import GeneratedCorpus
from nmtkit.config.recipe import load_recipe
from nmtkit.config.schema import Recipe
from nmtkit.errors import DataError


def command(
    recipe: options.Recipe,
    run_dir: options.RunDir = None,
    set_: options.Set = None,
    mirror: options.Mirror = None,
    workers: Annotated[
        int | None, Option(min=1, help="Processes for checking and encoding text.  [default: all cores]")
    ] = None,
    download_only: Annotated[bool, Option(help="Only download and verify the files of the corpora.")] = False,
    check: Annotated[
        bool, Option(help="Only read the corpora and report problems; learn no subwords and write no training data.")
    ] = False,
    processes: Annotated[int, Option(min=1, help="Processes that translate generated corpora.")] = 1,
    device: options.Device = "auto",
    threads: options.Threads = None,
) -> None:
    """Prepare the training data: download, check and clean the corpora, learn subwords, write RUN/data.

    Problems in the text are listed in a table, in RUN/data/report.json and, with charts, in RUN/data/report.html. The
    section [cleaning] of the recipe decides what is done about them. If nothing has changed since the last time,
    nothing is done. Interrupted downloads are resumed, and so are translations for generated corpora, such as
    back-translations. --processes, --device and --threads apply only to these translations.

    \b
    Examples:
      nmtkit prepare multi30k-en-de-tiny --mirror corpora/
      nmtkit prepare mine.toml --check
    """
    from nmtkit.data.prepare import download, prepare
    from nmtkit.data.shards import read_report
    from nmtkit.run import Run
    from nmtkit.tasks.known import task_of

    rank, launched = console.own_rank(), console.environment_number("WORLD_SIZE", 1)
    loaded = load_recipe(recipe, set_ or [])
    has_generated = any(isinstance(entry, GeneratedCorpus) for entry in loaded.data.train)
    if max(processes, launched) > 1 and (not has_generated or check or download_only):
        raise BadParameter(
            "several processes are only for recipes with generated corpora, without --check and --download-only",
            param_hint="--processes" if launched == 1 else f"WORLD_SIZE={launched} in the environment",
        )
    if download_only and (workers or threads or device != "auto"):
        raise BadParameter("needs no --workers, --threads and --device", param_hint="--download-only")
    if check and download_only:
        raise BadParameter("--check and --download-only exclude each other; give one")
    if processes > launched:
        options.launch_processes(processes, device)
    if download_only:
        files = download(loaded, mirror=mirror)
        rows = [[str(file.path), f"{file.num_bytes / 1e6:,.1f}", file.sha256] for file in files]
        console.print_table("Verified files", ["file", "MB", "sha256"], rows)
        return
    folder = options.run_folder(loaded.name, run_dir, recipe)
    if loaded.training.init is not None:
        from nmtkit.training.transfer import check_initial_model, log_differences  # imports torch

        if (model := check_initial_model(loaded, Run(folder))) is not None:
            log_differences(model, loaded)
        elif not Run(folder).is_trained():
            console.log.warning("training.init = %s: no model is there yet; `train` will need it", loaded.training.init)
    if check:
        _check(loaded, folder, mirror, workers)
        return

    def generate(unfinished: list[Any]) -> None:
        from nmtkit.decoding.generation import generate_corpora  # imports torch

        generate_corpora(unfinished, loaded, device=device, threads=threads)

    if rank > 0:
        # Rank 0 sends the list of corpora; the others only help to translate them.
        generate([])
        return
    with options.resumable("stopped"):
        preparation = prepare(loaded, folder, mirror=mirror, workers=workers, generate=generate)
    if not preparation.is_new:
        console.log.info("%s is up to date; nothing was done", Run(folder).data)
    noun = task_of(loaded.data).example
    if Run(folder).data_report.is_file():  # prepared episodes have none
        _print_report(read_report(Run(folder).data), noun)
    pairs, left_out = preparation.manifest["pairs"], preparation.manifest["cleaning"]
    rows = [[name, f"{count:,}", ""] for name, count in pairs.items()]
    rows += [["left out of train", f"{count:,}", rule] for rule, count in left_out.items() if count]
    console.print_table(f"Prepared {noun}s", ["set", f"{noun}s", "rule"], rows)


def _check(recipe: Recipe, run_dir: Path, mirror: Path | None, workers: int | None) -> None:
    from nmtkit.data.prepare import check
    from nmtkit.run import Run
    from nmtkit.tasks.known import task_of

    result = check(recipe, run_dir, mirror=mirror, workers=workers)
    _print_report(result.report, task_of(recipe.data).example)
    if result.folder is not None:
        console.log.info("the report with charts is %s", result.folder / "report.html")
    else:
        console.log.info("%s already has prepared data; its report was not changed", Run(run_dir).data)
    if result.refused:
        rules = ", ".join(f"{rule}: {count:,}" for rule, count in result.refused.items())
        raise DataError(
            f"`nmtkit prepare` would stop here ({rules}); correct the corpora, or set another action in [cleaning]"
        )
    if result.reasons:
        raise DataError(f"`nmtkit prepare` would stop here: {result.reasons[0]}")


def _print_report(report: dict[str, Any], noun: str) -> None:
    """Print the findings in the training text, and the coverage by the vocabulary; ``noun``: see `Task.example`."""
    from nmtkit.data.quality_page import coverage_columns, coverage_rows, rule_rows, silent_rules

    rows = rule_rows(report)
    notes = []
    for rule, _, _, _, _, lines, *example in rows:
        notes += [f"{rule}, lines {lines}" if lines else rule, *(f"    {side}" for side in example)]
    title = f"Found in {console.counted(report['pairs']['read'], f'training {noun}')}"
    columns = ["rule", f"{noun}s", "action", "left out", "meaning"]
    console.print_table(title, columns, [row[:5] for row in rows], notes=[*notes, silent_rules(report)])
    subwords = report["subwords"]
    if subwords is not None:
        console.print_table("Vocabulary", ["", *coverage_columns(subwords)], coverage_rows(subwords))
