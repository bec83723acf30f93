"""`nmtkit cost`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, BadParameter, Option

from nmtkit import console
from nmtkit.cli import options
from nmtkit.config.recipe import differences, load_recipe
from nmtkit.config.schema import Recipe
from nmtkit.errors import DataError
from nmtkit.evaluation.cost_tables import cost_tables, prediction_table, table_two
from nmtkit.evaluation.devices import PRECISIONS, known_devices
from nmtkit.files import optional_write
from nmtkit.json_toml import write_json

if TYPE_CHECKING:
    from nmtkit.data.shards import PairData
    from nmtkit.run import Run
    from nmtkit.training.prediction import Hardware

_ASSUMED_CHARACTERS = 100
"""Size of a vocabulary of characters before the text is prepared."""


def command(
    what: Annotated[str | None, Argument(metavar="[RECIPE or RUN]", help="A recipe, or the folder of a run.")] = None,
    devices: Annotated[int | None, Option(min=1, help="Number of devices.  [default: 1]")] = None,
    device_type: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="A GPU of --list-devices, cpu, or with --rate any name.  [default: that of this machine]",
        ),
    ] = None,
    mfu: Annotated[
        float | None,
        Option(
            metavar="SHARE",
            min=0.001,
            max=1.0,
            help="Model FLOPs utilisation: the fraction of the device's peak rate that training reaches.  "
            "[default: 0.30 on a GPU; measured on a CPU, but 0.23 there for episodes or with --rate]",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        Option(
            metavar="TFLOPS",
            min=1e-6,
            max=1e9,
            help="Peak rate of matrix multiplication of one device.  [default: that of --list-devices, else measured]",
        ),
    ] = None,
    list_devices: Annotated[
        bool, Option(help="Print the known GPUs with their peak rates, and where the rates come from.")
    ] = False,
    threads: options.Threads = None,
    run_dir: options.RunDir = None,
    set_: options.Set = None,
    json_file: Annotated[Path | None, Option("--json", help="File for all figures as JSON.")] = None,
) -> None:
    """Predict the FLOPs, time and memory of training, or show what a finished run took.

    For a RECIPE, print a prediction. Its FLOPs are exact if the data have been prepared, except with
    subword_sampling, weighted corpora, max_minutes or patience; with lengths_per_update above 1, they are nearly exact.
    For a trained RUN, print the measured cost beside the prediction and write RUN/cost.json; with --devices or another
    option about devices, only predict its cost on these devices. For translations and trees, print the paper's Table 2
    as well.

    \b
    Examples:
      nmtkit cost wmt14-en-de-big --devices 8 --device-type h200
      nmtkit cost runs/wmt14-en-de-big
    """
    from nmtkit.run import Run

    if list_devices:
        others = (what, devices, device_type, mfu, rate, threads, run_dir, set_, json_file)
        if any(other is not None for other in others):
            raise BadParameter("--list-devices cannot be combined with RECIPE, RUN or another option")
        _print_devices()
        return
    if what is None:
        raise BadParameter("give a RECIPE or a RUN, or --list-devices")
    options.check_files([("--json", json_file)], [("the recipe", Path(what))])
    run = Run(Path(what))
    is_run = run.recipe_file.is_file()
    if is_run and (run_dir is not None or set_):
        raise BadParameter("a RUN has its own recipe and folder; use --run-dir and --set with a RECIPE")
    if device_type is None and rate is not None:
        device_type = "a device of that rate"
    if threads is not None and (rate is not None or (device_type or "cpu").lower() != "cpu"):
        raise BadParameter("--threads is for a measurement on this machine; leave out --rate or a GPU as --device-type")
    has_prediction_options = any(option is not None for option in (devices, device_type, mfu, rate, threads))
    if is_run and not has_prediction_options and run.latest_state() is not None:
        from nmtkit.evaluation.cost import training_cost
        from nmtkit.evaluation.scores import read_scores

        figures = training_cost(run.folder)
        with optional_write(run.cost):
            write_json(run.cost, figures)
        tables = cost_tables(figures, read_scores(run.scores) if run.scores.is_file() else {})
    else:
        recipe = run.recipe() if is_run else load_recipe(what, set_ or [])
        folder = run.folder if is_run else options.run_folder(recipe.name, run_dir, what)
        from nmtkit.training.prediction import predict

        data, vocab_sizes = _training_pairs(recipe, Run(folder))
        hardware = _hardware(recipe, vocab_sizes, devices or 1, device_type, mfu, rate, threads)
        more = "; sampled subwords are more numerous" if recipe.training.subword_sampling else ""
        figures = predict(recipe, data, vocab_sizes, hardware, origin=f"the prepared data{more}")
        tables = [prediction_table(figures), *table_two({**figures, "run": recipe.name}, {}, "this prediction")]
    if json_file is not None:  # before a reader of stdout that has seen enough ends the command
        write_json(json_file, figures)
    for table in tables:
        console.print_table(table.title, table.columns, table.rows, notes=table.notes)


def _print_devices() -> None:
    rows = []
    for kind in known_devices():
        rates = [f"{kind.rates[name] / 1e12:g}" if name in kind.rates else "" for name in PRECISIONS]
        paper = f"{kind.paper_sustained / 1e12:g}" if kind.paper_sustained else ""
        rows.append([kind.name, *rates, paper, f"{kind.memory_bytes / 1e9:g}"])
    columns = ["device", *PRECISIONS, "the paper's", "GB"]
    notes = ["Dense peak rates in TFLOP/s of one device; the paper's: sustained single precision, footnote 5."]
    notes += [f"  {kind.name}: {kind.source}" for kind in known_devices()]
    console.print_table("GPUs", columns, rows, notes=notes)


def _hardware(
    recipe: Recipe,
    vocab_sizes: tuple[int, int],
    devices: int,
    device_type: str | None,
    mfu: float | None,
    rate: float | None,
    threads: int | None,
) -> "Hardware":
    from nmtkit.distributed.cpu import noticing_other_load, threads_each
    from nmtkit.distributed.workers import Workers
    from nmtkit.training.precision import try_precision
    from nmtkit.training.prediction import Hardware
    from nmtkit.training.state import TrainingState

    precision = recipe.training.precision
    if device_type is not None and rate is not None:
        return Hardware.stated(device_type.lower(), precision, devices, rate * 1e12, mfu=mfu)
    if device_type is not None and device_type.lower() != "cpu":
        return Hardware.named(device_type, precision, devices, mfu=mfu)
    # Start as training does, so that the measured rates are those of training.
    threads = threads or threads_each(devices)
    workers = Workers.start((device_type or "auto").lower(), precision, threads, for_training=True, is_alone=True)
    if workers.device.type != "cpu" or recipe.model.has_actions:  # no ids, of which a trial is made
        return Hardware.here(workers.device, workers.precision, devices, mfu=mfu)
    state = TrainingState(recipe.model, recipe.training, vocab_sizes, workers.device)
    with noticing_other_load():
        chosen, rates = try_precision(state, workers, state.training.precision)
    return Hardware.here(workers.device, chosen, devices, mfu=mfu, reached=rates[chosen])


def _training_pairs(recipe: Recipe, run: "Run") -> "tuple[PairData, tuple[int, int]]":
    """Return the training pairs and the sizes of the vocabularies: the prepared ones if they belong to the recipe, else
    assumed ones."""
    from nmtkit.data.windows import training_data
    from nmtkit.tasks.known import task_of
    from nmtkit.training.prediction import AssumedPairs

    if run.is_prepared():
        stored = run.recipe(recipe.name)
        # `prepare` cuts the texts of labels, and episodes; other sequences are cut when training begins.
        is_cut = recipe.data.has_labels or not task_of(recipe.data).has_text
        kept = {} if is_cut else {"sequence_length": recipe.data.sequence_length}
        changes = differences(stored.data.model_copy(update=kept), recipe.data)
        if not changes and not differences(stored.cleaning, recipe.cleaning):
            tokenizer = run.tokenizer()
            sizes = (tokenizer.vocab_size("source"), tokenizer.vocab_size("target"))
            return training_data(run.train_data, recipe, tokenizer).of_epoch(0), sizes
        console.log.warning(
            "%s was prepared with another [data] or [cleaning]; its sentence lengths are not used", run.folder
        )
    if not task_of(recipe.data).has_text:
        raise DataError(f"{recipe.name}: the lengths of its episodes are not known; run `nmtkit prepare` first")
    of_characters = recipe.data.subwords == "characters"  # as many as the text has, mostly
    size = min(_ASSUMED_CHARACTERS, recipe.data.vocab_size) if of_characters else recipe.data.vocab_size
    if recipe.data.has_labels:  # unknown as yet; two, and the special entries
        return AssumedPairs.of_text(recipe.data.sequence_length, labels=True), (size, 6)
    if task_of(recipe.data).has_source:
        return AssumedPairs.of_text(recipe.cleaning.max_tokens, recipe.data.max_source_tokens), (size, size)
    return AssumedPairs.of_sequences(recipe.data.sequence_length), (size, size)
