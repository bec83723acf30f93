"""`nmtkit prepare`."""

from typing import TYPE_CHECKING, Annotated

import typer

from nmtkit.cli.options import MirrorOption, QuietOption, RecipeArgument, RunDirOption, SetOption, run_folder

if TYPE_CHECKING:
    from nmtkit.text.download import CorpusFile


def command(
    recipe: RecipeArgument,
    run_dir: RunDirOption = None,
    set_: SetOption = None,
    mirror: MirrorOption = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", min=1, help="Threads that cut text.  [default: all cores]")
    ] = None,
    download_only: Annotated[
        bool, typer.Option("--download-only", help="Only fetch and verify the files of the recipe's corpora.")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Corpora to training data: download, check, clean, learn subwords, write shards into RUN/data.

    Run again with nothing changed, it does nothing and says so. A download that was stopped goes on where it was.

    Example: nmtkit prepare multi30k-en-de-tiny --mirror corpora/
    """
    from nmtkit import console
    from nmtkit.config import load_recipe
    from nmtkit.data.preparation import download, prepare

    console.set_up(quiet=quiet)
    loaded = load_recipe(recipe, set_ or [])
    if download_only:
        print_files(download(loaded, mirror=mirror))
        return
    folder = run_folder(loaded.name, run_dir)
    preparation = prepare(loaded, folder, mirror=mirror, workers=workers)
    if not preparation.is_new:
        console.log.info("%s is up to date: nothing has changed, nothing was done", folder / "data")
    print_summary(preparation.manifest)


def print_files(files: "list[CorpusFile]") -> None:
    """Prints what was fetched, or was there already."""
    from nmtkit import console

    rows = [[str(file.path), f"{file.num_bytes / 1e6:,.1f}", file.sha256] for file in files]
    console.print_table("Verified files", ["file", "MB", "sha256"], rows)


def print_summary(manifest: dict) -> None:
    """Prints what was kept, and what was left out by which rule."""
    from nmtkit import console

    rows = [[name, f"{count:,}", ""] for name, count in manifest["pairs"].items()]
    rows += [["left out of train", f"{count:,}", rule] for rule, count in manifest["cleaning"].items() if count]
    console.print_table("Prepared pairs", ["set", "pairs", "rule"], rows)
