"""A run folder: every path in it, its recipe, checkpoints and translations, and its lock.

    RUN/recipe.toml            the resolved recipe
    RUN/generated/             translations for generated corpora, and records of their models and settings
    RUN/data/                  ids, text and tokenizer, written by `prepare`
    RUN/checkpoints/step-*/    model folders; RUN/resume/step-*/: states from which training continues
    RUN/averaged/              the averaged model
    RUN/translations/          translations of the test sets, and a record of their models and settings
    RUN/*.json, *.jsonl        metrics, prediction, cost and scores

Only this module builds paths inside a run folder.
"""

import contextlib
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmtkit.config.data_schema import DataConfig
from nmtkit.config.recipe import stored_recipe, to_toml
from nmtkit.config.schema import Recipe
from nmtkit.console import counted, log
from nmtkit.errors import DataError, ModelError, NmtkitError
from nmtkit.files import NOT_ALLOWED, check_regular, remove_pipe, sha256_of, write_text
from nmtkit.json_toml import read_json, write_json
from nmtkit.lines import read_lines
from nmtkit.locks import locked
from nmtkit.model_folder import (
    LoadedModel,
    damage,
    is_model_folder,
    load_model,
    read_provenance,
    step_folders,
    step_of,
    validation_cost,
)
from nmtkit.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch


LOCK_NAME = ".lock"
_READERS = {
    "ctranslate2": "`nmtkit translate` and `nmtkit serve` read, and CTranslate2Translator in Python",
    "huggingface": "transformers reads",
}
"""Commands and classes that read the exports of each format."""


@dataclass(frozen=True)
class TextPair:
    """The text files of a test set or of the validation data in RUN/data."""

    source: Path
    reference: Path

    def read(self) -> tuple[list[str], list[str]]:
        """Return the lines of both files, which must be regular ones."""
        for path in (self.source, self.reference):
            check_regular(path)
        return read_lines(self.source), read_lines(self.reference)


class Run:
    """The files of one run; its folder need not exist yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.recipe_file = folder / "recipe.toml"
        self.data = folder / "data"
        self.manifest = self.data / "manifest.json"
        self.train_data, self.valid_data = self.data / "train", self.data / "valid"
        self.tokenizer_folder = self.data / "tokenizer"
        self.data_report, self.data_page = self.data / "report.json", self.data / "report.html"
        self.page = folder / "report.html"  # of `nmtkit report`
        self.stages = folder / "prepare"  # stages of an interrupted `prepare`
        self.text_stage, self.subwords_stage = self.stages / "text", self.stages / "subwords"
        self.check_folder = folder / "check"  # temporary folder of `prepare --check`
        self.checkpoints_folder = folder / "checkpoints"
        self.resume_folder = folder / "resume"
        self.sampled = folder / "drawn"  # epochs whose subwords were sampled
        self.averaged = folder / "averaged"
        self.generated_folder = folder / "generated"  # translations of monolingual text to train on
        self.averaging = folder / "averaging.json"
        self.metrics = folder / "metrics.jsonl"
        self.nonfinite = folder / "nonfinite.jsonl"
        self.prediction = folder / "prediction.json"
        self.cost = folder / "cost.json"
        self.scores = folder / "scores.json"
        self.play = folder / "play.json"  # statistics of the episodes that the model played
        self.card = folder / "card.md"
        self.row_result = folder / "ablation.json"  # result of a run that is a row of a sweep
        self.row_log = folder / "ablation.log"  # messages of the process of such a row
        self.translations_record = folder / "translations" / "manifest.json"
        self.valid_text = self._text("valid")
        self._lock = folder / LOCK_NAME

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints_folder / f"step-{step:08d}"

    def resume_state(self, step: int) -> Path:
        return self.resume_folder / f"step-{step:08d}"

    def sampled_epoch(self, epoch: int) -> Path:
        return self.sampled / f"epoch-{epoch:08d}"

    def translation(self, test_set: str) -> Path:
        return self.folder / "translations" / f"{test_set}.txt"

    def generated(self, name: str, suffix: str) -> Path:
        """Return the translations of a generated corpus ("tsv") or their record ("json")."""
        return self.generated_folder / f"{name}.{suffix}"

    # ---- data and recipe

    def test_text(self, name: str) -> TextPair:
        return self._text(f"test/{name}")

    def _text(self, name: str) -> TextPair:
        return TextPair(self.data / f"{name}.source.txt", self.data / f"{name}.reference.txt")

    def test_sets(self) -> list[str]:
        """Return the names of the test sets of the prepared data."""
        # Sorted, as the order of glob depends on the file system.
        return sorted(path.name.removesuffix(".source.txt") for path in (self.data / "test").glob("*.source.txt"))

    def is_prepared(self) -> bool:
        return self.manifest.is_file()

    def check_prepared(self) -> None:
        """Raise DataError if the run has no prepared data."""
        if not self.is_prepared():
            raise DataError(f"{self.data}: there is no prepared data here; run `nmtkit prepare` first")

    def is_trained(self) -> bool:
        """Return whether training has written a checkpoint or resume state; the data must not change any more."""
        return self.checkpoints_folder.is_dir() or self.resume_folder.is_dir()

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer of the prepared data.

        Raises:
            DataError: the run has not been prepared.
        """
        self.check_prepared()
        return Tokenizer.load(self.tokenizer_folder)

    def recipe(self, name: str | None = None) -> Recipe:
        """Read the stored recipe; its default name is that of the folder.

        Raises:
            DataError: the folder is missing, or is not that of a run.
        """
        if not self.recipe_file.is_file():
            reason = "not a run (no recipe.toml in it)" if self.folder.is_dir() else "no such folder"
            raise DataError(f"{self.folder}: {reason}; give the folder that `nmtkit run` or `nmtkit prepare` wrote")
        return stored_recipe(self.recipe_file, name or self.folder.resolve().name)

    def has_recipe(self, recipe: Recipe) -> bool:
        """Return whether exactly this recipe is stored."""
        return self.recipe_file.is_file() and self.recipe_file.read_bytes() == to_toml(recipe).encode()

    def store_recipe(self, recipe: Recipe) -> None:
        """Write recipe.toml unless it has the same content already."""
        if not self.has_recipe(recipe):
            remove_pipe(self.recipe_file)
            write_text(self.recipe_file, to_toml(recipe))

    # ---- models

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints, oldest first."""
        return [path for path in step_folders(self.checkpoints_folder) if is_model_folder(path)]

    def model_folders(self) -> list[Path]:
        """Return the folders of checkpoints and of the average, as far as they exist."""
        return [folder for folder in (self.checkpoints_folder, self.averaged) if folder.exists()]

    def newer_checkpoint(self) -> str | None:
        """Return the name of the last checkpoint if it has been made since the average; None if not."""
        last = self.checkpoints()[-1:]
        # Checkpoints that were there before are left out on purpose. Not by times, which copies of a run do not keep.
        newest = read_provenance(self.averaged).get("newest")
        if newest is None:  # an average of an earlier version, of which only times tell
            newest = max(self.averaged_checkpoints(), default="~")
            last = [one for one in last if one.stat().st_mtime > (self.averaged / "model.json").stat().st_mtime]
        return last[0].name if last and last[0].name > newest else None

    def warn_of_older_scores(self) -> None:
        """Log a warning if a model or a translation of a test set has been written since scores.json."""
        if not self.scores.is_file():
            return
        made = self.scores.stat().st_mtime + 2  # files of a copied run have times of their own
        models = [folder / "model.json" for folder in (self.averaged, *self.checkpoints()[-1:])]
        for path in (*models, *map(self.translation, self.test_sets())):
            if path.is_file() and path.stat().st_mtime > made:
                log.warning(
                    "%s is older than %s; `nmtkit score %s` makes it again (after a training that went on, translate "
                    "the test sets first)", self.scores, path, self.folder,
                )  # fmt: skip
                return

    def averaged_checkpoints(self) -> list[str]:
        """Return the names of the checkpoints in the average."""
        return [entry["checkpoint"] for entry in read_provenance(self.averaged).get("average_of") or []]

    def resume_states(self) -> list[Path]:
        """Return the folders of the resume states, oldest first."""
        return step_folders(self.resume_folder)

    def latest_state(self) -> Path | None:
        """Return the state.json or provenance.json of the latest resume state or checkpoint; None without either."""
        # Checkpoints first, as max takes the first of equal updates: a checkpoint contains the time of its validation.
        states = [folder / "provenance.json" for folder in self.checkpoints()]
        states += [folder / "state.json" for folder in self.resume_states()]
        return max((path for path in states if path.is_file()), key=lambda path: step_of(path.parent), default=None)

    def whole_checkpoints(self, count: int | None = None, *, in_succession: bool = False) -> list[Path]:
        """Return the newest ``count`` undamaged checkpoints, oldest first; None: all.

        Damaged checkpoints are skipped with a warning.

        Args:
            in_succession: leave out those before the last gap, which are there only because they are among the best.
        """
        newest_first = self.checkpoints()[::-1]
        if in_succession:
            usual = None  # distance of the two before
            for number, (newer, older) in enumerate(pairwise(newest_first), start=1):
                distance = step_of(newer) - step_of(older)
                try:
                    follows = read_provenance(newer).get("previous", step_of(older)) == step_of(older)
                except ModelError:  # damaged, as `_whole` reports: what came before it is not known
                    follows = usual is None or distance <= usual
                usual = distance
                if not follows:
                    newest_first = newest_first[:number]
                    break
        return sorted(_whole(newest_first, count), key=step_of)

    def best_checkpoints(self, count: int, *, check: bool = True) -> list[Path]:
        """Return at most ``count`` validated checkpoints, best first by best_metric.

        Args:
            check: compare all files with their checksums; else only a damaged provenance.json is detected. Damaged
                checkpoints are skipped with a warning.
        """
        scored = []
        for path in self.checkpoints():
            try:
                cost = validation_cost(read_provenance(path))
            except ModelError as error:
                log.warning("%s; skipping this checkpoint; remove %s", error, path)
                continue
            if cost is not None:
                scored.append((cost, step_of(path), path))
        best = [path for _, _, path in sorted(scored)]
        return _whole(best, count) if check else best[:count]

    # ---- translations of the test sets

    def recorded_translations(self) -> dict[str, Any]:
        """Return the recorded model and settings of each translated test set; {} without a record.

        Raises:
            DataError: the record is damaged.
        """
        path = self.translations_record
        return read_json(path, {str: {"decoding?": dict, "options?": {"asked?": dict}}}) if path.is_file() else {}

    def is_translated(self, test_set: str, made_from: dict[str, Any]) -> bool:
        """Return whether the translation of a test set exists, is unchanged, and was made from exactly these inputs."""
        output, known = self.translation(test_set), self.recorded_translations().get(test_set)
        return known is not None and output.is_file() and known == {**made_from, "sha256": sha256_of(output)}

    def record_translation(self, test_set: str, made_from: dict[str, Any]) -> None:
        """Record the inputs of the translation of a test set, whose file must exist."""
        entry = {**made_from, "sha256": sha256_of(self.translation(test_set))}
        path = self.translations_record
        # Test sets may be translated at the same time, and each adds its entry to those of the others.
        with locked(path.with_name(f".{path.name}.lock"), path, "translate", "--output", waits=True):
            recorded = {**self.recorded_translations(), test_set: entry}
            remove_pipe(path)
            write_json(path, recorded)

    def read_translated(self, test_set: str) -> tuple[list[str], list[str], list[str]]:
        """Return sources, references and translations of a test set, line by line.

        Raises:
            DataError: the test set has no translation, or an incomplete one.
        """
        output, text = self.translation(test_set), self.test_text(test_set)
        if not output.is_file():
            data = self.recipe().data
            command = ["nmtkit", "classify" if data.has_labels else "translate", str(self.folder)]
            if test_set in data.tests:
                command += language_options(data, data.tests[test_set], self.tokenizer())
            command += ["--input", str(text.source), "--output", str(output)]
            raise DataError(f"{output}: missing; make it with `{shlex.join(command)}`")
        for path in (text.source, text.reference):
            if not path.is_file():
                raise DataError(f"{path}: no such file; prepare the run again")
        (sources, references), hypotheses = text.read(), read_lines(output)
        if not len(hypotheses) == len(sources) == len(references):
            raise DataError(
                f"{output} has {counted(len(hypotheses), 'line')}, but the test set {test_set} has "
                f"{counted(len(sources), 'source')} and {counted(len(references), 'reference')}; make it again"
            )
        return sources, references, hypotheses

    # ---- one command at a time

    @contextmanager
    def locked(self, command: str) -> Iterator[None]:
        """Hold the lock of the run for the duration of a `with` block; create the folder if it is missing.

        Args:
            command: name of the locking command, for messages of other processes: "train", "prepare" or "ablate".

        Raises:
            NmtkitError: another process holds the lock, a file is in place of the folder, or it cannot be written.
        """
        # On a stack, so that errors of the block itself are not reported as faults of the lock.
        option = "--sweep-dir" if command == "ablate" else "--run-dir"
        with ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(self._lock, self.folder, command, option))
            except (FileExistsError, NotADirectoryError) as error:
                raise NmtkitError(
                    f"{error.filename}: a file is in the way; give another folder with {option}"
                ) from None
            except OSError as error:
                if error.errno not in NOT_ALLOWED:
                    raise
                raise _unwritable(self.folder, os.strerror(error.errno), option) from None
            for path in (self.checkpoints_folder, self.resume_folder, self.metrics, self.recipe_file):
                # Such as files of another user: found now, and not when the first checkpoint is written.
                if path.exists() and not os.access(path, os.W_OK):
                    raise _unwritable(path, "permission denied", option)
            yield

    def remove_abandoned_lock(self) -> None:
        """Remove the lock file that a killed process has left, unless another process holds the lock."""
        if self._lock.exists():
            with contextlib.suppress(NmtkitError, OSError), locked(self._lock, self.folder, "prepare", "--run-dir"):
                log.debug("%s was left by a killed process", self._lock)


def _whole(folders: Iterable[Path], count: int | None) -> list[Path]:
    """Return the first ``count`` undamaged folders."""
    undamaged: list[Path] = []
    for folder in folders:
        if len(undamaged) == count:
            break
        fault = damage(folder)
        if fault is None:
            undamaged.append(folder)
        else:
            log.warning("%s; skipping this checkpoint; remove %s", fault, folder)
    return undamaged


def _unwritable(path: Path, reason: str, option: str) -> NmtkitError:
    return NmtkitError(
        f"{path}: cannot be written ({reason[0].lower()}{reason[1:]}); fix this, or use another {option}"
    )


def chosen_languages(
    data: DataConfig, direction: tuple[str, str], tokenizer: Tokenizer
) -> tuple[str | None, str | None]:
    """Return the source and the target language that a request states for a direction of a recipe's model; None where
    the model has no choice."""
    has_targets = len(tokenizer.target_languages) > 1  # also where a model of many languages is fine-tuned
    return direction[0] if data.has_source_tags else None, direction[1] if has_targets else None


def language_options(data: DataConfig, direction: tuple[str, str], tokenizer: Tokenizer) -> list[str]:
    """Return the options of `nmtkit translate` that choose a direction of a recipe's model, if it has several."""
    stated = zip(("--from", "--to"), chosen_languages(data, direction, tokenizer), strict=True)
    return [part for option, code in stated if code for part in (option, code)]


def set_translated_as(output: Path) -> tuple[Run, str] | None:
    """Return the run and the test set if a path is the translation of a test set, else None."""
    output = output.absolute()
    run = Run(output.parent.parent)
    is_translation = output == run.translation(output.stem) and run.test_text(output.stem).source.is_file()
    return (run, output.stem) if is_translation else None


def find_model(path: Path) -> Path:
    """Return the model folder for a MODEL argument.

    That is the folder itself, or, of a run, the averaged model, else the best or last undamaged checkpoint.

    Raises:
        ModelError: there is no model.
    """
    if not path.is_dir():
        fault = "is a file, and no folder" if path.exists() else "no such folder"
        raise ModelError(f"{path}: {fault}; give a model folder, a run folder or a checkpoint")
    if is_model_folder(path):
        return path
    run = Run(path)
    if is_model_folder(run.averaged):
        if newer := run.newer_checkpoint():
            _warn_of_older_average(path, newer)
        return run.averaged
    candidates = run.best_checkpoints(1) or run.whole_checkpoints(1)
    if candidates:
        return candidates[0]
    if run.checkpoints():
        raise ModelError(f"{run.checkpoints_folder}: every checkpoint is damaged; train the run again")
    if run.data.is_dir() or run.recipe_file.is_file():
        raise ModelError(f"{path}: this run has no model yet; run `nmtkit train` first")
    if (path / "manifest.json").is_file():
        manifest = read_json(path / "manifest.json", {"to?": str, "model?": str}, ModelError)
        if reader := _READERS.get(manifest.get("to", "")):
            raise ModelError(
                f"{path}: an export of {manifest.get('model', 'a model')}, which {reader}; here, give the model itself"
            )
    raise ModelError(f"{path}: neither a model folder nor a run (no model.json, averaged/ or checkpoints/ in it)")


@cache  # a command may look for its model several times
def _warn_of_older_average(path: Path, checkpoint: str) -> None:
    log.warning(
        "%s: its averaged model is older than %s, and is taken all the same; `nmtkit average %s` makes it anew",
        path, checkpoint, shlex.quote(str(path)),
    )  # fmt: skip


def load_ensemble(
    models: str | Path | Sequence[str | Path], device: "torch.device | str | None" = None
) -> list[LoadedModel]:
    """Load a model, or the models of an ensemble: model folders, run folders or checkpoints.

    Args:
        device: name of a torch device, or auto; by default the CPU.

    Raises:
        ModelError: a model is missing or damaged, the vocabularies differ, or no model is given.
        NmtkitError: the device is not available.
    """
    import torch

    from nmtkit.distributed.workers import choose_device

    if isinstance(device, str):
        kind, _, number = device.partition(":")
        chosen = choose_device(kind)
        if number and not (kind == "cuda" and number.isdecimal() and int(number) < torch.cuda.device_count()):
            raise NmtkitError(f"device {device}: this machine has no device of that number")
        device = torch.device(device) if number else chosen
    folders = [find_model(Path(path)) for path in ([models] if isinstance(models, str | Path) else models)]
    if not folders:
        raise ModelError("no model is given")
    loaded = [load_model(folder, device) for folder in folders]
    for folder, entry in zip(folders, loaded, strict=True):
        if entry.tokenizer.fingerprint() != loaded[0].tokenizer.fingerprint():
            raise ModelError(f"{folder}: its vocabulary differs from that of {folders[0]}; an ensemble shares one")
    return loaded
