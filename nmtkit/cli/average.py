"""`nmtkit average`."""

from pathlib import Path
from typing import Annotated

import typer

from nmtkit.cli.options import QuietOption


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a trained run.", show_default=False)],
    last: Annotated[
        int | None, typer.Option("--last", metavar="N", min=1, help="The last N checkpoints.  [default: average_last]")
    ] = None,
    best: Annotated[
        int | None, typer.Option("--best", metavar="N", min=1, help="The N best checkpoints by best_metric.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="The new model folder.  [default: RUN/averaged]")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Checkpoints to one model: the mean of their weights.

    Example: nmtkit average runs/multi30k-en-de-tiny --last 10
    """
    from nmtkit import console

    if last is not None and best is not None:
        raise typer.BadParameter("give --last or --best, not both")
    console.set_up(quiet=quiet)

    from nmtkit.training.averaging import average, choose_checkpoints

    chosen = choose_checkpoints(run, last=last, best=best)
    folder = output if output is not None else run / "averaged"
    average(chosen, folder)
    console.log.info("averaged %s", ", ".join(path.name for path in chosen))
    print(folder)
