"""Translation models of transformers (classes Marian, Pegasus and M2M100) as models of nmtkit.

    config.json              --> [model]: M2M100 has positions = "fairseq" and decoder_start = "eos"
    weights                  --their_name, width_axis--> nmtkit's names and order of the width
    vocabulary files         --foreign_vocabulary.py--> a tokenizer with subwords = "imported"
    generation_config.json   --> [decoding]

nmtkit's special entries come first. Marian has no begin symbol: its decoder reads <pad> first, whose row becomes that
of <s>. The row of nmtkit's <pad> is made up then, and its output bias leaves it no probability.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtkit.config.decoding_schema import DecodingConfig, TrainingLengths
from nmtkit.config.model_schema import ModelConfig
from nmtkit.console import log
from nmtkit.errors import ModelError
from nmtkit.export.foreign_vocabulary import read_vocabulary
from nmtkit.export.weight_files import ImportedModel, checked, pop_tensor, positive_count, read_weights
from nmtkit.json_toml import read_json
from nmtkit.model.transformer import Transformer, sinusoidal_positions
from nmtkit.text.new_tokenizers import imported_tokenizer
from nmtkit.text.vocabulary import BOS, EOS, PAD, SPECIAL_PIECES, UNK

KINDS = {"marian": "post", "pegasus": "pre", "m2m_100": "pre"}
"""Model types of transformers, and `ModelConfig.norm` of each."""
ACTIVATIONS = {"relu": "relu", "gelu": "gelu_new", "silu": "silu"}
"""Names in transformers of the values of `ModelConfig.activation`; "gelu" is another function there."""
_OTHER_ACTIVATIONS = {"swish": "silu", "gelu_pytorch_tanh": "gelu"}
_NO_PROBABILITY = -100.0
"""Output bias of a made-up entry: its probability disappears in rounding, also in float64."""
_MADE_UP = -1
_TARGET_RATIO = 2.0
"""`max_length_ratio` of imported models, whose files state a maximum length but none relative to the source."""
_NEUTRAL: dict[str, Any] = {
    "do_sample": False, "num_beam_groups": 1, "repetition_penalty": 1.0, "diversity_penalty": 0.0,
    "suppress_tokens": [], "begin_suppress_tokens": [], "sequence_bias": {}, "forced_decoder_ids": [],
    "min_new_tokens": 0, "encoder_no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0, "penalty_alpha": 0.0,
    "exponential_decay_length_penalty": None, "force_words_ids": None, "guidance_scale": 1.0, "stop_strings": None,
    "watermarking_config": None, "renormalize_logits": False,
}  # fmt: skip
"""Settings of generation_config.json that nmtkit has not, with the value that means that they are off."""

# ---- names of weights

_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}
_LAYERS = {
    ("feed_forward", "inner"): "fc1",
    ("feed_forward", "outer"): "fc2",
    **{
        (ours, part): f"{theirs}.{name}"
        for ours, theirs in (("self_attention", "self_attn"), ("source_attention", "encoder_attn"))
        for part, name in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"), ("output", "out_proj"))
    },
}
SHARED = ("model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head")
"""Their names of the one embedding matrix."""


def their_name(name: str) -> str:
    """Return the name in transformers of a weight of nmtkit."""
    if name.startswith("embeddings."):
        return f"{SHARED[0]}.weight"
    if name == "output_bias":
        return "final_logits_bias"
    if name.startswith(("encoder_norm.", "decoder_norm.")):
        return f"model.{name.replace('_norm', '.layer_norm')}"
    side, number, kind, part, *_, tensor_kind = name.split(".")  # encoder, 0, self_attention, query, weight
    theirs = _NORMS[side][int(part)] if kind == "residuals" else _LAYERS[kind, part]
    return f"model.{side}.layers.{number}.{theirs}.{tensor_kind}"


def width_axis(name: str) -> int | None:
    """Return the axis of a weight of nmtkit that is the width of the model; None if none is."""
    if name == "output_bias":
        return None
    if name.startswith("embeddings."):
        return 1
    if name.split(".")[-2] in ("query", "key", "value", "inner"):  # the width is the input
        return 1 if name.endswith("weight") else None
    return 0  # the output of a linear layer, or a norm


def width_order(config: ModelConfig) -> Tensor:
    """Return the indices by which the width is permuted for transformers.

    Marian and Pegasus have the sines and cosines of nmtkit, but all sines come first. A permutation of the width axis
    of every weight does not change any product or norm.
    """
    width = torch.arange(config.d_model)
    return width if config.positions == "fairseq" else torch.cat([width[0::2], width[1::2]])


# ---- import


def read(
    folder: Path, stated: dict[str, Any], source_language: str | None, target_language: str | None
) -> ImportedModel:
    """Return the model in a folder of transformers; arguments as of `import_model`, and the content of config.json.

    Raises:
        ModelError: the folder is damaged, or its files contradict each other or have what nmtkit lacks.
        DataError: a file cannot be read.
    """
    path = folder / "config.json"
    config, vocabulary = _config(path, stated), read_vocabulary(folder, stated)
    rows = _rows(path, stated, vocabulary.entries)
    weights = _our_weights(*read_weights(folder), config, rows)
    config = config.model_copy(update={"output_bias": "output_bias" in weights})
    entries, reserved = list(SPECIAL_PIECES), set()
    for index, row in list(enumerate(rows))[len(entries) :]:
        is_unused = vocabulary.entries[row] in SPECIAL_PIECES  # such as a begin symbol with which nothing begins
        entries.append(f"unused{row}" if is_unused else vocabulary.entries[row])
        if is_unused or row in vocabulary.reserved:
            reserved.add(index)
    given = {"source_language": source_language, "target_language": target_language}
    settings = vocabulary.settings | {key: code for key, code in given.items() if code is not None}
    tokenizer = imported_tokenizer(entries, reserved, vocabulary.models, settings)
    if source_language or target_language:
        # Raises for one that the model does not know.
        tokenizer.in_direction(
            target_language or tokenizer.target_languages[0], source_language or tokenizer.source_languages[0]
        )
    # Translation models learn from sentences, and none longer than the positions that transformers has, one of which is
    # that of the end symbol.
    longest = positive_count(path, stated, "max_position_embeddings") - 1
    values = {"longest_source": longest, "target_ratio": 1.0, "multi_sentence_share": 0.0}
    lengths = checked(TrainingLengths, values, path)
    decoding = _decoding(folder, 1 if config.decoder_start == "eos" else 0, [rows[i] for i in tokenizer.suppressed_ids])
    return ImportedModel(weights, config, tokenizer, decoding, lengths)


def _config(path: Path, stated: dict[str, Any]) -> ModelConfig:
    kind = str(stated["model_type"])
    for name in ("attention_heads", "ffn_dim"):
        sizes = [positive_count(path, stated, f"{side}_{name}") for side in ("encoder", "decoder")]
        if sizes[0] != sizes[1]:
            raise ModelError(f"{path}: encoder_{name} is {sizes[0]} and decoder_{name} {sizes[1]}; they must be equal")
    own_names = {theirs: ours for ours, theirs in ACTIVATIONS.items()} | _OTHER_ACTIVATIONS
    activation = str(stated.get("activation_function"))
    if activation not in own_names:
        raise ModelError(f"{path}: activation_function is {activation!r}; only {', '.join(own_names)} can be imported")
    refused: dict[str, Any] = {"tie_word_embeddings": False, "share_encoder_decoder_embeddings": False}
    if kind == "marian":
        refused |= {"normalize_before": True, "normalize_embedding": True}
    if fault := next((key for key, value in refused.items() if stated.get(key) is value), None):
        raise ModelError(f"{path}: {fault} = {str(refused[fault]).lower()}; such models cannot be imported")
    is_m2m100 = kind == "m2m_100"
    values = {
        "encoder_layers": positive_count(path, stated, "encoder_layers"),
        "decoder_layers": positive_count(path, stated, "decoder_layers"),
        "d_model": positive_count(path, stated, "d_model"),
        "d_ff": stated["encoder_ffn_dim"],
        "num_heads": stated["encoder_attention_heads"],
        "norm": KINDS[kind],
        "positions": "fairseq" if is_m2m100 else "sinusoidal",
        "decoder_start": "eos" if is_m2m100 else "bos",
        "activation": own_names[activation],
        # Missing keys have the defaults of their classes in transformers.
        "embedding_scale": bool(stated.get("scale_embedding", is_m2m100)),
        "dropout": stated.get("dropout", 0.1),
        "attention_dropout": stated.get("attention_dropout", 0.1 if is_m2m100 else 0.0),
        "ffn_dropout": stated.get("activation_dropout", 0.0),
    }
    return checked(ModelConfig, values, path)


def _rows(path: Path, stated: dict[str, Any], entries: list[str]) -> list[int]:
    """Return their id of each of nmtkit's entries, _MADE_UP for one that they have not."""
    pad, unknown, end = (entries.index(SPECIAL_PIECES[index]) for index in (PAD, UNK, EOS))
    start, is_m2m100 = stated.get("decoder_start_token_id"), stated["model_type"] == "m2m_100"
    for key, expected in (("pad_token_id", pad), ("eos_token_id", end)):
        if (value := stated.get(key)) != expected:
            raise ModelError(f"{path}: {key} is {value!r}, but {entries[expected]} is {expected} in the vocabulary")
    # M2M100 starts with its end symbol; Marian and Pegasus do not.
    if type(start) is not int or not 0 <= start < len(entries) or (start == end) != is_m2m100 or start == unknown:
        raise ModelError(f"{path}: decoder_start_token_id is {start!r}, with which no model of this type starts")
    begin = entries.index(SPECIAL_PIECES[BOS]) if is_m2m100 else start
    first = [_MADE_UP if begin == pad else pad, unknown, begin, end]
    return [*first, *(index for index in range(len(entries)) if index not in first)]


def _our_weights(file: Path, theirs: dict[str, Tensor], config: ModelConfig, rows: list[int]) -> dict[str, Tensor]:
    """Return the float32 weights with nmtkit's names, and with an output bias if any entry has one."""
    vocab_size = len(set(rows) - {_MADE_UP})
    with torch.device("meta"):  # shapes without memory
        model = Transformer(config.model_copy(update={"output_bias": True}), vocab_size, vocab_size)
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    tables = [found for name in SHARED if (found := theirs.pop(f"{name}.weight", None)) is not None]
    if not tables or any(not torch.equal(table, tables[0]) for table in tables):
        raise ModelError(f"{file}: not one matrix for source, target and output (see {SHARED[0]}.weight)")
    theirs[their_name("embeddings.shared")] = tables[0]
    # M2M100 has no output bias; zeros are dropped below.
    theirs.setdefault("final_logits_bias", torch.zeros(1, vocab_size))
    theirs["final_logits_bias"] = theirs["final_logits_bias"].flatten()
    back = torch.argsort(width_order(config))  # the inverse permutation
    weights: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        tensor, axis = pop_tensor(file, theirs, their_name(name), shape), width_axis(name)
        weights[name] = tensor if axis is None else tensor.index_select(axis, back)
    _check_rest(file, theirs, config)
    is_made_up = torch.tensor([row == _MADE_UP for row in rows])
    for name, value in (("embeddings.shared", 0.0), ("output_bias", _NO_PROBABILITY)):
        weights[name] = weights[name][torch.tensor(rows)]
        weights[name][is_made_up] = value
    if not weights["output_bias"].any():
        del weights["output_bias"]
    return weights


def _check_rest(file: Path, rest: dict[str, Tensor], config: ModelConfig) -> None:
    """Raise ModelError for weights that no such model has; tables of positions must be those of the class."""
    for name, tensor in rest.items():
        if ".embed_positions." not in name:
            raise ModelError(f"{file}: holds {name}, which no such model has")
        if (
            tensor.dim() != 2 or tensor.size(1) != config.d_model
        ):  # a table without columns may state any number of rows
            raise ModelError(f"{file}: {name} is of shape {list(tensor.shape)}, and not a table {config.d_model} wide")
        if config.positions == "sinusoidal":
            expected = sinusoidal_positions(tensor.size(0), config.d_model)[:, width_order(config)]
            # The file may have been in bfloat16, which rounds numbers below 1 by up to 2e-3.
            if tensor.shape != expected.shape or not torch.allclose(tensor.double(), expected, atol=5e-3):
                raise ModelError(f"{file}: {name} does not hold sinusoids; learned positions cannot be imported")


def _decoding(folder: Path, num_forced: int, suppressed: Sequence[int]) -> DecodingConfig:
    """Return the search settings of generation_config.json, or of config.json in older folders.

    Each translation begins with ``num_forced`` tokens that are no part of it. nmtkit never generates those of the ids
    ``suppressed``, which are theirs.
    """
    path = folder / "generation_config.json"
    path = path if path.is_file() else folder / "config.json"
    counts = dict.fromkeys(("num_beams", "max_length", "max_new_tokens", "min_length", "no_repeat_ngram_size"), 0)
    shape = {**{f"{key}?": int for key in counts}, "length_penalty?": float | int, "bad_words_ids?": list}
    search = counts | {key: value for key, value in read_json(path, shape).items() if value is not None}
    ignored = [key for key, off in _NEUTRAL.items() if search.get(key, off) != off]
    if any(words not in [[index] for index in suppressed] for words in search.get("bad_words_ids", [])):
        ignored.append("bad_words_ids")
    if not num_forced and "forced_bos_token_id" in search:  # elsewhere it is the language, which `translate` chooses
        ignored.append("forced_bos_token_id")
    if ignored:
        log.warning("%s: nmtkit has no counterpart of %s; left out", path, ", ".join(ignored))
    # transformers counts forced tokens and the end symbol, and except in max_new_tokens the symbol at the beginning.
    most = search["max_new_tokens"] + 1 if search["max_new_tokens"] else search["max_length"]
    values = {
        "beam": max(1, search["num_beams"]),
        "length_penalty": "length",  # n^alpha, as in transformers
        "alpha": search.get("length_penalty", 1.0),
        "max_length_ratio": _TARGET_RATIO,
        "max_length": max(1, most - 2 - num_forced) if most else None,
        "min_length": max(0, search["min_length"] - 1 - num_forced),
        "no_repeat_ngram": search["no_repeat_ngram_size"],
        "average_last": 1,
    }
    return checked(DecodingConfig, values, path)
