"""`nmtkit prepare`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmtkit.cli.options import MirrorOption, QuietOption, RecipeArgument, RunDirOption, SetOption, run_folder

if TYPE_CHECKING:
    from pathlib import Path

    from nmtkit.config.schema import Recipe
    from nmtkit.corpora.download import CorpusFile


def command(
    recipe: RecipeArgument,
    run_dir: RunDirOption = None,
    set_: SetOption = None,
    mirror: MirrorOption = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", metavar="N", min=1, help="Processes for checking and encoding text.  [default: all cores]"
        ),
    ] = None,
    download_only: Annotated[
        bool, typer.Option("--download-only", help="Only download and verify the files of the corpora.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Only read the corpora and report problems in the text; write no training data."),
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Prepare the training data: download, check and clean the corpora, learn subwords, write RUN/data.

    Problems in the text are listed in a table, in RUN/data/report.json and, with charts, in RUN/data/report.html. The
    section [cleaning] of the recipe decides what is done about them. If nothing has changed since the last time,
    nothing is done again. Interrupted downloads are resumed.

    \b
    Examples:
      nmtkit prepare multi30k-en-de-tiny --mirror corpora/
      nmtkit prepare mine.toml --check
    """
    from nmtkit import console
    from nmtkit.config.recipe import load_recipe
    from nmtkit.data.prepare import download, prepare
    from nmtkit.data.shards import read_report
    from nmtkit.run import Run

    console.set_up(quiet=quiet)
    loaded = load_recipe(recipe, set_ or [])
    if download_only:
        print_files(download(loaded, mirror=mirror))
        return
    folder = run_folder(loaded.name, run_dir)
    if check:
        _check(loaded, folder, mirror, workers)
        return
    preparation = prepare(loaded, folder, mirror=mirror, workers=workers)
    if not preparation.is_new:
        console.log.info("%s is up to date; nothing was done", Run(folder).data)
    if (Run(folder).data / "report.json").is_file():  # data of older versions have none
        print_report(read_report(Run(folder).data))
    print_summary(preparation.manifest)


def print_files(files: "list[CorpusFile]") -> None:
    """Prints what was fetched, or was there already."""
    from nmtkit import console

    rows = [[str(file.path), f"{file.num_bytes / 1e6:,.1f}", file.sha256] for file in files]
    console.print_table("Verified files", ["file", "MB", "sha256"], rows)


def _check(recipe: "Recipe", run_dir: "Path", mirror: "Path | None", workers: int | None) -> None:
    from nmtkit import console
    from nmtkit.data.prepare import check
    from nmtkit.errors import DataError
    from nmtkit.run import Run

    found = check(recipe, run_dir, mirror=mirror, workers=workers)
    print_report(found.report)
    if found.folder is not None:
        console.log.info("the report with charts is %s", found.folder / "report.html")
    else:
        console.log.info("%s already has prepared data; its report was not changed", Run(run_dir).data)
    if found.refused:
        rules = ", ".join(f"{rule}: {count:,}" for rule, count in found.refused.items())
        raise DataError(
            f"`nmtkit prepare` would stop here ({rules}); correct the corpora, or set another action in [cleaning]"
        )
    if found.reasons:
        raise DataError(f"`nmtkit prepare` would stop here: {found.reasons[0]}")


def print_report(report: dict[str, Any]) -> None:
    """Prints what was found in the training text, and how the vocabulary covers it."""
    from nmtkit import console
    from nmtkit.data.quality_page import coverage_columns, coverage_rows, num_silent, rule_rows

    rows = rule_rows(report)
    notes = []
    for rule, _, _, _, _, lines, *example in rows:
        notes += [f"{rule}, lines {lines}" if lines else rule, *(f"    {side}" for side in example)]
    title = f"Found in {report['pairs']['read']:,} training pairs"
    columns = ["rule", "pairs", "action", "left out", "meaning"]
    console.print_table(title, columns, [row[:5] for row in rows], notes=[*notes, num_silent(report)])
    if (subwords := report["subwords"]) is not None:
        console.print_table("Vocabulary", ["", *coverage_columns(subwords)], coverage_rows(subwords))


def print_summary(manifest: dict[str, Any]) -> None:
    """Prints what was kept, and what was left out by which rule."""
    from nmtkit import console

    rows = [[name, f"{count:,}", ""] for name, count in manifest["pairs"].items()]
    rows += [["left out of train", f"{count:,}", rule] for rule, count in manifest["cleaning"].items() if count]
    console.print_table("Prepared pairs", ["set", "pairs", "rule"], rows)
