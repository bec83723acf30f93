"""Sockeye: `sockeye-train` and `sockeye-translate`."""

import json
import sys
from pathlib import Path

from peers import probe
from peers.rules import BATCH_TOKENS, MAX_TOKENS, WARM_UP_UPDATES, Size

REQUIREMENTS = ["torch", "numpy", "pyyaml", "sacrebleu", "setuptools<81"]
WITHOUT_DEPENDENCIES = ["sockeye==3.1.34"]  # it demands torch<1.14 and numpy<2

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
SENTENCES_AT_ONCE = 1000
"""How many are read, and sorted by length, at once."""


def train(text: Path, folder: Path, size: Size, updates: int) -> list[str]:
    """Write the vocabulary; see the package."""
    vocabulary = folder / "vocabulary.json"
    pieces = [*SPECIAL, *(text / "vocabulary").read_text(encoding="utf-8").split("\n")[:-1]]
    vocabulary.write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}), encoding="utf-8")
    options = {
        "source": text / "train.bpe.en", "validation-source": text / "val.bpe.en", "source-vocab": vocabulary,
        "target": text / "train.bpe.de", "validation-target": text / "val.bpe.de", "target-vocab": vocabulary,
        "max-seq-len": MAX_TOKENS, "batch-type": "max-word", "batch-size": BATCH_TOKENS,
        "batch-sentences-multiple-of": 1,
        # model
        "num-layers": f"{size.layers}:{size.layers}", "transformer-model-size": size.d_model,
        "transformer-feed-forward-num-hidden": size.d_ff, "transformer-attention-heads": size.heads,
        "transformer-preprocess": "n", "transformer-postprocess": "dr", "weight-tying-type": "src_trg_softmax",
        "transformer-dropout-prepost": 0.1, "transformer-dropout-attention": 0.1, "transformer-dropout-act": 0.0,
        "dtype": "float32",
        # training; Sockeye's rate is initial-learning-rate / sqrt(max(update, warm-up))
        "output": folder / "model", "max-updates": updates, "checkpoint-interval": updates,
        "decode-and-evaluate": 0, "keep-last-params": 1, "seed": 42, "update-interval": 1,
        "label-smoothing": 0.1, "label-smoothing-impl": "torch", "optimizer": "adam", "optimizer-betas": "0.9:0.98",
        "initial-learning-rate": size.peak_learning_rate * WARM_UP_UPDATES**0.5,
        "learning-rate-scheduler-type": "inv-sqrt-decay", "learning-rate-warmup": WARM_UP_UPDATES,
    }  # fmt: skip
    arguments = [part for key, value in options.items() for part in (f"--{key}", str(value))]
    return ["-m", "peers.sockeye", *arguments, "--shared-vocab", "--use-cpu"]


def translate(model: Path, source: Path, output: Path, batch: int, length: int) -> list[str]:
    """See the package. Sockeye has no minimum length: `main` has suppressed the end symbol in the weights."""
    files = ["--models", str(model / "model"), "--input", str(source), "--output", str(output)]
    search = ["--beam-size", "4", "--length-penalty-alpha", "0.6", "--length-penalty-beta", "5"]
    batches = ["--batch-size", str(batch), "--chunk-size", str(SENTENCES_AT_ONCE), "--use-cpu", "--dtype", "float32"]
    return ["-m", "sockeye.translate", *files, *search, "--max-output-length", str(length), *batches]


def main() -> None:
    """Trains with the toolkit's own command; the model that it writes never ends a sentence by itself."""
    import torch
    from sockeye.train import main as sockeye_train
    from sockeye.training import EarlyStoppingTrainer

    probe.watch(
        EarlyStoppingTrainer, "_forward_backward", lambda _, batch, *__: (batch.labels["target_label"] != 0).sum()
    )
    sockeye_train()
    weights = Path(sys.argv[sys.argv.index("--output") + 1]) / "params.best"
    parameters = torch.load(weights)
    [bias] = [name for name in parameters if name.endswith("output_layer.bias")]
    parameters[bias][SPECIAL.index("</s>")] = -100.0
    torch.save(parameters, weights)


if __name__ == "__main__":
    main()
