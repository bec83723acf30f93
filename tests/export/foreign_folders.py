"""Folders as transformers writes and its hub has them, with random weights and subwords of a few made-up lines."""

import io
import json
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from transformers import M2M100Config, M2M100ForConditionalGeneration, MarianConfig, MarianMTModel, PreTrainedModel

from nmtkit.json_toml import write_json
from tests.export.tiny_models import PAIRS

SIZES: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "scale_embedding": True, "max_position_embeddings": 128,
    "init_std": 0.2,
}  # fmt: skip


def train_spm(lines: list[str], size: int, kind: str) -> bytes:
    """Return a model with sentencepiece's defaults, which normalise the text."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=size,
        model_type=kind,
        minloglevel=2,
        hard_vocab_limit=False,
    )
    return model.getvalue()


def pieces_of(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(index) for index in range(len(processor))]


def shake(model: PreTrainedModel, norm: torch.nn.LayerNorm, gain: int) -> PreTrainedModel:
    """Move biases and norms away from 0 and 1, as training does, and let translations come to an end.

    Args:
        norm: the last one of the decoder.
        gain: factor of most layers. With 2 a token does not predict itself, but rounding grows, too.
    """
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.data += 0.2 * torch.randn_like(parameter)
        elif "layers." in name and "encoder_attn" not in name:
            parameter.data *= gain**2 if ".q_proj" in name or ".k_proj" in name else gain
    norm.bias.data.fill_(1.0)
    table = model.get_input_embeddings().weight.data
    table -= table.mean(1, keepdim=True)
    table[model.config.eos_token_id] += 1.2 / model.config.d_model
    return model.eval()


def write_marian(folder: Path, *, tags: tuple[str, ...] = (), gain: int = 2, **changes: Any) -> MarianMTModel:
    """Write a folder like those of OPUS-MT: swish, an output bias, two models of sentencepiece, a joint vocab.json.

    Args:
        tags: codes of several target languages.
    """
    folder.mkdir(parents=True)
    entries = ["</s>", "<unk>"]
    for side, name in enumerate(("source.spm", "target.spm")):
        model = train_spm([pair[side] for pair in PAIRS], 60, "unigram")
        (folder / name).write_bytes(model)
        entries += [piece for piece in pieces_of(model) if piece not in (*entries, "<s>")]
    entries += [f">>{tag}<<" for tag in tags] + ["<pad>"]
    write_json(folder / "vocab.json", {entry: index for index, entry in enumerate(entries)})
    write_json(folder / "tokenizer_config.json", {"source_lang": "en", "target_lang": "de"})
    torch.manual_seed(1)
    ids = {"pad_token_id": len(entries) - 1, "decoder_start_token_id": len(entries) - 1, "eos_token_id": 0}
    config = MarianConfig(
        vocab_size=len(entries), **{"activation_function": "swish", **SIZES, **ids, "forced_eos_token_id": 0, **changes}
    )
    model = MarianMTModel(config)
    shake(model, model.model.decoder.layers[-1].final_layer_norm, gain)
    model.final_logits_bias.normal_(std=0.3)
    model.generation_config.update(num_beams=4, max_length=40, bad_words_ids=[[len(entries) - 1]])
    model.save_pretrained(folder)
    return model


def write_m2m100(folder: Path, *, nllb: bool = False, gain: int = 2, **changes: Any) -> M2M100ForConditionalGeneration:
    """Write a folder like those of M2M-100, or with ``nllb`` of NLLB, whose languages are eng_Latn and deu_Latn."""
    folder.mkdir(parents=True)
    model = train_spm([line for pair in PAIRS for line in pair], 80, "bpe")
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    entries = ["<s>", "<pad>", "</s>", "<unk>", *pieces_of(model)[3:]]
    if nllb:
        names = ["deu_Latn", "eng_Latn", "fra_Latn"]
        write_json(folder / "special_tokens_map.json", {"additional_special_tokens": names})
        size = len(entries) + len(names) + 2
    else:
        write_json(folder / "vocab.json", {entry: index for index, entry in enumerate(entries)})
        write_json(folder / "tokenizer_config.json", {"language_codes": "wmt21", "src_lang": "en", "tgt_lang": "de"})
        size = len(entries) + 8 + 8
    torch.manual_seed(1)
    theirs = M2M100ForConditionalGeneration(M2M100Config(vocab_size=size, **{**SIZES, **changes}))
    shake(theirs, theirs.model.decoder.layer_norm, gain)
    theirs.generation_config.update(num_beams=5, max_length=40)
    theirs.save_pretrained(folder)
    return theirs


def changed_json(path: Path, **changes: Any) -> None:
    """Change entries of a JSON file; None removes one."""
    content = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    write_json(path, {key: value for key, value in content.items() if value is not None})
