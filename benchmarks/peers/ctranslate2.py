"""CTranslate2: its Python API, on the weights of nmtkit. It is no peer: it does not train, nor use PyTorch."""

import argparse
import os
from pathlib import Path

REQUIREMENTS = ["ctranslate2==4.8.5"]
WITHOUT_DEPENDENCIES: list[str] = []


def convert(nmtkit_model: Path, folder: Path) -> None:
    """Write a model folder of nmtkit for CTranslate2, in nmtkit's own environment."""
    from nmtkit.export.ctranslate2 import write
    from nmtkit.model_folder import load_model

    folder.mkdir(parents=True)
    write(folder, load_model(nmtkit_model), "float32")


def translate(model: Path, source: Path, output: Path, batch: int, length: int) -> list[str]:
    """See the package."""
    return ["-m", "peers.ctranslate2", str(model), str(source), str(output), str(batch), str(length)]


def main() -> None:
    """Translates a file of pieces."""
    import ctranslate2

    parser = argparse.ArgumentParser()
    for name, kind in (("model", str), ("source", Path), ("output", Path), ("batch", int), ("length", int)):
        parser.add_argument(name, type=kind)
    arguments = parser.parse_args()
    threads = int(os.environ["OMP_NUM_THREADS"])
    translator = ctranslate2.Translator(
        arguments.model, device="cpu", compute_type="float32", inter_threads=1, intra_threads=threads
    )
    results = translator.translate_batch(
        [line.split() for line in arguments.source.read_text(encoding="utf-8").split("\n")[:-1]],
        beam_size=4,
        length_penalty=0.6,
        max_batch_size=arguments.batch,
        min_decoding_length=arguments.length,
        max_decoding_length=arguments.length,
    )
    lines = [" ".join(result.hypotheses[0]) + "\n" for result in results]
    arguments.output.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
