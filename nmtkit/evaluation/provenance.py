"""Whether a run's translations were made as its recipe says: with an average, the recipe's search, and no other wishes.

Read off RUN/translations/manifest.json (translation_record.py) and the models' provenance.json, before `score` scores.
"""

from pathlib import Path
from typing import Any

from nmtkit.config.schema import DecodingConfig, Recipe
from nmtkit.console import counted
from nmtkit.errors import DataError, NmtkitError
from nmtkit.files import sha256_of
from nmtkit.model_folder import is_model_folder, read_provenance
from nmtkit.run import Run

_WISHES = {
    "sampling": "drawn as samples instead of searched for",
    "minimum_risk": "chosen from samples by minimum Bayes risk",
    "prefixes": "made with the beginning of each line given",
    "required": "made with phrases that its lines had to hold",
    "forbidden": "made with phrases forbidden",
}
"""Options of `translate` that a recipe cannot ask for, in words."""
_AS_BY_RUN = {"precision": "float32", "output": "text", "max_source_tokens": None}
"""Options of `translate` as `run` has them."""


def doubts(run_dir: Path, name: str, recipe: Recipe) -> list[str]:
    """What sets the translation of a test set apart from what the recipe says, each in one line.

    Args:
        name: of a test set that is translated.

    Raises:
        DataError: the record of the translations is damaged.
    """
    output = Run(run_dir).translation(name)
    known = Run(run_dir).recorded_translations().get(name)
    if known is None:
        return [f"{output}: nothing says which model made it; `nmtkit run` and `nmtkit translate` note it"]
    if not isinstance(known, dict) or not {"sha256", "source_sha256", "model_sha256", "decoding"} <= known.keys():
        raise DataError(f"{output.parent / 'manifest.json'}: its entry {name!r} is damaged; translate {name} again")
    if known["sha256"] != sha256_of(output):
        return [f"{output}: changed since it was translated, so nothing says what made it"]
    source = Run(run_dir).test_text(name).source
    found = (
        [f"{output}: translated from another text than {source}"] if known["source_sha256"] != sha256_of(source) else []
    )
    if isinstance(known["model_sha256"], list):
        found.append(f"{output}: made by an ensemble of {counted(len(known['model_sha256']), 'model')}")
    elif (doubt := _doubt_of_model(run_dir, known["model_sha256"], recipe.decoding)) is not None:
        found.append(f"{output}: {doubt}")
    told = _doubts_of_search(known["decoding"], recipe.decoding)
    told += _doubts_of_options(known.get("options", {}), known["decoding"])
    return found + [f"{output}: {doubt}" for doubt in told]


def _doubts_of_search(made_with: dict[str, Any], wanted: DecodingConfig) -> list[str]:
    stated = wanted.model_dump(mode="json")
    return [
        f"translated with {key} = {made_with[key]}, but the recipe says {stated[key]}"
        for key in stated
        if key != "average_last" and made_with.get(key, stated[key]) != stated[key]
    ]


def _doubts_of_options(options: dict[str, Any], decoding: dict[str, Any]) -> list[str]:
    """What else was asked of `translate` that `run` would not have done.

    Args:
        options: as TranslationJob describes them.
    """
    asked = {**options, **options.get("asked", {})}
    found = [said for wish, said in _WISHES.items() if asked.get(wish)]
    found += [
        f"translated with {key} = {asked[key]}, but `run` has {plain or 'the limit of the model'}"
        for key, plain in _AS_BY_RUN.items()
        if asked.get(key, plain) != plain
    ]
    if asked.get("engine") == "ctranslate2" and decoding.get("beam") != 1:
        found.append("translated by CTranslate2, whose beam search is not nmtkit's")
    return found


def _doubt_of_model(run_dir: Path, sha256: str, wanted: DecodingConfig) -> str | None:
    """What is odd about the model of these weights; None if it is the average that the recipe asks for."""
    averaged = Run(run_dir).averaged
    if is_model_folder(averaged) and _sum_of(averaged) == sha256:
        names = [one["checkpoint"] for one in read_provenance(averaged).get("average_of", [])]
        if len(names) != wanted.average_last:
            return (
                f"made by an average of {counted(len(names), 'checkpoint')}, but the recipe averages the last "
                f"{wanted.average_last}"
            )
        there = [folder.name for folder in Run(run_dir).checkpoints()]
        left_out = [name for name in there if name > min(names) and name not in names]
        if left_out:
            return f"made by an average without {left_out[-1]}, but the recipe averages the last {wanted.average_last}"
        return None
    made_by = next((folder.name for folder in Run(run_dir).checkpoints() if _sum_of(folder) == sha256), None)
    if made_by is None:
        return "made by a model that is not in the run (any more)"
    if wanted.average_last == 1:
        return None
    return f"made by {made_by} alone, but the recipe averages the last {wanted.average_last}"


def _sum_of(folder: Path) -> str | None:
    """The sum of the weights as their folder states it."""
    try:
        return str(read_provenance(folder)["files"]["model.safetensors"])
    except NmtkitError:
        return None
