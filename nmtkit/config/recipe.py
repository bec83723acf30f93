"""Reading, checking, comparing and writing of recipe files.

    recipe file -> its `base`, and so on -> --set overrides          layers
                -> check of unknown keys and of combinations -> Recipe

The last layer that states a key wins.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from nmtkit.config.corpus_entries import (
    CorpusEntry,
    GeneratedCorpus,
    LocalPair,
    NamedCorpus,
    Noise,
    corpus_name,
    mixture_label,
)
from nmtkit.config.data_schema import ENVIRONMENT, SUMMARY, TASK_NAMES, DataConfig, defaults_of_task
from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.config.foreign_keys import FOREIGN_KEYS
from nmtkit.config.schema import ENDING_SCHEDULES, EXCLUSIVE_KEYS, SECTIONS, Recipe, TrainingConfig
from nmtkit.config.section import VALUE_RULES, default_of
from nmtkit.console import is_launched, log
from nmtkit.errors import RecipeError
from nmtkit.files import as_text, expanded
from nmtkit.json_toml import read_toml


@dataclass(frozen=True)
class _Layer:
    """One source of settings: a recipe file or the --set options."""

    name: str
    text: str
    values: dict[str, dict[str, Any]]

    def locate(self, section: str, key: str | None = None) -> str:
        """Return `file, line N` of a section or of a key in it, for messages."""
        current = ""
        # tomllib gives no line numbers.
        for number, line in enumerate(self.text.split("\n"), start=1):
            if header := re.match(r"\s*\[\s*(\w+)\s*\]", line):
                current = header[1]
                if current == section and key is None:
                    return f"{self.name}, line {number}"
            elif key is not None and current == section and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
                return f"{self.name}, line {number}"
        return self.name


_PLAIN = {
    "missing": "must have more entries",
    "too_short": "must have {min_length} or more entries",
    "too_long": "must have {max_length} or fewer entries",
    "tuple_type": "must be a list, in [ ]",
    "string_type": "must be text, in quotes",
    "string_too_short": "must not be empty",
    "model_type": "must be a table, in {{ }}",
    "path_type": "must be the name of a file or folder, in quotes",
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    "finite_number": "must be a finite number",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
}
"""Messages for pydantic's types of errors."""

_SET = "--set"
"""Name of the layer made of --set options."""


def builtin_recipes() -> dict[str, Path]:
    """Return the built-in recipes by name."""
    package = Path(__file__).parent.parent
    inside = package / "recipes"  # of an installed package; in a checkout they are beside it
    folder = inside if inside.is_dir() else package.parent / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def find_recipe(name_or_file: str, *, folder: Path | None = None) -> Path:
    """Return the file of a recipe, given as a TOML file (relative to ``folder``) or as a built-in name.

    Raises:
        RecipeError: no such recipe exists.
    """
    path = (folder or Path()) / expanded(name_or_file)
    if path.is_file():
        return path
    builtin = builtin_recipes()
    if name_or_file in builtin:
        return builtin[name_or_file]
    if path.is_dir():
        stored = path / "recipe.toml"
        hint = "it is not a run either (no recipe.toml)"
        if stored.is_file():
            hint = f"the recipe of this run is {stored}; to continue the run, give that file and --run-dir {path}"
        raise RecipeError(f"{path}: this is a folder, not a recipe; {hint}")
    if name_or_file.endswith(".toml"):
        raise RecipeError(f"{path}: no such recipe file")
    missing = f"{path}: no such file or folder" if "/" in name_or_file else f"no recipe {name_or_file!r}"
    raise RecipeError(f"{missing}{nearest(path.name, builtin)}; `nmtkit recipes` lists the built-in recipes")


def load_recipe(name_or_file: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe with its bases and ``section.key=value`` overrides.

    Raises:
        RecipeError: the recipe cannot be read or is invalid; the message names file, line and key.
    """
    path = find_recipe(name_or_file)
    layers = _read_layers(path, seen=())
    if overrides:
        layers.append(_parse_overrides(overrides))
    return build_recipe(path.stem, layers)


def build_recipe(name: str, layers: list[_Layer], *, is_stored: bool = False) -> Recipe:
    """Merge layers, the last one winning, and check the result; that of a run may have keys without effect."""
    for layer in layers:
        _check_keys(layer)
    if not any("data" in layer.values for layer in layers):
        file = next((layer.name for layer in reversed(layers) if layer.name != _SET), _SET)
        raise RecipeError(f"{file}: no [data] section; state the languages and the train corpora there")
    try:
        return _merged(name, layers, is_stored=is_stored)
    except ValidationError as error:
        raise RecipeError(_explain(error, layers)) from None


def _merged(name: str, layers: Sequence[_Layer], *, is_stored: bool = False) -> Recipe:
    """Merge layers; raise ValidationError if the result is invalid."""
    merged: dict[str, dict[str, Any]] = {}
    for layer in layers:
        values = layer.values
        # Validation and test sets of a base do not fit other corpora, nor does the environment of its episodes.
        if "train" in values.get("data", {}):
            train = values["data"]["train"]
            plays = isinstance(train, list) and ENVIRONMENT in train
            dropped = [
                key for key in (("valid", "test") if plays else ("valid", "test", "environment"))
                if merged.get("data", {}).pop(key, None) and key not in values["data"]
            ]  # fmt: skip
            if dropped and layer.name == _SET and not is_launched():  # the process that launched this one has warned
                pronoun = "that" if len(dropped) == 1 else "these"
                log.warning("--set data.train leaves out the recipe's %s; set %s, too", " and ".join(dropped), pronoun)
        # What a stored recipe states of these follows from its task.
        if {"task", "label_type", "states", "actions"} & values.get("data", {}).keys():
            for key in ("head", "vector_states"):
                merged.get("model", {}).pop(key, None)
            _forget_task(merged, values["data"].get("task"))
        stated, inherited = values.get("data", {}), merged.get("data", {})
        is_summary = {**inherited, **stated}.get("task") == SUMMARY
        has_one = "task" in stated or inherited.get("source_language") == inherited.get("target_language")
        if is_summary and has_one and "target_language" in stated:
            inherited.pop("source_language", None)  # a summary is in the language of its source, unless stated
        for section, content in values.items():
            target = merged.setdefault(section, {})
            for rival in (rival for key, value in content.items() for rival in _rivals(key, value)):
                # A layer that states both keeps both, so that the check reports the conflict.
                if rival not in content:
                    target.pop(rival, None)
            target.update(content)
            for key, value in content.items():
                if value == "" and default_of(SECTIONS[section], key) is None:
                    del target[key]  # so that what a base states can be left out
    return Recipe.model_validate({"name": as_text(name), **merged}, context={"is_stored": is_stored})


def _forget_task(merged: dict[str, dict[str, Any]], new: Any) -> None:
    """Remove the values that a base states, but that follow from its task, if ``new`` is another."""
    old = merged.get("data", {}).get("task")
    if new is None or new == old:
        return
    for section, defaults in defaults_of_task(old).items():
        stated = merged.get(section, {})
        for key, value in defaults.items():
            if stated.get(key) == (list(value) if isinstance(value, tuple) else value):
                del stated[key]
    for key in {"source_language", "target_language"} & defaults_of_task(new)["data"].keys():
        merged.get("data", {}).pop(key, None)


def stored_recipe(path: Path, name: str) -> Recipe:
    """Read the resolved recipe of a run (RUN/recipe.toml)."""
    return build_recipe(name, _read_layers(path, seen=()), is_stored=True)


def changed_recipe(recipe: Recipe, changes: dict[str, dict[str, Any]], *, origin: str) -> Recipe:
    """Return a recipe with some values changed, checked as if they were written in a file.

    Args:
        changes: values by section and key.
        origin: name for the source of the changes in messages.

    Raises:
        RecipeError: the result is invalid.
    """
    # Through TOML, so that values have the types that a file gives.
    stated = _Layer(origin, "", tomllib.loads(to_toml(recipe)))
    return build_recipe(recipe.name, [stated, _Layer(origin, "", changes)])


def changed_decoding(decoding: DecodingConfig, changes: dict[str, Any]) -> DecodingConfig:
    """Return settings of [decoding] with some values changed, checked as those of --set; raise RecipeError if wrong."""
    layer = _Layer("given settings", "", {"decoding": changes})
    _check_keys(layer)
    merged = {"decoding": {**dict(decoding), **changes}}
    try:
        changed = TypeAdapter(dict[str, DecodingConfig]).validate_python(merged)["decoding"]
    except ValidationError as error:
        raise RecipeError(_explain(error, [layer])) from None
    if changes.get("alpha") and "length_penalty" not in changes and changed.length_penalty == "none":
        raise RecipeError('alpha has no effect, as the model has length_penalty = "none"; leave it out')
    return changed


def to_toml(recipe: Recipe) -> str:
    """Return the resolved recipe as TOML."""
    # TOML has no null.
    values = recipe.model_dump(mode="json", exclude_none=True, exclude={"name"})
    if "source_equals_target" not in recipe.cleaning.model_fields_set:  # a key in a file counts as stated
        del values["cleaning"]["source_equals_target"]
    return tomli_w.dumps(values)


def _read_layers(path: Path, seen: tuple[Path, ...]) -> list[_Layer]:
    if path.resolve() in seen:
        raise RecipeError(f"{path}: its base refers back to itself")
    values, text = read_toml(path, RecipeError)
    base = values.pop("base", None)
    if base is not None and not isinstance(base, str):
        raise RecipeError(f"{path}: base must be the name of a recipe or a file, in quotes")
    for section, content in values.items():
        if not isinstance(content, dict):
            if section in SECTIONS:
                raise RecipeError(f"{path}: {section} must be a section, whose keys stand below a line [{section}]")
            raise RecipeError(
                f"{path}: {section} is outside of the sections {', '.join(f'[{name}]' for name in SECTIONS)}"
            )
    # Those of a built-in recipe are files of the user, who cannot write beside it.
    _anchor_paths(values, Path.cwd() if path in builtin_recipes().values() else path.parent.resolve())
    layer = _Layer(str(path), text, values)
    if base is None:
        return [layer]
    try:
        base_path = find_recipe(base, folder=path.parent)
    except RecipeError as error:
        raise RecipeError(f"{path}: its base: {error}") from None
    return [*_read_layers(base_path, (*seen, path.resolve())), layer]


def _parse_overrides(overrides: Sequence[str]) -> _Layer:
    values: dict[str, dict[str, Any]] = {}
    for override in overrides:
        match = re.fullmatch(r"(\w+)\.(\w+)=(.*)", override, flags=re.DOTALL)
        if match is None:
            raise RecipeError(f"--set {override}: write it as section.key=value, such as --set training.seed=2")
        section, key, text = match.groups()
        try:
            parsed = tomllib.loads(f"value = {text}")
        except (ValueError, RecursionError):
            parsed = {"value": text}  # not TOML, such as a name without quotes
        if len(parsed) > 1:
            raise RecipeError(f"--set {section}.{key}: has several settings; give a --set for each")
        value = parsed["value"]
        group = values.setdefault(section, {})
        for rival in _rivals(key, value):
            group.pop(rival, None)
        group[key] = value
    _anchor_paths(values, Path.cwd())
    return _Layer(_SET, "", values)


def _anchor_paths(values: dict[str, Any], folder: Path) -> None:
    """Make the paths of local corpora and models absolute; those in a recipe are relative to its file, or for a
    built-in recipe to the current folder."""

    def anchor(table: Any, *keys: str, lists: bool = False) -> None:
        for key in keys if isinstance(table, dict) else ():
            if table.get(key) and isinstance(table[key], str):
                table[key] = str(folder / expanded(table[key]))
            elif lists and isinstance(table.get(key), list):
                table[key] = [str(folder / expanded(str(path))) for path in table[key]]

    data = values.get("data", {})
    anchor(data, "tokenizer", "treebank")
    anchor(data, "silver_trees", lists=True)
    anchor(values.get("training", {}), "init")
    for entries in (data.get(key) for key in ("train", "valid", "test")):
        for entry in entries if isinstance(entries, list) else []:
            anchor(entry, "source", "target", "text", "generate")
            anchor(entry, "model", lists=True)


def _check_keys(layer: _Layer) -> None:
    for section, content in layer.values.items():
        if section not in SECTIONS:
            raise RecipeError(f"{layer.locate(section)}: unknown section [{section}]{nearest(section, SECTIONS)}")
        for key in content:
            if key in SECTIONS[section].model_fields:
                continue
            homes = [name for name, model in SECTIONS.items() if key in model.model_fields]
            hint = f"; it belongs in [{homes[0]}]" if homes else ""
            if key in FOREIGN_KEYS:
                hint += f"; what other toolkits name so is {FOREIGN_KEYS[key]}"
            hint = hint or nearest(key, SECTIONS[section].model_fields)
            raise RecipeError(f"{layer.locate(section, key)}: unknown key {section}.{key}{hint}")


def _rivals(key: str, value: Any) -> list[str]:
    """Return the keys that a value replaces; an empty one replaces none."""
    if value == "":
        return []
    if key == "tokens_per_update":
        return ["sequences_per_update"]  # which would win
    return [rival for group in EXCLUSIVE_KEYS if key in group for rival in group if rival != key]


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Return the question whether the most similar candidate was meant, for messages; "" if none is similar."""
    matches = difflib.get_close_matches(word, candidates, n=1, cutoff=0.5)
    return f"; did you mean {matches[0]}?" if matches else ""


def _explain(error: ValidationError, layers: list[_Layer]) -> str:
    """Return a one-line message about the first error, with its file and line."""
    # Stated values first, as others may follow from them, such as the source language of a summary.
    errors = sorted(error.errors(include_url=False), key=lambda each: not _is_stated(each["loc"], layers))
    # pydantic tries an entry as a name and as a table, and reports both errors; a table was meant as a table.
    tables = {"LocalPair", "NamedCorpus", "GeneratedCorpus"}
    meant = [e for e in errors if {*tables, "name"} & {*e["loc"]}]
    first = next((e for e in meant if e["type"] == "extra_forbidden"), meant[0] if meant else errors[0])
    section, key = ([str(part) for part in first["loc"]] + ["", ""])[:2]
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] in _PLAIN:
        bounds = first.get("ctx", {}).items()
        whole = {
            name: int(bound) if isinstance(bound, float) and bound.is_integer() else bound for name, bound in bounds
        }
        message = _PLAIN[first["type"]].format(**whole)
    if first["type"] == "string_pattern_mismatch":
        message = VALUE_RULES[first["ctx"]["pattern"]]
    if (section, key) in (("data", "valid"), ("data", "test")) and first["type"] == "int_type":
        message = "must be a whole number, or a list in [ ]"
    if (section, key) == ("data", "task"):
        message = f"none of {', '.join(sorted(TASK_NAMES))}: {message}"
    if not key:
        where = f"[{section}] " if section else ""
        return f"{_to_blame(first, layers)}: {where}{message}"
    if first["type"] == "missing" and len(first["loc"]) == 2:
        told = f"{_to_blame(first, layers)}: {section}.{key} is missing; a recipe must state it"
        # An empty task leaves out that of a base, and what it sets.
        if section == "data" and any(layer.values.get("data", {}).get("task") == "" for layer in layers):
            told += f", or data.task, which may set it: one of {', '.join(sorted(TASK_NAMES))}"
        return told
    if tables & {*first["loc"]}:
        name = next(part for part in reversed(first["loc"]) if isinstance(part, str))
        if first["type"] == "extra_forbidden":
            is_named = "NamedCorpus" in first["loc"]
            known = [*NamedCorpus.model_fields, *([] if is_named else LocalPair.model_fields)]
            if "GeneratedCorpus" in first["loc"]:
                names = [field.alias or key for key, field in GeneratedCorpus.model_fields.items()]
                known = [*names, "prefix", *Noise.model_fields]
            message = f"unknown key{nearest(name, known)}"
            if is_named and name in LocalPair.model_fields:
                message = "cannot be used with corpus"
        if first["type"] == "missing":
            message = "must be stated" + ', "source" or "target"' * (name == "as")
        message = message if name in tables else f"{name}: {message}"
    layer = next((layer for layer in reversed(layers) if key in layer.values.get(section, {})), None)
    if layer is None:
        return f"{layers[-1].name}: {section}.{key}: {message}"
    value, place = layer.values[section][key], f"{layer.locate(section, key)}: {section}.{key}"
    number = next((part for part in first["loc"] if isinstance(part, int)), None)
    if number is None or (section, key) not in [("data", name) for name in ("train", "valid", "test")]:
        return f"{place} = {value!r}: {message}"
    entry = value[number]
    if isinstance(entry, dict):
        if "prefix" in entry:
            message = message.replace("source_prefix: ", "prefix: ")
        files = (Path(str(entry[name])).name for name in ("generate", "source", "text") if name in entry)
        entry = entry.get("name") or entry.get("corpus") or next(files, "without a file")
    return f"{place}, entry {number + 1} ({as_text(entry)}): {message}"


def _is_stated(place: tuple[int | str, ...], layers: Sequence[_Layer]) -> bool:
    section, key = ([str(part) for part in place] + ["", ""])[:2]
    return any(key in layer.values.get(section, {}) for layer in layers)


def _to_blame(first: ErrorDetails, layers: Sequence[_Layer]) -> str:
    """Return the name of the first layer with which an error appears that no single value causes."""
    # A check of several values raises an error without a key, so merge one layer more each time until it appears.
    for number in range(1, len(layers)):
        try:
            _merged("", layers[:number])
        except ValidationError as error:
            if (first["loc"], first["msg"]) in [(known["loc"], known["msg"]) for known in error.errors()]:
                return layers[number - 1].name
    return layers[-1].name


def differences(old: BaseModel, new: BaseModel) -> list[str]:
    """Return the changed keys of two sections of the same kind, as ``key = new (was old)``.

    Local corpora are compared by name only, and the paths of models not at all.
    """
    before, after = _comparable(old), _comparable(new)
    return [f"{key} = {after[key]!r} (was {before[key]!r})" for key in before if before[key] != after[key]]


def data_changes(old: Recipe, new: Recipe) -> list[str]:
    """Return the changed keys of [data] and [cleaning], as `differences` does."""
    sections = {"data": (old.data, new.data), "cleaning": (old.cleaning, new.cleaning)}
    return [f"{name}.{change}" for name, pair in sections.items() for change in differences(*pair)]


def _comparable(section: BaseModel) -> dict[str, Any]:
    """Return the values of a section without paths: files may move, and fingerprints cover their content."""
    values = section.model_dump(mode="json")
    for key in ("tokenizer", "init"):
        if values.get(key) is not None:
            values[key] = "a model"
    if isinstance(section, DataConfig):
        values.pop("treebank")
        values["silver_trees"] = [path.name for path in section.silver_trees]
        for key in ("train", "valid", "test"):
            entries = getattr(section, key)
            if not isinstance(entries, int):
                values[key] = [_comparable_corpus(entry) for entry in entries]
    return values


def _comparable_corpus(entry: CorpusEntry) -> str:
    if isinstance(entry, str):
        return entry
    if isinstance(entry, GeneratedCorpus):
        return f"{corpus_name(entry)} {entry.model_dump(exclude={'generate', 'model', 'name'}, exclude_defaults=True)}"
    name = corpus_name(entry)
    if isinstance(entry, NamedCorpus) and name != entry.corpus:
        name = f"{entry.corpus} as {name}"
    return name + mixture_label(entry)


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Return all settings of a recipe by `section.key`: local corpora by name, models by path."""
    settings = {}
    for name in SECTIONS:
        section = getattr(recipe, name)
        stated = section.model_dump(mode="json", include={"tokenizer", "init"})
        for key, value in {**_comparable(section), **stated}.items():
            settings[f"{name}.{key}"] = value
    return settings


def changes_that_matter(old: TrainingConfig, new: TrainingConfig) -> list[str]:
    """Return the changes of [training] with which a run cannot continue, as they affect updates already made."""
    # These decide when a run saves, reports and stops, but not what an update computes.
    events = ("validate_every_", "checkpoint_every_", "report_every_")
    harmless = ["keep_", "patience_", *events, "max_epochs", "max_minutes"]
    if new.schedule not in ENDING_SCHEDULES:
        # The learning rate of these schedules does not depend on where the training ends.
        harmless.append("max_steps")
    if new.precision == "auto":
        harmless.append("precision")  # a run keeps the one it began with
    return [change for change in differences(old, new) if not change.startswith(tuple(harmless))]
