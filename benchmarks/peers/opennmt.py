"""OpenNMT-py: `onmt_train` and `onmt_translate`."""

import json
import sys
from pathlib import Path
from typing import Any

from peers import probe
from peers.rules import BATCH_TOKENS, MAX_TOKENS, WARM_UP_UPDATES, Size

REQUIREMENTS = [
    "torch", "configargparse==1.9.0", "ctranslate2==4.8.5", "fasttext-wheel==0.9.2", "flask==3.1.3",
    "pyahocorasick==2.3.1", "pyonmttok==1.38.1", "pyyaml", "rapidfuzz==3.14.6", "sacrebleu", "sentencepiece",
    "setuptools<81", "six", "spacy==3.8.18", "subword-nmt==0.3.8", "tensorboard==2.21.0", "waitress==3.0.2",
]  # fmt: skip
WITHOUT_DEPENDENCIES = ["OpenNMT-py==3.5.1"]  # it demands torch<2.3


def train(text: Path, folder: Path, size: Size, updates: int) -> list[str]:
    """Write the configuration; see the package."""
    vocabulary = folder / "vocabulary.txt"
    pieces = (text / "vocabulary").read_text(encoding="utf-8").split("\n")[:-1]
    vocabulary.write_text("".join(f"{piece}\t100\n" for piece in pieces), encoding="utf-8")
    corpus = {"path_src": str(text / "train.bpe.en"), "path_tgt": str(text / "train.bpe.de")}
    configuration = {
        "data": {"train": {**corpus, "transforms": ["filtertoolong"], "weight": 1}},
        "src_seq_length": MAX_TOKENS, "tgt_seq_length": MAX_TOKENS, "skip_empty_level": "silent",
        "src_vocab": str(vocabulary), "tgt_vocab": str(vocabulary), "share_vocab": True, "n_sample": 0,
        "num_workers": 0, "bucket_size": 262144, "batch_type": "tokens", "batch_size": BATCH_TOKENS,
        # model
        "encoder_type": "transformer", "decoder_type": "transformer", "position_encoding": True,
        "layers": size.layers, "hidden_size": size.d_model, "word_vec_size": size.d_model,
        "transformer_ff": size.d_ff, "heads": size.heads,
        "share_embeddings": True, "share_decoder_embeddings": True,
        "dropout": [0.1], "attention_dropout": [0.1], "dropout_steps": [0],
        "param_init": 0, "param_init_glorot": True, "model_dtype": "fp32",
        # training
        "save_model": str(folder / "model"), "save_checkpoint_steps": updates, "train_steps": updates,
        "valid_steps": 10**6, "report_every": 10, "seed": 42, "world_size": 1, "accum_count": [1],
        "normalization": "tokens", "label_smoothing": 0.1, "optim": "adam", "adam_beta2": 0.98, "max_grad_norm": 0,
        "decay_method": "noam", "warmup_steps": WARM_UP_UPDATES,
        "learning_rate": size.peak_learning_rate * (size.d_model * WARM_UP_UPDATES) ** 0.5,
    }  # fmt: skip
    (folder / "train.yaml").write_text(json.dumps(configuration))  # JSON is YAML
    return ["-m", "peers.opennmt", "-config", str(folder / "train.yaml")]


def translate(model: Path, source: Path, output: Path, batch: int, length: int) -> list[str]:
    """See the package."""
    [checkpoint] = model.glob("model_step_*.pt")
    files = ["-model", str(checkpoint), "-src", str(source), "-output", str(output)]
    search = ["-beam_size", "4", "-length_penalty", "wu", "-alpha", "0.6", "-max_length", str(length)]
    batches = ["-batch_size", str(batch), "-batch_type", "sents", "-gpu", "-1"]
    return ["-m", "onmt.bin.translate", *files, *search, "-min_length", str(length), *batches]


def main() -> None:
    """Trains with the toolkit's own command."""
    from onmt.bin.train import main as onmt_train
    from onmt.trainer import Trainer

    def target_tokens(trainer: Trainer, batches: list[Any], *_: Any) -> int:
        padding = trainer.train_loss.padding_idx
        return sum((batch["tgt"][:, 1:, 0] != padding).sum().item() for batch in batches)

    probe.watch(Trainer, "_gradient_accumulation", target_tokens)
    sys.exit(onmt_train())


if __name__ == "__main__":
    main()
