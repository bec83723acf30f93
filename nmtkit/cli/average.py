"""`nmtkit average`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, BadParameter, Option

from nmtkit import console
from nmtkit.cli import options
from nmtkit.errors import NmtkitError

if TYPE_CHECKING:
    from nmtkit.training.averaging import Search


def command(
    run: Annotated[Path, Argument(metavar="RUN", help="Folder of a trained run.")],
    last: Annotated[
        int | None,
        Option(min=1, help="Average the last N checkpoints.  [default: decoding.average_last of the recipe]"),
    ] = None,
    spacing: Annotated[
        int, Option(metavar="S", min=1, help="With --last: take every S-th checkpoint, counting back.")
    ] = 1,
    best: Annotated[
        int | None, Option(min=1, help="Average the N best checkpoints on the validation set, by training.best_metric.")
    ] = None,
    output: Annotated[
        Path | None, Option(metavar="DIR", help="Folder for the averaged model.  [default: RUN/averaged]")
    ] = None,
    search: Annotated[
        bool, Option(help="Only score many averages on the validation set and write the scores to RUN/averaging.json.")
    ] = False,
    metric: Annotated[
        Literal["bleu", "nll"] | None,
        Option(help="Metric of --search; nll is faster.  [default: bleu for translations, else nll]"),
    ] = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
) -> None:
    """Average the weights of several checkpoints into one model.

    The average in the run's own folder is validated, and compared with the best checkpoint.

    \b
    Examples:
      nmtkit average runs/multi30k-en-de-tiny --last 10
      nmtkit average runs/multi30k-en-de-tiny --search
    """
    if last is not None and best is not None:
        raise BadParameter("give --last or --best, not both")
    if spacing > 1 and last is None:
        raise BadParameter("--spacing needs --last")
    if search and (last or best or output):
        raise BadParameter("--search writes no model and tries many averages; leave out --last, --best and --output")
    if metric is not None and not search:
        raise BadParameter("--metric needs --search")
    if search:
        _search(run, metric, device, threads)
        return

    from nmtkit.distributed.workers import Workers
    from nmtkit.pipeline import compare_with_best
    from nmtkit.run import Run
    from nmtkit.training.averaging import average, choose_checkpoints

    recipe = Run(run).recipe() if Run(run).recipe_file.is_file() else None
    decoding = recipe.decoding if recipe is not None else None
    at_most = decoding.average_last if decoding is not None else None
    chosen = choose_checkpoints(run, last=last, best=best, at_most=at_most, spacing=spacing)
    folder = output if output is not None else Run(run).averaged
    given = {"--last": last, "--best": best, "--spacing": spacing if spacing > 1 else None}
    is_own = recipe is not None and folder.resolve() == Run(run).averaged.resolve()
    workers = Workers.start(device, "float32", threads, is_alone=True) if is_own else None
    average(chosen, folder, decoding, " ".join(f"{name} {value}" for name, value in given.items() if value is not None))
    console.log.info("averaged %s", ", ".join(path.name for path in chosen))
    if recipe is not None and workers is not None:
        try:
            compare_with_best(recipe, Run(run), workers)
        except NmtkitError as error:  # the average itself is complete
            console.log.warning("the average was not validated: %s", error)
    console.say(str(folder))


def _search(run: Path, criterion: Literal["bleu", "nll"] | None, device: str, threads: int | None) -> None:
    from nmtkit.distributed.workers import Workers
    from nmtkit.training.averaging import search

    result: Search | None = None
    workers = Workers.start(device, "float32", threads, is_alone=True)
    with options.resumable("stopped"), console.progress("trying averages", None) as advance:
        for result in search(run, criterion, workers):
            advance(len(result.tried), note=f"{len(result.tried)} of {result.total}")
    assert result is not None
    best = result.best
    by_nll = best.metric == "nll"
    rows = []
    for entry in result.tried:
        updates = f"{entry.first_step:,} to {entry.last_step:,}" if entry.n > 1 else f"{entry.last_step:,}"
        score = [] if by_nll else [f"{entry.score:.2f}"]
        rows.append([f"{entry.n}", updates, *score, f"{entry.nll:.4f}", "best" if entry == best else ""])
    notes = [
        "The best average was chosen by this score, so on other text it is probably a little worse.",
        f"To write it: nmtkit average {shlex.quote(str(run))} --last {best.n}",
    ]
    columns = ["N", "updates", *([] if by_nll else [best.metric]), "nll", ""]
    console.print_table("Averages of checkpoints on the validation set", columns, rows, notes=notes)
