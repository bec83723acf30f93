"""transformers: MarianMTModel, trained by a plain loop, and its `generate`."""

import argparse
import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peers import probe
from peers.rules import BATCH_TOKENS, MAX_TOKENS, WARM_UP_UPDATES, Size

REQUIREMENTS = ["torch", "transformers==5.23.0", "accelerate", "sacremoses", "sentencepiece"]
WITHOUT_DEPENDENCIES: list[str] = []

Pair = tuple[list[int], list[int]]

UNK, BOS, EOS, PAD = range(4)
SPECIAL = ["<unk>", "<s>", "</s>", "<pad>"]


def train(text: Path, folder: Path, size: Size, updates: int) -> list[str]:
    """See the package."""
    return ["-m", "peers.transformers", "train", str(text), str(folder), json.dumps(asdict(size)), str(updates)]


def convert(nmtkit_model: Path, folder: Path) -> None:
    """Export a model of nmtkit, in nmtkit's own environment."""
    from nmtkit.export.export import export

    export(nmtkit_model, "huggingface", output=folder)


def translate(model: Path, source: Path, output: Path, batch: int, length: int) -> list[str]:
    """See the package."""
    return ["-m", "peers.transformers", "translate", *map(str, (model, source, output, batch, length))]


def read_pieces(path: Path, vocabulary: list[str]) -> list[list[int]]:
    """The ids of each line of a file in pieces, with the end symbol."""
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [[*(ids.get(piece, UNK) for piece in line.split()), EOS] for line in lines]


def padded(sequences: list[list[int]], padding: int = PAD) -> Any:
    """A tensor of the sequences."""
    import torch

    longest = max(map(len, sequences))
    return torch.tensor([[*sequence, *[padding] * (longest - len(sequence))] for sequence in sequences])


def batches_of(pairs: list[Pair]) -> list[list[Pair]]:
    """Pairs of similar length, up to BATCH_TOKENS with padding."""
    batches: list[list[Pair]] = []
    batch: list[Pair] = []
    longest = 0
    for pair in sorted(pairs, key=lambda pair: (len(pair[1]), len(pair[0]))):
        longest = max(longest, *map(len, pair))
        if batch and longest * (len(batch) + 1) > BATCH_TOKENS:
            batches.append(batch)
            batch, longest = [], max(map(len, pair))
        batch.append(pair)
    return [*batches, batch]


def train_model(text: Path, folder: Path, size: Size, updates: int) -> None:
    """Trains from scratch, and writes the model with its vocabulary."""
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(42)
    random.seed(42)
    vocabulary = SPECIAL + (text / "vocabulary").read_text(encoding="utf-8").split("\n")[:-1]
    sides = [read_pieces(text / f"train.bpe.{language}", vocabulary) for language in ("en", "de")]
    pairs = [pair for pair in zip(*sides, strict=True) if max(map(len, pair)) <= MAX_TOKENS]
    config = MarianConfig(
        vocab_size=len(vocabulary), max_position_embeddings=512,
        d_model=size.d_model, encoder_layers=size.layers, decoder_layers=size.layers,
        encoder_ffn_dim=size.d_ff, decoder_ffn_dim=size.d_ff,
        encoder_attention_heads=size.heads, decoder_attention_heads=size.heads,
        dropout=0.1, attention_dropout=0.1, activation_dropout=0.0, activation_function="relu",
        scale_embedding=True, share_encoder_decoder_embeddings=True,
        bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD, decoder_start_token_id=BOS, forced_eos_token_id=None,
    )  # fmt: skip
    model = MarianMTModel(config).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=size.peak_learning_rate, betas=(0.9, 0.98), eps=1e-9)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARM_UP_UPDATES, (WARM_UP_UPDATES / (step + 1)) ** 0.5)
    )
    batches = batches_of(pairs)
    for update in range(updates):
        if update % len(batches) == 0:
            random.shuffle(batches)
        batch = batches[update % len(batches)]
        source, target = padded([pair[0] for pair in batch]), padded([pair[1] for pair in batch])
        logits = model(
            input_ids=source,
            attention_mask=(source != PAD).long(),
            decoder_input_ids=padded([[BOS, *pair[1][:-1]] for pair in batch]),
            use_cache=False,
        ).logits
        loss = cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()  # as a report of it would
        probe.record((target != PAD).sum())
    model.save_pretrained(folder)
    (folder / "vocabulary.json").write_text(json.dumps(vocabulary), encoding="utf-8")


def translate_file(model: Path, source: Path, output: Path, batch: int, length: int) -> None:
    """Translates batches of similar length: pieces by a model of `train_model`, text by one that nmtkit exported."""
    import torch
    from transformers import MarianMTModel, MarianTokenizer

    marian = MarianMTModel.from_pretrained(model).eval()
    if length:
        vocabulary = json.loads((model / "vocabulary.json").read_text(encoding="utf-8"))
        sources = read_pieces(source, vocabulary)
        limits = {"min_new_tokens": length, "max_new_tokens": length}
    else:
        tokenizer = MarianTokenizer.from_pretrained(model)
        sources = tokenizer(source.read_text(encoding="utf-8").split("\n")[:-1]).input_ids
        limits = {"max_new_tokens": MAX_TOKENS}
    padding = marian.config.pad_token_id
    order = sorted(range(len(sources)), key=lambda line: -len(sources[line]))
    translations = [""] * len(sources)
    for start in range(0, len(order), batch):
        lines = order[start : start + batch]
        inputs = padded([sources[line] for line in lines], padding)
        with torch.inference_mode():
            outputs = marian.generate(
                input_ids=inputs, attention_mask=(inputs != padding).long(), use_cache=True,
                num_beams=4, length_penalty=0.6, do_sample=False, early_stopping=False, **limits,
            )  # fmt: skip
        if length:
            texts = [" ".join(vocabulary[index] for index in row[1:]) for row in outputs.tolist()]
        else:
            texts = tokenizer.batch_decode(outputs, skip_special_tokens=True)
        for line, text in zip(lines, texts, strict=True):
            translations[line] = text
    output.write_text("".join(f"{line}\n" for line in translations), encoding="utf-8")


def main() -> None:
    """Trains or translates."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    for command, names in (
        ("train", {"text": Path, "folder": Path, "size": lambda text: Size(**json.loads(text)), "updates": int}),
        ("translate", {"model": Path, "source": Path, "output": Path, "batch": int, "length": int}),
    ):
        options = commands.add_parser(command)
        for name, kind in names.items():
            options.add_argument(name, type=kind)
    arguments = vars(parser.parse_args())
    {"train": train_model, "translate": translate_file}[arguments.pop("command")](**arguments)


if __name__ == "__main__":
    main()
