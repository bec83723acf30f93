"""The initial weights of a run that starts from another model (`training.init`).

model of the same sizes           all its weights
entries added to the vocabulary   the rows of the others; the new rows keep their initial values
training.init_vocab = "mapped"    any vocabulary: see `MappedVocabulary`
head for other labels, or none    keeps its initial values
training.init_layers = n          embeddings, positions and the first n layers of each stack
decoder-only -> encoder-decoder   embeddings and decoder; encoder and attention to the source keep their initial values
-> target_positions = "restarted" all but the vectors of the sides, if the model has "continued"
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtkit.config.corpus_entries import MANY_LANGUAGES
from nmtkit.config.data_schema import LANGUAGE_MODEL
from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.config.model_schema import ModelConfig
from nmtkit.config.schema import Recipe
from nmtkit.console import log
from nmtkit.errors import DataError, ModelError, NmtkitError
from nmtkit.model_folder import check_sum, read_description, read_provenance, read_tensors
from nmtkit.run import Run, find_model
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import Side
from nmtkit.training.mapped_vocabulary import MappedVocabulary

_OF_DECODER = (
    "decoder_layers", "d_model", "d_ff", "num_heads", "d_k", "d_v", "norm", "positions", "max_positions", "activation",
    "embedding_scale", "output_bias", "decoder_start",
)  # fmt: skip
"""Settings that a decoder-only model has in common with the decoder of an encoder-decoder."""


def check_initial_model(recipe: Recipe, run: Run) -> Path | None:
    """Return the folder of the model of training.init after a check of its sizes and subwords, before `prepare`.

    None where the recipe names none, training has begun, or the model is still to be trained.

    Raises:
        NmtkitError: see `initial_weights`.
    """
    if recipe.training.init is None or run.is_trained():
        return None
    try:
        folder = find_model(recipe.training.init)
    except (DataError, ModelError):
        return None
    _check_sizes(folder, ModelConfig.model_validate(read_description(folder)["model"]), recipe)
    _check_subwords(folder, recipe)
    return folder


def _check_subwords(folder: Path, recipe: Recipe) -> None:
    """Raise NmtkitError if the run will learn other subwords than those of the model; warn if that is likely."""
    data, own = recipe.data, Tokenizer.load(folder / "tokenizer")
    if data.tokenizer is not None or recipe.training.init_vocab == "mapped" or own.task_name != data.task_name:
        return
    advice = f'set data.tokenizer = "{recipe.training.init}", or training.init_vocab = "mapped" for subwords of its own'
    kind, sizes = own.settings["subwords"], own.settings["vocab_sizes"]
    # The sizes of other vocabularies depend on the text.
    has_size = data.subwords in ("bpe", "unigram", "wordpiece") and not data.has_labels
    if kind != data.subwords or (has_size and set(sizes.values()) != {data.vocab_size}):
        raise NmtkitError(
            f'training.init: {folder} has other subwords ("{kind}", {max(sizes.values())} entries) than this run would '
            f'learn ("{data.subwords}", {data.vocab_size} entries); {advice}'
        )
    trained = read_provenance(folder).get("recipe", {}).get("data", {}).get("train")
    if data.subwords != "none" and trained is not None and trained != recipe.model_dump(mode="json")["data"]["train"]:
        log.warning(
            "training.init: this run learns subwords of its own text, and the training will stop if they differ from "
            "those of %s; %s", folder, advice,
        )  # fmt: skip


def log_differences(folder: Path, recipe: Recipe) -> None:
    """Log where the initial model of a translation has other languages or another search than the recipe."""
    own, data = Tokenizer.load(folder / "tokenizer"), recipe.data
    if own.task_name != "translation" or data.task_name != "translation":
        return
    known = own.source_languages, own.target_languages
    knows = [
        all({code, "und", MANY_LANGUAGES} & {*codes} for code, codes in zip(each, known, strict=True))
        for each in data.directions
    ]
    if not any(knows):
        log.warning(
            "training.init: %s translates %s, and this recipe %s; name another model unless that is meant",
            folder, "-".join(own.languages), ", ".join(map("-".join, data.directions)),
        )  # fmt: skip
    given = DecodingConfig.model_validate(read_description(folder)["decoding"]).model_dump(exclude={"average_last"})
    wanted = recipe.decoding.model_dump()
    if different := [key for key in given if given[key] != wanted[key]]:
        log.info(
            "training.init: the search of %s has %s, that of this recipe %s; to compare their scores, state the same "
            "in [decoding]", folder, *(_settings({key: each[key] for key in different}) for each in (given, wanted)),
        )  # fmt: skip


def _settings(values: Mapping[str, Any]) -> str:
    """Return settings as in a recipe, on one line."""
    return ", ".join(f"no {key}" if value is None else f"{key} = {json.dumps(value)}" for key, value in values.items())


def initial_weights(
    folder: Path, recipe: Recipe, tokenizer: Tokenizer, initial: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the initial weights of a run, those of a model where it has them, and log what is not copied.

    Args:
        folder: model folder.
        tokenizer: that of the run.
        initial: all weights of the run's model, with their random initial values.

    Raises:
        ModelError: the model is damaged.
        NmtkitError: its sizes or its tokenizer do not fit the run, or it has fewer layers than training.init_layers, or
            training.init_vocab = "mapped" and it knows no piece of the run's vocabulary.
    """
    description = read_description(folder)
    given, layers = ModelConfig.model_validate(description["model"]), recipe.training.init_layers
    is_of_decoder = given.is_joined and not recipe.model.is_joined
    _check_sizes(folder, given, recipe)
    log_differences(folder, recipe)
    own, mapped = Tokenizer.load(folder / "tokenizer"), None
    # Rows of embeddings mean entries of the tokenizer, so with another file the weights would be wrong.
    if own.fingerprint() != description["tokenizer_sha256"]:
        raise ModelError(f"{folder}: the tokenizer is not the one the model was trained with")
    has_other_labels = own.fingerprint() != tokenizer.fingerprint()
    if recipe.training.init_vocab == "mapped":
        if given.has_actions or recipe.model.has_actions:
            raise NmtkitError('training.init_vocab = "mapped": a model of episodes has no subwords; leave it out')
        mapped = MappedVocabulary(folder, own, tokenizer)
        has_other_labels = (own.label_type, own.labels) != (tokenizer.label_type, tokenizer.labels)
    else:
        _check_tokenizer(folder, own, recipe, tokenizer)
    # These heads have one output, whatever the labels are.
    has_other_labels &= not (given.head == recipe.model.head and given.head in ("number", "choice"))
    check_sum(folder, read_provenance(folder))
    stored, weights, kept = read_tensors(folder / "model.safetensors"), dict[str, Tensor](), dict[str, int]()
    for name, values in initial.items():
        is_other_head = name.startswith("head.") and has_other_labels
        is_table = name.startswith(("embeddings.", "output_bias"))
        origin = None if is_other_head else _origin(name, stored, is_of_decoder)
        if origin is None or not _is_transferred(name, layers):
            weights[name], num_copied = values, 0
        elif origin not in stored:
            raise ModelError(f"{folder / 'model.safetensors'}: damaged (it has no {origin})")
        elif mapped is not None and is_table:
            weights[name] = mapped.rows(stored[origin], _side(origin, given), _side(name, recipe.model))
            num_copied = values.numel()
        else:
            weights[name] = stored[origin]
            if is_table:  # one of the two may have entries added at its end
                common = min(len(values), len(stored[origin]))
                weights[name] = torch.cat([stored[origin][:common].to(values.device), values[common:]])
            num_copied = min(stored[origin].numel(), values.numel())
        if num_copied < values.numel():
            part = name.partition(".")[0]
            kept[part] = kept.get(part, 0) + values.numel() - num_copied
    if kept:
        total = sum(values.numel() for values in initial.values())
        log.info(
            "training.init: %s of %s parameters are those of %s; initial values: %s",
            f"{total - sum(kept.values()):,}", f"{total:,}", folder,
            ", ".join(f"{part} {number:,}" for part, number in kept.items()),
        )  # fmt: skip
    return weights


def _is_transferred(name: str, layers: int | None) -> bool:
    """Return whether a parameter is copied with training.init_layers = ``layers``."""
    embeddings = ("embeddings.", "inputs.", "input_norm.", "positions.", "sides", "output_bias")
    if layers is None or name.startswith(embeddings):
        return True
    layer = re.match(r"(?:encoder|decoder)\.(\d+)\.", name)
    return layer is not None and int(layer[1]) < layers


def _origin(name: str, stored: Mapping[str, Tensor], is_of_decoder: bool) -> str | None:
    """Return the parameter of the model from which a parameter of the run is copied; None: it has none.

    Args:
        is_of_decoder: the model is decoder-only, and the run's model an encoder-decoder.
    """
    if name == "sides" or name.startswith("head."):
        return name if name in stored else None
    if not is_of_decoder:
        return name
    if name.startswith(("encoder", "positions.source", "embeddings.source")) or ".source_attention." in name:
        return None
    if name.startswith("embeddings.") and name not in stored:
        return "embeddings.shared"
    residual = re.fullmatch(r"(decoder\.\d+\.residuals\.)(\d)(\..*)", name)
    if residual is None:
        return name
    before, number, after = residual.groups()
    # A layer of a decoder-only model has no residual connection around an attention to the source, which is number 1.
    return {"0": f"{before}0{after}", "1": None, "2": f"{before}1{after}"}[number]


def _check_sizes(folder: Path, given: ModelConfig, recipe: Recipe) -> None:
    """Raise NmtkitError if the model's sizes differ from those of the run, or it has too few layers."""
    shape, wanted = _shape(given), _shape(recipe.model)
    layers = recipe.training.init_layers
    if given.is_joined and not recipe.model.is_joined:
        shape, wanted = ({key: each[key] for key in _OF_DECODER if key in each} for each in (shape, wanted))
        kind = "full" if recipe.model.attention_window is None else "window"
        kinds = {given.attention_kind(number) for number in range(given.decoder_layers)}
        if kinds != {kind}:
            message = f"has {' and '.join(sorted(kinds))} self-attention, and the decoder of this recipe {kind}"
            raise NmtkitError(f"training.init: {folder} {message}; name another model, or change attention_window")
        if given.share_embeddings == "none":  # which of its two matrices would a shared one be?
            shape["share_embeddings"], wanted["share_embeddings"] = "none", recipe.model.share_embeddings
    if given.is_joined and given.target_positions == "continued":  # `sides` begins at random
        shape.pop("target_positions", None)
    if layers is not None:
        wanted |= {key: shape[key] for key in shape if key.endswith("_layers")}
    different = {key: value for key, value in shape.items() if value != wanted.get(key)}
    if "architecture" in different:
        raise NmtkitError(
            f'training.init: {folder} has architecture = "{given.architecture}", and this recipe '
            f'"{recipe.model.architecture}"; name another model'
        )
    if different:
        raise NmtkitError(f"training.init: {folder} has a different shape; state in [model]: {_settings(different)}")
    few = dict[str, int]()
    for owner, config in ((str(folder), given), ("the run", recipe.model)):
        for key in ["decoder_layers"] if given.is_joined else ["encoder_layers", "decoder_layers"]:
            number = getattr(config, key)
            if layers is not None and number < layers:
                few[f"{owner} has model.{key} = {number}"] = number
    if few:
        raise NmtkitError(
            f"training.init_layers = {layers}, but {' and '.join(few)}; choose at most {min(few.values())}"
        )


def _shape(config: ModelConfig) -> dict[str, Any]:
    """Return the settings on which the shapes of the weights depend, without the head."""
    free = ("initialization", "source_attention", "local_block", "local_previous_block", "attention_window", "head")
    shape = {
        key: value for key, value in config.model_dump().items() if not key.endswith("dropout") and key not in free
    }
    shape |= {"d_k": config.key_width, "d_v": config.value_width}
    if config.positions != "learned":
        shape.pop("max_positions")
    if config.is_joined:
        shape.pop("encoder_layers")
    if "compressed" not in config.self_attention:
        shape.pop("compression")
    return shape


def _side(table: str, config: ModelConfig) -> Side:
    """Return the side whose vocabulary the rows of embeddings or output bias belong to."""
    return "source" if table == "embeddings.source" or config.head != "none" else "target"


def _check_tokenizer(folder: Path, own: Tokenizer, recipe: Recipe, tokenizer: Tokenizer) -> None:
    """Raise NmtkitError unless the ids of the run mean the same in the model.

    They do with the same tokenizer, with entries added to it, and where a language model has the subwords of the run.
    """
    if own.fingerprint() == tokenizer.fingerprint() or own.base_fingerprint == tokenizer.base_fingerprint:
        return
    differ = "have different tokenizers"
    if own.task_name == tokenizer.task_name and own.languages != tokenizer.languages:
        differ += f" (of {'-'.join(own.languages)} and {'-'.join(tokenizer.languages)})"
    advice = (
        f'set data.tokenizer = "{recipe.training.init}" and prepare the run again, or keep the new subwords with '
        'training.init_vocab = "mapped"'
    )
    if recipe.model.has_actions:
        differ = "have other returns, states or actions"
        advice = "take the same episodes and the same settings of [data] as its run, or leave init out"
    if own.task_name == LANGUAGE_MODEL and recipe.data.task_name == "translation":
        if own.vocabulary_sha256 == tokenizer.vocabulary_sha256:
            return
        advice = (
            "prepare the language model with the run of the translation as its data.tokenizer, and train it, or set "
            'training.init_vocab = "mapped"'
        )
    raise NmtkitError(f"training.init: {folder} and the data of this run {differ}; {advice}")
