"""`nmtkit report`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, BadParameter, Option

from nmtkit import console
from nmtkit.cli import options
from nmtkit.files import optional_write, write_text


def command(
    runs: Annotated[list[Path], Argument(metavar="RUN...", help="Folders of runs. They need not be finished.")],
    output: Annotated[
        Path | None, Option(help="HTML file.  [default: RUN/report.html; for several, report.html]")
    ] = None,
    no_attention: Annotated[
        bool, Option(help="Leave out the attention heat maps; then no model has to be loaded.")
    ] = False,
) -> None:
    """Write a web page about one or more runs, and RUN/card.md with everything needed to repeat each run.

    \b
    Examples:
      nmtkit report runs/quickstart
      nmtkit report runs/base runs/big --output compared.html
    """
    from nmtkit.reports.card import card
    from nmtkit.reports.run_facts import read_run
    from nmtkit.reports.run_page import report_page
    from nmtkit.run import Run

    if output is not None and output.suffix not in (".html", ".htm"):
        raise BadParameter(f"{output}: the report is an HTML page; its name must end in .html", param_hint="--output")
    options.check_files([("--output", output)], [])
    # A folder that is given twice, perhaps by two names, is one run.
    given, runs = len(runs), list({folder.resolve(): folder for folder in runs}.values())
    if len(runs) < given:
        console.log.warning("the same run is given twice; it is shown once")
    read = [read_run(folder, runs) for folder in runs]
    page = output or (Run(runs[0]).page if len(runs) == 1 else Path("report.html"))
    # All are made before the first is written, so that a damaged run changes no file.
    html, cards = report_page(read, with_attention=not no_attention), [card(run) for run in read]
    write_text(page, html)
    for run, text in zip(read, cards, strict=True):
        path = Run(run.folder).card
        with optional_write(path):
            write_text(path, text)
    console.say(str(page))
