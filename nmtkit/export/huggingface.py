"""Conversion for transformers: Marian (post-norm) or Pegasus (pre-norm) models; OpenAIGPT or GPT2 for language models.

Names of weights and position table are the same in the first two. The table has the same sines and cosines as nmtkit's,
but all sines come first. So the width axis of every weight is permuted to that order, which does not change any product
or norm. These two classes implement exactly the paper's Transformer, so variations of Table 3 other than sizes are
refused. The tokenizer is Marian's in both cases. openai_gpt.py has the names of language models.
"""

import copy
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.config.model_schema import ModelConfig
from nmtkit.console import progress
from nmtkit.decoding.lengths import longest_exported_source, longest_translation
from nmtkit.errors import ModelError
from nmtkit.export.ctranslate2 import unsupported
from nmtkit.export.foreign_vocabulary import LANGUAGES
from nmtkit.export.openai_gpt import UNKNOWN_PIECE, their_rows, their_weights_of_gpt
from nmtkit.export.seq2seq import ACTIVATIONS, SHARED, their_name, width_axis, width_order
from nmtkit.json_toml import write_json
from nmtkit.model_folder import LoadedModel
from nmtkit.tasks.known import task_of
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import BOS, EOS, PAD, SIDES, SPECIAL_PIECES, UNK

if TYPE_CHECKING:
    from transformers import MarianMTModel, MarianTokenizer, PegasusForConditionalGeneration

    Model: TypeAlias = MarianMTModel | PegasusForConditionalGeneration

MAX_LENGTH = 512
"""Maximum length in generation_config.json, which has no limit relative to the source length."""

_OF_M2M100 = {"norm": "pre", "decoder_start": "eos", "output_bias": False}
"""Settings of all models of the class M2M100, which alone has positions = "fairseq"."""
_M2M100_IDS = [BOS, PAD, EOS, UNK]
"""nmtkit's ids of the first entries of that class, which counts positions from the id of its <pad>."""
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
        raise ModelError(
            f"no transformers model class supports {nowhere}; use `nmtkit {task_of(loaded.tokenizer).command}`"
        )
    missing = []
    if config.positions == "learned":
        missing.append('positions = "learned"')
    is_m2m100 = config.positions == "fairseq"
    if is_m2m100 and not settings.get("target_starts"):
        missing.append('positions = "fairseq" without the subwords and languages of an imported model')
    of_class = _OF_M2M100 if is_m2m100 else {"decoder_start": "bos"}
    missing += [f"{key} = {json.dumps(value)}" for key in of_class if (value := getattr(config, key)) != of_class[key]]
    if config.share_embeddings != "all":
        missing.append(f'share_embeddings = "{config.share_embeddings}"')
    width = config.d_model / config.num_heads
    missing += [
        f"{key} = {value} where d_model / num_heads = {width:g}"
        for key, value in (("d_k", config.key_width), ("d_v", config.value_width))
        if value != width
    ]
    if settings["subwords"] not in ("bpe", "unigram", "imported"):
        missing.append(f'subwords = "{settings["subwords"]}"')
    if settings.get("source_prefixes"):
        missing.append(f"source_prefix = {', '.join(settings['source_prefixes'])}")
    if settings.get("target_tags") and settings["subwords"] != "imported":
        missing.append(f"several target languages ({', '.join(settings['target_tags'])})")
    if missing:
        raise ModelError(f"no transformers model class supports {', '.join(missing)}; choose --format ctranslate2")
    is_nllb = any(not token.endswith("__") for token in settings.get("target_starts", {}).values())
    # find_spec raises an error for a module whose package is missing.
    if is_nllb and (find_spec("google") is None or find_spec("google.protobuf") is None):
        raise ModelError("transformers needs protobuf for this tokenizer; run `pip install 'nmtkit[huggingface]'`")


def their_weights(weights: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Return the weights with the names of transformers, in the order of its position table and of its ids."""
    order, converted = width_order(config), dict[str, Tensor]()
    for name, tensor in weights.items():
        axis, names = width_axis(name), [their_name(name)]
        permuted = tensor if axis is None else tensor.index_select(axis, order)
        if name == "output_bias":
            permuted = permuted[None]  # [1, vocab] in transformers
        elif name == "embeddings.shared":
            permuted = permuted[[*_first_ids(config), *range(len(SPECIAL_PIECES), len(permuted))]]
            names = [f"{shared}.weight" for shared in SHARED]
        converted |= {theirs: permuted.clone() for theirs in names}
    return converted


def _first_ids(config: ModelConfig) -> list[int]:
    """Return nmtkit's ids of the first entries of transformers; those of all others are equal."""
    return _M2M100_IDS if config.positions == "fairseq" else [PAD, UNK, BOS, EOS]


def check_language_model(loaded: LoadedModel) -> None:
    """Raise ModelError with a list of everything in a language model that neither OpenAIGPT nor GPT2 supports."""
    config = loaded.model.config
    stated = [] if config.positions == "learned" else [f'positions = "{config.positions}"']
    stated += [f"{key} = true" for key in ("embedding_scale", "output_bias") if getattr(config, key)]
    if config.share_embeddings == "none":
        stated.append('share_embeddings = "none"')
    if kinds := {config.attention_kind(number) for number in range(config.decoder_layers)} - {"full"}:
        stated.append(f"self_attention = {', '.join(sorted(kinds))}")
    width = config.d_model / config.num_heads
    stated += [f"{key} = {value}" for key, value in (("d_k", config.key_width), ("d_v", config.value_width))
               if value != width]  # fmt: skip
    if config.norm == "post" and config.d_ff != 4 * config.d_model:
        stated.append(f"d_ff = {config.d_ff} where 4 x d_model = {4 * config.d_model}")
    if stated:
        raise ModelError(
            "not exported: of language models, only the form of GPT and GPT-2 can be converted, without "
            f"{', '.join(stated)}; use this one with nmtkit"
        )


def write_language_model(folder: Path, loaded: LoadedModel) -> None:
    """Write weights and configuration into ``folder``; the tokenizer only where transformers has one of its kind.

    Other tokenizers are written in nmtkit's format, into the folder tokenizer/.
    """
    from transformers import GPT2Config, GPT2LMHeadModel, OpenAIGPTConfig, OpenAIGPTLMHeadModel, OpenAIGPTTokenizer

    config, rows = loaded.model.config, their_rows(loaded.tokenizer)
    sizes: dict[str, Any] = {
        "vocab_size": len(rows),
        "n_positions": config.max_positions,
        "n_embd": config.d_model,
        "n_layer": config.decoder_layers,
        "n_head": config.num_heads,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
    }
    model: OpenAIGPTLMHeadModel | GPT2LMHeadModel
    if config.norm == "post":
        model = OpenAIGPTLMHeadModel(OpenAIGPTConfig(afn=config.activation, **sizes))
    else:
        own = {"activation_function": ACTIVATIONS[config.activation], "n_inner": config.d_ff}
        model = GPT2LMHeadModel(GPT2Config(**sizes, **own, bos_token_id=None, eos_token_id=None))
    model.transformer.load_state_dict(their_weights_of_gpt(loaded.model.state_dict(), config, rows))
    _save(model, folder)
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

    Both compute in float64, so that rounding does not count. ``sequences`` are nmtkit's ids.
    """
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, local_files_only=True).eval()
    # A copy, as double() changes a model in place.
    ours, rows = copy.deepcopy(loaded.model).double(), their_rows(loaded.tokenizer)
    their_ids = dict(zip(rows, range(len(rows)), strict=True))
    differences = [0.0]
    for ids in sequences:
        logits = ours(torch.tensor([[EOS]]), torch.tensor([1]), torch.tensor([ids]))[:, :, rows]
        other = theirs(torch.tensor([[their_ids[index] for index in ids]])).logits
        differences.append(float((logits - other).abs().max()))
    return float(np.max(differences))  # NaN if one of them is, unlike Python's max


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
    import transformers

    config, decoding = loaded.model.config, loaded.decoding
    if config.positions == "fairseq":
        kind = transformers.M2M100ForConditionalGeneration
    else:
        kind = transformers.PegasusForConditionalGeneration if config.norm == "pre" else transformers.MarianMTModel
    theirs, start = _first_ids(config).index, loaded.tokenizer.target_start
    longest_source = longest_exported_source(loaded.lengths)
    # Lengths of transformers include the begin symbol and the language, and max_length the end symbol as well.
    max_length = MAX_LENGTH if decoding.max_length is None else decoding.max_length + 2 + len(start)
    ids: dict[str, Any] = {
        "pad_token_id": theirs(PAD),
        "bos_token_id": theirs(BOS),
        "eos_token_id": theirs(EOS),
        "decoder_start_token_id": theirs(EOS if config.decoder_start == "eos" else BOS),
        "forced_eos_token_id": theirs(EOS),
    }
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
            activation_function=ACTIVATIONS[config.activation],
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            activation_dropout=config.ffn_dropout,
            scale_embedding=config.embedding_scale,
            # + 1 for the end symbol of a source, or the begin symbol of a translation
            max_position_embeddings=max(longest_source, longest_translation(decoding, longest_source), max_length) + 1,
            **ids,
        )
    )
    # Not strict: tables of positions are computed by the class, and an output bias is zero without being loaded.
    result = model.load_state_dict(their_weights(loaded.model.state_dict(), config), strict=False)
    absent = [name for name in result.missing_keys if "embed_positions" not in name and name != "final_logits_bias"]
    assert not absent and not result.unexpected_keys, (absent, result.unexpected_keys)
    # transformers refuses to save a length penalty without a beam.
    penalty = {"length_penalty": 0.0 if decoding.length_penalty == "none" else decoding.alpha}
    shortest = decoding.min_length + 1 + len(start) if decoding.min_length else 0
    model.generation_config = transformers.GenerationConfig(
        num_beams=decoding.beam,
        **(penalty if decoding.beam > 1 else {}),
        max_length=max_length,
        min_length=shortest,
        no_repeat_ngram_size=decoding.no_repeat_ngram,
        **ids,
        bad_words_ids=[
            [theirs(index) if index < len(SPECIAL_PIECES) else index] for index in loaded.tokenizer.suppressed_ids
        ],
    )
    _save(model, folder)
    if config.positions == "fairseq":
        _write_tokenizer_of_m2m100(folder, loaded.tokenizer)
    else:
        _write_tokenizer(folder, loaded)


def _save(model: Any, folder: Path) -> None:
    """Write weights and configuration; raise ModelError if there is no room."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model.save_pretrained(folder)
    except SafetensorError as error:
        raise ModelError(f"{folder}: cannot be written ({error}); make room and run the same command again") from None


def _write_tokenizer(folder: Path, loaded: LoadedModel) -> None:
    """Write Marian's tokenizer: the subword model of each side, and the pieces in the order of their ids."""
    from transformers import MarianTokenizer

    tokenizer = loaded.tokenizer
    for side in SIDES:
        (folder / f"{side}.spm").write_bytes(tokenizer.sentencepiece_model(side))
    is_imported = tokenizer.settings["subwords"] == "imported"
    pieces = tokenizer.pieces(range(tokenizer.vocab_size("target")), "target")
    # Tags of an imported model are written without TAG_SIGN, as in its own files.
    pieces = pieces if is_imported else tokenizer.entries("target")
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
        model_max_length=longest_exported_source(loaded.lengths) + 1,
        clean_up_tokenization_spaces=False,  # True would remove blanks before punctuation
    ).save_pretrained(str(folder))


def _write_tokenizer_of_m2m100(folder: Path, tokenizer: Tokenizer) -> None:
    """Write the files of M2M-100's or NLLB's tokenizer."""
    (folder / "sentencepiece.bpe.model").write_bytes(tokenizer.sentencepiece_model("source"))
    entries = tokenizer.pieces(range(tokenizer.vocab_size("source")), "source")
    codes = list(tokenizer.target_languages)
    names = ("pad_token", "unk_token", "bos_token", "eos_token")
    config: dict[str, Any] = dict(zip(names, SPECIAL_PIECES, strict=True))
    if f"__{codes[0]}__" in entries:
        first = [SPECIAL_PIECES[index] for index in _M2M100_IDS]
        # Without the languages, which the class adds itself.
        of_text = [*first, *entries[len(first) : entries.index(f"__{codes[0]}__")]]
        write_json(folder / "vocab.json", {entry: index for index, entry in enumerate(of_text)})
        kind = next((kind for kind, known in LANGUAGES.items() if known == codes), "m2m100")
        config |= {"tokenizer_class": "M2M100Tokenizer", "language_codes": kind}
    else:
        write_json(folder / "special_tokens_map.json", {"additional_special_tokens": codes})
        # Since version 5, the class takes languages from here, and would give <mask> the id of the first one.
        ids = {code: entries.index(code) for code in codes}
        ids["<mask>"] = entries.index("<mask>") if "<mask>" in entries else max(ids.values()) + 1
        added = {str(index): {"content": entry, "special": True} for entry, index in ids.items()}
        config |= {"tokenizer_class": "NllbTokenizer", "extra_special_tokens": codes, "added_tokens_decoder": added}
    write_json(folder / "tokenizer_config.json", config)


def load(folder: Path) -> "tuple[Model, MarianTokenizer]":
    """Load the model and its tokenizer with transformers, as a user does."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model.eval(), AutoTokenizer.from_pretrained(folder, local_files_only=True)


def check_tokenizer(theirs: "MarianTokenizer", loaded: LoadedModel, lines: Sequence[str]) -> None:
    """Raise ModelError if the two tokenizers give different ids for a normalised line."""
    first, model_source = _first_ids(loaded.model.config), task_of(loaded.tokenizer).model_source
    if first is _M2M100_IDS:
        theirs.src_lang = loaded.tokenizer.languages[0]
    for line in (loaded.tokenizer.normalize(model_source(line)) for line in (*lines, *HOSTILE_LINES)):
        if first is _M2M100_IDS:
            line = line.replace(SPECIAL_PIECES[BOS], "")  # a special token there, text for nmtkit
        ours = [*loaded.tokenizer.encode([line], "source")[0], EOS]
        tag = loaded.tokenizer.pieces(ours[:1], "source")[0] if loaded.tokenizer.settings.get("target_tags") else ""
        ids = _exchanged(theirs(tag + line).input_ids, first)
        if ids != ours:
            index = next(i for i in range(max(len(ours), len(ids))) if ours[i : i + 1] != ids[i : i + 1])
            raise ModelError(
                f"not exported: the exported tokenizer cuts the line {line!r} differently, first at token {index + 1}: "
                f"nmtkit has {ours[index : index + 1]}, transformers {ids[index : index + 1]}"
            )


def _exchanged(ids: Sequence[int], first: Sequence[int]) -> list[int]:
    """Return ids with those of the special entries replaced by ``first``."""
    return [first[index] if index < len(first) else index for index in ids]


@torch.inference_mode()
def search(
    model: "Model", loaded: LoadedModel, sources: Sequence[list[int]], decoding: DecodingConfig
) -> list[list[int]]:
    """Return nmtkit's ids of translations by transformers, with nmtkit's maximum length and no other constraint."""
    first, start = _first_ids(loaded.model.config), loaded.tokenizer.target_start
    theirs = [first.index(index) for index in range(len(first))]
    # Sources of one length need no padding, and have the same maximum length, of which generate takes only one.
    by_length: dict[int, list[int]] = {}
    for index, ids in enumerate(sources):
        by_length.setdefault(len(ids), []).append(index)
    found: dict[int, list[int]] = {}
    with progress(f"transformers, beam {decoding.beam}", len(sources)) as advance:
        for length, group in by_length.items():
            batch = torch.tensor([_exchanged([*sources[index], EOS], theirs) for index in group])
            outputs = model.generate(
                input_ids=batch,
                attention_mask=torch.ones_like(batch),
                num_beams=decoding.beam,
                max_length=longest_translation(decoding, length) + 2 + len(start),  # with begin and end symbol
                min_length=0,
                no_repeat_ngram_size=0,
                forced_bos_token_id=start[0] if start else None,
            )
            for index, output in zip(group, outputs.tolist(), strict=True):
                ids = _exchanged(output[1 + len(start) :], first)
                found[index] = ids[: ids.index(EOS)] if EOS in ids else ids
            advance(len(found))
    return [found[index] for index in range(len(sources))]
