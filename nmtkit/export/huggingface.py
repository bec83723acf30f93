"""Conversion for transformers: Marian (post-norm) or Pegasus (pre-norm) models, and OpenAIGPT for language models.

Names of weights and position table are the same in the first two. The table has the same sines and cosines as nmtkit's,
but all sines come first. So the width axis of every weight is permuted to that order, which does not change any product
or norm. These two classes implement exactly the paper's Transformer, so variations of Table 3 other than sizes are
refused. The tokenizer is Marian's in both cases. openai_gpt.py has the names of OpenAIGPT.
"""

import copy
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from nmtkit.config.schema import DecodingConfig
from nmtkit.decoding.lengths import MAX_SOURCE_TOKENS, longest_translation
from nmtkit.errors import ModelError
from nmtkit.export.ctranslate2 import unsupported
from nmtkit.export.openai_gpt import UNKNOWN_PIECE, their_rows, their_weights_of_gpt
from nmtkit.files import write_json
from nmtkit.model_folder import LoadedModel
from nmtkit.text.tokenizer import BOS, EOS, PAD, SPECIAL_PIECES, UNK

if TYPE_CHECKING:
    from transformers import MarianMTModel, MarianTokenizer, PegasusForConditionalGeneration

    Model: TypeAlias = MarianMTModel | PegasusForConditionalGeneration

MAX_LENGTH = 512
"""Maximum length in generation_config.json, which has no limit relative to the source length."""

_IDS: dict[str, Any] = {
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "decoder_start_token_id": BOS,
    "forced_eos_token_id": EOS,
}
HOSTILE_LINES = (
    "naïve cafe\u0301 Straße ĳ ﬁ Ａ",
    "a\u00a0b\u3000c\u2009d",
    "\u200bzero\u200dwidth\ufeff \u202eright\u202c",
    "x\u2028y\u0085z\x0b\x0c\x07\x1b[0m",
    "مرحبا שלום 你好 😀👩‍👩‍👧 ",
    "<b>&amp; &lt;s&gt; <s> [x] {y} @-@ @@ | \\n",
    "....!!!???,,,'''\"\"\"``''",
    "1,000.50 € 10% -- – — …",
    "A" * 300,
    "\ufdd0 \U0010ffff \ue000",
)
"""Lines for which nmtkit's and Marian's tokenizers must agree, in addition to the sample."""


def check_installed() -> None:
    """Raise ModelError if transformers is not installed."""
    if find_spec("transformers") is None:
        raise ModelError("transformers is not installed; run `pip install 'nmtkit[huggingface]'`")


def check(loaded: LoadedModel) -> None:
    """Raise ModelError with a list of everything in the model that neither class supports."""
    config, settings = loaded.model.config, loaded.tokenizer.settings
    if nowhere := unsupported(config):
        raise ModelError(f"no transformers model class supports {nowhere}; translate with nmtkit")
    missing = []
    if config.positions != "sinusoidal":
        missing.append(f'positions = "{config.positions}"')
    if config.share_embeddings != "all":
        missing.append(f'share_embeddings = "{config.share_embeddings}"')
    width = config.d_model / config.num_heads
    missing += [
        f"{key} = {value} where d_model / num_heads = {width:g}"
        for key, value in (("d_k", config.key_width), ("d_v", config.value_width))
        if value != width
    ]
    if settings["subwords"] not in ("bpe", "unigram"):
        missing.append(f'subwords = "{settings["subwords"]}"')
    if settings.get("source_prefixes"):
        missing.append(f"source_prefix = {', '.join(settings['source_prefixes'])}")
    if settings.get("target_tags"):
        missing.append(f"several target languages ({', '.join(settings['target_tags'])})")
    if missing:
        raise ModelError(f"no transformers model class supports {', '.join(missing)}; choose --format ctranslate2")


def their_weights(weights: dict[str, Tensor], d_model: int) -> dict[str, Tensor]:
    """Return the weights with the names of Marian and Pegasus, with the width axis as in their position table."""
    order = torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])
    shared = weights["embeddings.shared"][:, order]
    names = ("model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head")
    converted = {f"{name}.weight": shared for name in names}
    for name, tensor in weights.items():
        if name.startswith("embeddings."):
            continue
        if name.startswith(("encoder_norm.", "decoder_norm.")):
            converted[f"model.{name.replace('_norm', '.layer_norm')}"] = tensor[order]
            continue
        side, number, kind, part, *_, tensor_kind = name.split(".")  # encoder, 0, self_attention, query, weight
        if part in ("query", "key", "value", "inner"):  # the width is the input
            tensor = tensor[:, order] if tensor_kind == "weight" else tensor
        else:  # the width is the output: output, outer, a norm
            tensor = tensor[order]
        theirs = _NORMS[side][int(part)] if kind == "residuals" else _THEIR_NAMES[kind, part]
        converted[f"model.{side}.layers.{number}.{theirs}.{tensor_kind}"] = tensor
    return {name: tensor.clone() for name, tensor in converted.items()}


_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}
_THEIR_NAMES = {
    ("feed_forward", "inner"): "fc1",
    ("feed_forward", "outer"): "fc2",
    **{
        (ours, part): f"{theirs}.{name}"
        for ours, theirs in (("self_attention", "self_attn"), ("source_attention", "encoder_attn"))
        for part, name in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"), ("output", "out_proj"))
    },
}


def check_language_model(loaded: LoadedModel) -> None:
    """Raise ModelError with a list of everything in a language model that OpenAIGPT does not support."""
    config = loaded.model.config
    stated = [f'{key} = "{getattr(config, key)}"' for key, value in _OF_GPT.items() if getattr(config, key) != value]
    if config.embedding_scale:
        stated.append("embedding_scale = true")
    if config.share_embeddings == "none":
        stated.append('share_embeddings = "none"')
    if kinds := {config.attention_kind(number) for number in range(config.decoder_layers)} - {"full"}:
        stated.append(f"self_attention = {', '.join(sorted(kinds))}")
    width = config.d_model / config.num_heads
    stated += [f"{key} = {value}" for key, value in (("d_k", config.key_width), ("d_v", config.value_width))
               if value != width]  # fmt: skip
    if config.d_ff != 4 * config.d_model:
        stated.append(f"d_ff = {config.d_ff} where 4 x d_model = {4 * config.d_model}")
    if stated:
        raise ModelError(
            f"not exported: of language models, only the form of GPT can be converted, without {', '.join(stated)}; "
            "use this one with nmtkit"
        )


_OF_GPT = {"norm": "post", "positions": "learned"}
"""Settings of the language models that OpenAIGPT supports; both activations are."""


def write_language_model(folder: Path, loaded: LoadedModel) -> None:
    """Write weights and configuration into ``folder``; the tokenizer only where OpenAIGPT has one of its kind.

    Other tokenizers are written in nmtkit's format, into the folder tokenizer/, for `nmtkit import`.
    """
    from safetensors import SafetensorError
    from transformers import OpenAIGPTConfig, OpenAIGPTLMHeadModel, OpenAIGPTTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    config, rows = loaded.model.config, their_rows(loaded.tokenizer)
    model = OpenAIGPTLMHeadModel(
        OpenAIGPTConfig(
            vocab_size=len(rows),
            n_positions=config.max_positions,
            n_embd=config.d_model,
            n_layer=config.decoder_layers,
            n_head=config.num_heads,
            afn=config.activation,
            resid_pdrop=config.dropout,
            embd_pdrop=config.dropout,
            attn_pdrop=config.attention_dropout,
        )
    )
    model.transformer.load_state_dict(their_weights_of_gpt(loaded.model.state_dict(), config, rows))
    try:
        model.save_pretrained(folder)
    except SafetensorError as error:
        raise ModelError(f"{folder}: cannot be written ({error}); make room and run the same command again") from None
    subwords = loaded.tokenizer.gpt_bpe
    if subwords is None:
        loaded.tokenizer.save(folder / "tokenizer")
        return
    pieces = [UNKNOWN_PIECE, *(subwords.pieces[row] for row in rows[1:])]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    write_json(folder / "vocab.json", vocabulary)
    merges = "".join(f"{left} {right}\n" for left, right in subwords.merges)
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}", encoding="utf-8", newline="")
    tokenizer = OpenAIGPTTokenizer(vocab=vocabulary, merges=subwords.merges, model_max_length=config.max_positions)
    tokenizer.save_pretrained(str(folder))


@torch.inference_mode()
def largest_difference(folder: Path, loaded: LoadedModel, sequences: Sequence[list[int]]) -> float:
    """Return the largest difference of logits between nmtkit and transformers, which reads ``folder`` as a user does.

    Both compute in float64, so that rounding does not count.

    Args:
        sequences: nmtkit's ids.
    """
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, local_files_only=True).eval()
    ours, rows = copy.deepcopy(loaded.model).double(), their_rows(loaded.tokenizer)
    their_ids = dict(zip(rows, range(len(rows)), strict=True))
    largest = 0.0
    for ids in sequences:
        logits = ours(torch.tensor([[EOS]]), torch.tensor([1]), torch.tensor([ids]))[:, :, rows]
        other = theirs(torch.tensor([[their_ids[index] for index in ids]])).logits
        largest = max(largest, float((logits - other).abs().max()))
    return largest


def check_gpt_tokenizer(folder: Path, loaded: LoadedModel, lines: Sequence[str]) -> None:
    """Raise ModelError if the exported tokenizer gives other ids for a line than nmtkit's."""
    from transformers import AutoTokenizer

    theirs, rows = AutoTokenizer.from_pretrained(folder, local_files_only=True), their_rows(loaded.tokenizer)
    for line in (*lines, *HOSTILE_LINES):
        line = line.replace(UNKNOWN_PIECE, "")  # an entry of its own for transformers, text for nmtkit
        if [rows[index] for index in theirs(line).input_ids] != loaded.tokenizer.encode([line], "target")[0]:
            raise ModelError(f"not exported: the tokenizer of transformers cuts the line {line!r} differently")


def write(folder: Path, loaded: LoadedModel) -> None:
    """Write weights, configuration and tokenizer into ``folder``."""
    from safetensors import SafetensorError
    from transformers import GenerationConfig, MarianMTModel, PegasusForConditionalGeneration
    from transformers.utils import logging

    logging.disable_progress_bar()
    config, decoding = loaded.model.config, loaded.decoding
    kind = PegasusForConditionalGeneration if config.norm == "pre" else MarianMTModel
    model = kind(
        kind.config_class(
            vocab_size=loaded.tokenizer.vocab_size("target"),
            d_model=config.d_model,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            encoder_ffn_dim=config.d_ff,
            decoder_ffn_dim=config.d_ff,
            activation_function="relu",
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            activation_dropout=config.ffn_dropout,
            scale_embedding=True,
            max_position_embeddings=max(MAX_SOURCE_TOKENS, longest_translation(decoding, MAX_SOURCE_TOKENS)) + 1,
            **_IDS,
        )
    )
    result = model.load_state_dict(their_weights(loaded.model.state_dict(), config.d_model), strict=False)
    absent = [name for name in result.missing_keys if "embed_positions" not in name and name != "final_logits_bias"]
    assert not absent and not result.unexpected_keys, (absent, result.unexpected_keys)
    # transformers refuses to save a length penalty without a beam.
    penalty = {"length_penalty": 0.0 if decoding.length_penalty == "none" else decoding.alpha}
    model.generation_config = GenerationConfig(
        num_beams=decoding.beam,
        **(penalty if decoding.beam > 1 else {}),
        max_length=MAX_LENGTH,
        **_IDS,
        bad_words_ids=[[PAD], [BOS], [UNK]],
    )
    try:
        model.save_pretrained(folder)
    except SafetensorError as error:
        raise ModelError(f"{folder}: cannot be written ({error}); make room and run the same command again") from None
    _write_tokenizer(folder, loaded)


def _write_tokenizer(folder: Path, loaded: LoadedModel) -> None:
    """Write Marian's tokenizer: the subword model of each side, and the pieces in the order of their ids."""
    from transformers import MarianTokenizer

    tokenizer = loaded.tokenizer
    subwords = folder / "subwords"
    tokenizer.save(subwords)
    for side in ("source", "target"):
        joint = subwords / "joint.model"
        shutil.copyfile(joint if joint.is_file() else subwords / f"{side}.model", folder / f"{side}.spm")
    shutil.rmtree(subwords)
    pieces = tokenizer.entries("target")
    write_json(folder / "vocab.json", {piece: index for index, piece in enumerate(pieces)})
    MarianTokenizer(
        str(folder / "source.spm"),
        str(folder / "target.spm"),
        str(folder / "vocab.json"),
        source_lang=tokenizer.settings["source_language"],
        target_lang=tokenizer.settings["target_language"],
        unk_token=SPECIAL_PIECES[UNK],
        eos_token=SPECIAL_PIECES[EOS],
        pad_token=SPECIAL_PIECES[PAD],
        model_max_length=MAX_SOURCE_TOKENS + 1,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(str(folder))


def load(folder: Path) -> "tuple[Model, MarianTokenizer]":
    """Load the model and its tokenizer with transformers, as a user does."""
    from transformers import AutoModelForSeq2SeqLM, MarianTokenizer

    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model.eval(), MarianTokenizer.from_pretrained(folder, local_files_only=True)


def check_tokenizer(theirs: "MarianTokenizer", loaded: LoadedModel, lines: Sequence[str]) -> None:
    """Raise ModelError if the two tokenizers give different ids for a normalised line."""
    for line in map(loaded.tokenizer.normalize, (*lines, *HOSTILE_LINES)):
        ours = [*loaded.tokenizer.encode([line], "source")[0], EOS]
        ids = list(theirs(line).input_ids)
        if ids != ours:
            index = next(i for i in range(max(len(ours), len(ids))) if ours[i : i + 1] != ids[i : i + 1])
            raise ModelError(
                f"not exported: Marian's tokenizer cuts the line {line!r} differently, first at token {index + 1}: "
                f"nmtkit has {ours[index : index + 1]}, Marian {ids[index : index + 1]}"
            )


@torch.inference_mode()
def search(model: "Model", sources: Sequence[list[int]], decoding: DecodingConfig) -> list[list[int]]:
    """Return the ids of translations by transformers, with nmtkit's length limits."""
    by_length: dict[int, list[int]] = {}
    for index, ids in enumerate(sources):
        by_length.setdefault(len(ids), []).append(index)
    found: dict[int, list[int]] = {}
    for length, group in by_length.items():
        batch = torch.tensor([[*sources[index], EOS] for index in group])
        outputs = model.generate(
            input_ids=batch,
            attention_mask=torch.ones_like(batch),
            num_beams=decoding.beam,
            max_length=longest_translation(decoding, length) + 2,  # with begin and end symbol
        )
        for index, output in zip(group, outputs.tolist(), strict=True):
            ids = output[1:]
            found[index] = ids[: ids.index(EOS)] if EOS in ids else ids
    return [found[index] for index in range(len(sources))]
