"""The first GPT in the layouts of transformers and of OpenAI, as a decoder-only language model of nmtkit.

    config.json, model.safetensors          | --names of transformers--> our_weights --> model folder
    params_shapes.json, params_0..9.npy     |
    vocab.json, merges.txt or other names       --> a tokenizer with subwords = "gpt-bpe"

Both have tied embeddings, learned positions, post-norm layers without a norm after the last, one matrix for queries,
keys and values, and weights as [inputs, outputs]. Source: Radford et al. 2018, "Improving Language Understanding by
Generative Pre-Training", with github.com/openai/finetune-transformer-lm. Pre-norm models are written as GPT-2, with its
names of the embeddings and its norm after the last layer.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmtkit.config.data_schema import LANGUAGE_MODEL
from nmtkit.config.decoding_schema import DecodingConfig, TrainingLengths
from nmtkit.config.model_schema import ModelConfig
from nmtkit.console import log
from nmtkit.errors import ModelError
from nmtkit.export.weight_files import ImportedModel, checked, pop_tensor, positive_count, read_weights
from nmtkit.files import content_of
from nmtkit.json_toml import read_json
from nmtkit.text.new_tokenizers import gpt_tokenizer
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import SPECIAL_PIECES, UNK

UNKNOWN_PIECE = "<unk>"
RELEASED_FILES = tuple(f"params_{number}.npy" for number in range(10))
"""One flat array, cut into ten."""
_HEAD_WIDTH = 64
"""Width of an attention head in the released model; its files do not state the number of heads."""
_HEADS = ("multiple_choice_head.", "score.")
"""Beginnings of the names of classification heads in transformers."""
_LAYERS = {
    "attn.c_proj": "self_attention.output", "mlp.c_fc": "feed_forward.inner", "mlp.c_proj": "feed_forward.outer",
    "ln_1": "residuals.0.norm", "ln_2": "residuals.1.norm",
}  # fmt: skip
"""Their names of parts of a layer, and nmtkit's, where only the order of inputs and outputs may differ."""
_JOINED = ("query", "key", "value")

Shape = tuple[int, ...]


def read(folder: Path, stated: dict[str, Any] | None, language: str | None) -> ImportedModel:
    """Return the model in a folder, with nmtkit's names and vocabulary.

    The special entries of nmtkit's vocabulary come first, where GPT has only <unk>. The rows of <pad>, <s> and </s> are
    copies of that of <unk>, which is hardly ever a target in training: their probabilities are as small.

    Args:
        stated: content of config.json of a folder of transformers; None for OpenAI's files.
        language: language code of the model's text; None: English.

    Raises:
        ModelError: the folder is no GPT, is damaged, or its files contradict each other.
        DataError: a file cannot be read.
    """
    config, theirs = _read_released(folder) if stated is None else _read_transformers(folder, stated)
    tokenizer, rows = _read_tokenizer(folder, language, theirs["tokens_embed.weight"].size(0))
    lengths = TrainingLengths(longest_source=config.max_positions, target_ratio=1.0, multi_sentence_share=0.0)
    weights = our_weights(theirs, config, rows)
    return ImportedModel(weights, config, tokenizer, DecodingConfig(average_last=1), lengths)


def their_rows(tokenizer: Tokenizer) -> list[int]:
    """Return nmtkit's id of each of their entries: <unk> and the pieces of text, or all ids of another tokenizer."""
    ids = range(tokenizer.vocab_size("target"))
    return [UNK, *ids[len(SPECIAL_PIECES) :]] if tokenizer.gpt_bpe is not None else list(ids)


def our_weights(theirs: Mapping[str, Tensor], config: ModelConfig, rows: Sequence[int]) -> dict[str, Tensor]:
    """Return the weights with nmtkit's names; ``rows``: their id of each entry of nmtkit's vocabulary."""
    ours = {
        "embeddings.shared": theirs["tokens_embed.weight"][torch.tensor(rows)],
        "positions.target": theirs["positions_embed.weight"],
    }
    for number in range(config.decoder_layers):
        layer, other = f"decoder.{number}", f"h.{number}"
        for kind in ("weight", "bias"):
            for their, our in _LAYERS.items():  # t() leaves tensors of one dimension as they are
                ours[f"{layer}.{our}.{kind}"] = theirs[f"{other}.{their}.{kind}"].t()
            joined = theirs[f"{other}.attn.c_attn.{kind}"].t().chunk(3)
            ours |= {f"{layer}.self_attention.{our}.{kind}": part for our, part in zip(_JOINED, joined, strict=True)}
    return ours


def their_weights_of_gpt(ours: Mapping[str, Tensor], config: ModelConfig, rows: Sequence[int]) -> dict[str, Tensor]:
    """Return the weights with the names of transformers, in the order of OpenAI's files; ``rows`` as `their_rows`."""
    theirs = {
        "positions_embed.weight": ours["positions.target"],
        "tokens_embed.weight": ours["embeddings.shared"][torch.tensor(rows)],
    }
    for number in range(config.decoder_layers):
        layer, other = f"decoder.{number}", f"h.{number}"
        for kind in ("weight", "bias"):
            joined = torch.cat([ours[f"{layer}.self_attention.{part}.{kind}"] for part in _JOINED])
            theirs[f"{other}.attn.c_attn.{kind}"] = joined.t()
            for their, our in _LAYERS.items():
                theirs[f"{other}.{their}.{kind}"] = ours[f"{layer}.{our}.{kind}"].t()
    named = {name: theirs[name].contiguous() for name in _shapes(config, len(rows))}
    if config.norm == "pre":
        named["wpe.weight"], named["wte.weight"] = named.pop("positions_embed.weight"), named.pop("tokens_embed.weight")
        named |= {f"ln_f.{kind}": ours[f"decoder_norm.{kind}"] for kind in ("weight", "bias")}
    return named


def _shapes(config: ModelConfig, vocab_size: int) -> dict[str, Shape]:
    """Return the shapes of all weights by their names in transformers, in the order of OpenAI's files."""
    width, inner = config.d_model, config.d_ff
    shapes: dict[str, Shape] = {
        "positions_embed.weight": (config.max_positions, width),
        "tokens_embed.weight": (vocab_size, width),
    }
    for number in range(config.decoder_layers):
        for name, sizes in (
            ("attn.c_attn", (width, 3 * width)), ("attn.c_proj", (width, width)), ("ln_1", (width,)),
            ("mlp.c_fc", (width, inner)), ("mlp.c_proj", (inner, width)), ("ln_2", (width,)),
        ):  # fmt: skip
            shapes |= {f"h.{number}.{name}.weight": sizes, f"h.{number}.{name}.bias": sizes[-1:]}
    return shapes


def _config(path: Path, layers: int, width: int, heads: int, positions: int, **changes: Any) -> ModelConfig:
    values = {
        "architecture": "decoder", "decoder_layers": layers, "d_model": width, "d_ff": 4 * width, "num_heads": heads,
        "max_positions": positions, "positions": "learned", "norm": "post", "activation": "gelu",
        "embedding_scale": False, "initialization": "normal", "dropout": 0.1, "attention_dropout": 0.1, **changes,
    }  # fmt: skip
    return checked(ModelConfig, values, path, "no sizes of a GPT")


def _read_transformers(folder: Path, stated: dict[str, Any]) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return settings and float32 weights of a folder of transformers; names are those of OpenAIGPTModel."""
    path = folder / "config.json"
    names = ("vocab_size", "n_layer", "n_embd", "n_head", "n_positions")
    vocab_size, *sizes = [positive_count(path, stated, name) for name in names]
    if (activation := stated.get("afn", "gelu")) not in ("gelu", "relu"):
        raise ModelError(f"{path}: afn is {activation!r}; only gelu and relu can be imported")
    # That of torch.nn.LayerNorm, which nmtkit does not change.
    if (epsilon := stated.get("layer_norm_epsilon", 1e-5)) != 1e-5:
        raise ModelError(f"{path}: layer_norm_epsilon is {epsilon!r}; only 1e-05 can be imported")
    config = _config(
        path, *sizes, activation=activation, dropout=stated.get("resid_pdrop", 0.1),
        attention_dropout=stated.get("attn_pdrop", 0.1),
    )  # fmt: skip
    file, tensors = read_weights(folder)
    found = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    tied = found.pop("lm_head.weight", None)  # some classes store the matrix under this name only
    if tied is not None and not torch.equal(found.setdefault("tokens_embed.weight", tied), tied):
        raise ModelError(f"{file}: lm_head.weight is not equal to tokens_embed.weight; only tied ones can be imported")
    expected = _shapes(config, vocab_size)
    heads = [name for name in found if name.startswith(_HEADS)]
    if heads:
        log.warning("%s: left out, as a language model has no classification head: %s", file, ", ".join(heads))
    for name in sorted(found):
        is_constant = name.endswith(".attn.bias") or name == "position_ids"  # the causal mask of older versions
        if name not in expected and name not in heads and not is_constant:
            raise ModelError(f"{file}: holds {name}, which no GPT has")
    return config, {name: pop_tensor(file, found, name, shape) for name, shape in expected.items()}


def _read_released(folder: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return the settings and the float32 weights of OpenAI's files, by the names of transformers."""
    path = folder / "params_shapes.json"
    stated = read_json(path, [[int]])
    # OpenAI's projections are convolutions of width 1, with weights [1, inputs, outputs].
    shapes = [tuple(shape[1:] if len(shape) == 3 and shape[0] == 1 else shape) for shape in stated]
    layers, rest = divmod(len(shapes) - 2, 12)
    if layers < 1 or rest or len(shapes[0]) != 2 or len(shapes[1]) != 2:
        raise ModelError(f"{path}: not the shapes of a GPT: positions, embeddings and 12 tensors per layer")
    (positions, width), (vocab_size, _) = shapes[0], shapes[1]
    if not width or width % _HEAD_WIDTH:
        raise ModelError(f"{path}: the width of the embeddings is {width}, which is not a multiple of {_HEAD_WIDTH}")
    config = _config(path, layers, width, width // _HEAD_WIDTH, positions)
    expected = _shapes(config, vocab_size)
    for number, (shape, (name, size)) in enumerate(zip(shapes, expected.items(), strict=True), start=1):
        if shape != size:
            raise ModelError(
                f"{path}: the shape of tensor {number} is {list(shape)}, and that of {name} in a GPT of this width is "
                f"{list(size)}"
            )
    sizes = [int(np.prod(shape)) for shape in shapes]
    flat = np.concatenate([_read_array(folder / name) for name in RELEASED_FILES])
    if len(flat) != sum(sizes):
        raise ModelError(
            f"{folder}: params_0.npy to params_9.npy hold {len(flat):,} numbers, and params_shapes.json needs "
            f"{sum(sizes):,}"
        )
    parts = np.split(flat, list(accumulate(sizes))[:-1])
    return config, {
        name: torch.from_numpy(part).reshape(shape) for part, (name, shape) in zip(parts, expected.items(), strict=True)
    }


def _read_array(path: Path) -> np.ndarray:
    """Return the numbers of an .npy file as float32; pickled objects are not read."""
    if not path.is_file():
        raise ModelError(f"{path}: no such file; the weights are params_0.npy to params_9.npy")
    try:
        with path.open("rb") as file:
            array = np.lib.format.read_array(file, allow_pickle=False)  # as np.load does, but reads no archives
    except (MemoryError, OSError):  # not the fault of the file
        raise
    except Exception as error:  # a header of unknown origin: NumPy may raise anything
        raise ModelError(f"{path}: damaged, or not an array of numbers ({error})") from None
    if array.ndim != 1 or array.dtype.kind != "f":
        raise ModelError(f"{path}: not a flat array of floating-point numbers")
    return array.astype(np.float32, copy=False)


def _read_tokenizer(folder: Path, language: str | None, vocab_size: int) -> tuple[Tokenizer, list[int]]:
    """Return the tokenizer of a folder, and their id of each of its entries; ``vocab_size``: rows of the embeddings."""
    if (folder / "tokenizer" / "tokenizer.json").is_file():  # nmtkit's own, in its export
        tokenizer = Tokenizer.load(folder / "tokenizer")
        path, ids = folder / "tokenizer", list(range(tokenizer.vocab_size("target")))
        if tokenizer.task_name != LANGUAGE_MODEL:
            raise ModelError(f"{path}: not the tokenizer of a language model")
        own = tokenizer.languages[1]
        if language not in (None, own):
            raise ModelError(f"{path}: its language is {own!r}, which --target-language cannot change; leave it out")
    else:
        path, vocabulary, merges = _read_subwords(folder)
        if sorted(vocabulary.values()) != list(range(len(vocabulary))) or UNKNOWN_PIECE not in vocabulary:
            raise ModelError(f"{path}: needs an entry {UNKNOWN_PIECE}, and each of the ids from 0 on once")
        unknown = vocabulary.pop(UNKNOWN_PIECE)
        pieces = sorted(vocabulary, key=vocabulary.__getitem__)
        tokenizer = gpt_tokenizer(pieces, merges, language or "en")
        ids = [*[unknown] * len(SPECIAL_PIECES), *(vocabulary[piece] for piece in pieces)]
    if max(ids) + 1 != vocab_size:
        raise ModelError(
            f"{path}: {max(ids) + 1:,} entries, but the embeddings have {vocab_size:,} rows; entries that were added "
            "after pre-training cannot be imported"
        )
    return tokenizer, ids


def _read_subwords(folder: Path) -> tuple[Path, dict[str, int], list[tuple[str, ...]]]:
    """Return the file of the vocabulary, the id of each piece, and the merges."""
    for vocabulary_name, merges_name in (("vocab.json", "merges.txt"), ("encoder_bpe_40000.json", "vocab_40000.bpe")):
        path, merges_path = folder / vocabulary_name, folder / merges_name
        if path.is_file():
            vocabulary = read_json(path, {str: int})
            try:
                lines = content_of(merges_path).decode("utf-8").split("\n")
            except UnicodeDecodeError:
                raise ModelError(f"{merges_path}: not UTF-8 text") from None
            first = int(lines[0].startswith("#version"))
            merges = [tuple(line.split(" ")) for line in lines[first:]]
            if merges and merges[-1] == ("",):  # after the last line end
                merges.pop()
            break
    else:
        path = merges_path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelError(
                f"{folder}: no vocabulary; it needs vocab.json and merges.txt, or tokenizer.json, or "
                "encoder_bpe_40000.json and vocab_40000.bpe"
            )
        shape = {"vocab": {str: int}, "end_of_word_suffix?": str, "merges": [list | str]}
        model = read_json(path, {"model": shape})["model"]
        if model.get("end_of_word_suffix") != "</w>":
            raise ModelError(f"{path}: not the byte-pair encoding of a GPT, whose words end in </w>")
        vocabulary, first = model["vocab"], 0
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
        merges = [tuple(map(str, pair)) for pair in pairs]
    counted_as = "merge" if merges_path == path else "line"
    for number, merge in enumerate(merges, start=first + 1):
        if len(merge) != 2 or not vocabulary.keys() >= {*merge, "".join(merge)}:
            raise ModelError(
                f"{merges_path}, {counted_as} {number}: {' '.join(merge)[:80]!r} is not two pieces that make up one, "
                f"all of them in {path.name}"
            )
    return path, vocabulary, merges
