"""Doubts about translations of a run: made with another model, search or options than its recipe states.

Read from RUN/translations/manifest.json and the models' provenance.json, before `score` scores.
"""

from pathlib import Path

from pydantic import ValidationError

from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.config.schema import Recipe
from nmtkit.console import counted
from nmtkit.errors import DataError, NmtkitError
from nmtkit.files import sha256_of
from nmtkit.model_folder import is_model_folder, read_provenance
from nmtkit.run import Run

_NOT_IN_RECIPES = {
    "sampling": "sampled instead of searched for",
    "minimum_risk": "chosen from samples by minimum Bayes risk",
    "prefixes": "made with the beginning of each line given",
    "required": "made with phrases that its lines had to hold",
    "forbidden": "made with phrases forbidden",
    "glossary": "made with a glossary",
    "keep": "made with spans kept",
}
"""Options of `translate` that a recipe cannot state, in words."""
_AS_BY_RUN = {"precision": "float32", "output": "text", "max_source_tokens": None, "split": "never"}
"""Options of `translate` as `run` has them."""


def doubts(run_dir: Path, name: str, recipe: Recipe) -> list[str]:
    """Return what sets the translation of a test set apart from the recipe, each in one line.

    Args:
        name: a translated test set.

    Raises:
        DataError: the record of the translations is damaged.
    """
    run = Run(run_dir)
    output, source = run.translation(name), run.test_text(name).source
    known = run.recorded_translations().get(name)
    if known is None:
        return [f"{output}: there is no record of its model; `nmtkit run` and `nmtkit translate` write one"]
    if not {"sha256", "source_sha256", "model_sha256", "decoding"} <= known.keys():
        raise DataError(f"{output.parent / 'manifest.json'}: its entry {name!r} is damaged; translate {name} again")
    if known["sha256"] != sha256_of(output):
        return [f"{output}: changed since it was translated, so its record does not apply"]
    found = []
    if known["source_sha256"] != sha256_of(source):
        found.append(f"translated from another text than {source}")
    if isinstance(known["model_sha256"], list):
        found.append(f"made by an ensemble of {counted(len(known['model_sha256']), 'model')}")
    elif (doubt := _doubt_of_model(run, known["model_sha256"], recipe.decoding)) is not None:
        found.append(doubt)
    made_with, wanted = known["decoding"] or {}, recipe.decoding.model_dump(mode="json")
    found += [
        "translated with {} = {}, but the recipe has {}".format(
            key, *("none" if each is None else each for each in (made_with[key], value))
        )
        for key, value in wanted.items()
        # average_last is no setting of the search; `_doubt_of_model` compares it with the model.
        if key != "average_last" and made_with.get(key, value) != value
    ]
    options, data = known.get("options") or {}, recipe.data.of_test(name)
    given = {**options, **(options.get("asked") or {})}
    if recipe.data.has_source_tags and not given.get("source_language"):  # the model has taken its default
        given["source_language"] = run.tokenizer().languages[0]
    for side, direction, expected in (("source", "from", data.source_language), ("target", "to", data.target_language)):
        language = known.get(f"{side}_language") or given.get(f"{side}_language") or expected
        if language != expected:
            found.append(f"translated {direction} {language}, but the {side} of the test set is in {expected}")
    found += [made for option, made in _NOT_IN_RECIPES.items() if given.get(option)]
    found += [
        f"translated with {key} = {given[key]}, but `run` has {plain or 'the limit of the model'}"
        for key, plain in _AS_BY_RUN.items()
        if given.get(key, plain) != plain
    ]
    if given.get("engine") == "ctranslate2":
        try:
            is_same_search = DecodingConfig.model_validate(made_with).is_that_of_ctranslate2
        except ValidationError:  # such as a key of another version
            is_same_search = False
        if not is_same_search:
            found.append("translated by CTranslate2, whose beam search is not nmtkit's")
    return [f"{output}: {doubt}" for doubt in found]


def _doubt_of_model(run: Run, sha256: str, wanted: DecodingConfig) -> str | None:
    """Return what is odd about the model of these weights; None for the average that the recipe states."""
    last = f"but the recipe averages the last {wanted.average_last}"
    if is_model_folder(run.averaged) and _sum_of(run.averaged) == sha256:
        names = [one["checkpoint"] for one in read_provenance(run.averaged).get("average_of") or []]
        checkpoints = [folder.name for folder in run.checkpoints()]
        # The run may have fewer checkpoints than average_last; then all of them have to be in the average.
        has_all = len(names) < wanted.average_last and set(checkpoints) <= set(names)
        if len(names) != wanted.average_last and not has_all:
            return f"made by an average of {counted(len(names), 'checkpoint')}, {last}"
        # Names have leading zeros, so they sort by step.
        left_out = [name for name in checkpoints if name > min(names) and name not in names]
        return f"made by an average without {left_out[-1]}, {last}" if left_out else None
    made_by = next((folder.name for folder in run.checkpoints() if _sum_of(folder) == sha256), None)
    if made_by is None:
        return "made by a model that is not in the run (any more)"
    if wanted.average_last > 1:
        return f"made by {made_by} alone, {last}"
    newest = run.checkpoints()[-1].name
    return None if made_by == newest else f"made by {made_by}, but the last checkpoint is {newest}"


def _sum_of(folder: Path) -> str | None:
    """Return the checksum of the weights as their folder states it."""
    try:
        return str(read_provenance(folder)["files"]["model.safetensors"])
    except NmtkitError:
        return None
