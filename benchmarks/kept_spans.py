"""Spans that survive translation, with and without `translate --keep`.

    python benchmarks/kept_spans.py --work FOLDER [--updates 700] [--threads 1]

The corpus is the built-in one, where a third of the training pairs and all test pairs have a made-up URL, e-mail
address, number or tag before the final period, on both sides. All spans are random and no test span occurs in
training, so a model has to copy them. The model is that of the recipe `quickstart`.

Prints, per kind, the share of test spans that are in the translation unchanged, and the sacreBLEU of all lines. A
finished run in FOLDER is used again.
"""

import argparse
import string
import time
from pathlib import Path
from random import Random

import torch

from nmtkit.config.recipe import load_recipe
from nmtkit.corpora.synthetic import generate
from nmtkit.decoding.request import TranslationRequest
from nmtkit.decoding.translator import Translator
from nmtkit.evaluation.metrics import score
from nmtkit.lines import write_lines
from nmtkit.pipeline import run
from nmtkit.text.terms import Kind, kept_spans

KINDS: tuple[Kind, ...] = ("tags", "urls", "emails", "numbers")
TEST_LINES = 400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=700)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    work: Path = arguments.work
    rng = Random(1)
    for split in ("train", "valid"):
        pairs = [(pair.source, pair.target) for pair in generate(split)]
        pairs = [with_span(pair, random_span(rng, KINDS[number // 3 % 4]), rng) if number % 3 == 0 else pair
                 for number, pair in enumerate(pairs)]  # fmt: skip
        write(work, split, pairs)
    kinds = [KINDS[number % 4] for number in range(TEST_LINES)]
    spans = [random_span(rng, kind) for kind in kinds]
    test = [(pair.source, pair.target) for pair in generate("synthetic")[:TEST_LINES]]
    test = [with_span(pair, span, rng) for pair, span in zip(test, spans, strict=True)]
    recipe = work / "kept.toml"
    recipe.write_text(
        'base = "quickstart"\n[data]\ntrain = [{ source = "train.en", target = "train.de" }]\n'
        'valid = [{ source = "valid.en", target = "valid.de" }]\ntest = []\n'
        f"[training]\nmax_steps = {arguments.updates}\n",
        encoding="utf-8",
    )
    run(load_recipe(str(recipe)), work / "run", mirror=None, device="cpu", threads=arguments.threads)
    torch.set_num_threads(arguments.threads)
    translator = Translator.load(work / "run", "cpu")
    sources, references = [source for source, _ in test], [target for _, target in test]
    print(f"| `--keep` | {' | '.join(KINDS)} | all | sacreBLEU | seconds |\n|---{'|---' * (len(KINDS) + 3)}|")
    for keep in ((), KINDS):
        started = time.monotonic()
        found = [best for best, *_ in translator.translations(sources, TranslationRequest(keep=keep))]
        seconds = time.monotonic() - started
        texts = [best.text for best in found]
        is_kept = [
            span in (text[a:b] for a, b, _ in kept_spans(text, KINDS)) for span, text in zip(spans, texts, strict=True)
        ]
        if keep and [not kept for kept in is_kept] != [best.is_unsatisfied for best in found]:
            raise SystemExit("the status of a line is wrong")
        shares = [
            sum(kept for kept, of_line in zip(is_kept, kinds, strict=True) if of_line == kind) / kinds.count(kind)
            for kind in KINDS
        ]
        cells = [f"{100 * share:.0f} %" for share in (*shares, sum(is_kept) / len(is_kept))]
        bleu = score(texts, references, target_language="de", text="plain", metrics=["sacrebleu"])["sacrebleu"].score
        print(f"| {'all' if keep else 'none'} | {' | '.join(cells)} | {bleu:.1f} | {seconds:.0f} |", flush=True)


def random_span(rng: Random, kind: Kind) -> str:
    """Return a span that occurs only by chance in a text."""

    def word(low: int, high: int, letters: str = string.ascii_lowercase) -> str:
        return "".join(rng.choices(letters, k=rng.randint(low, high)))

    if kind == "numbers":
        return rng.choice((f"{rng.randint(10, 99999)}", f"{rng.randint(1, 99)}.{word(1, 3, string.digits)}",
                           f"{rng.randint(1, 999)},{word(3, 3, string.digits)}"))  # fmt: skip
    if kind == "emails":
        return f"{word(2, 6)}.{word(2, 6)}@{word(3, 7)}.example"
    if kind == "urls":
        return f"https://{word(3, 8)}.example/{word(2, 8, string.ascii_lowercase + string.digits)}"
    return rng.choice((f'<x id="{rng.randint(1, 999)}"/>', f"<{word(1, 6)}>", f"</{word(1, 6)}>"))


def with_span(pair: tuple[str, str], span: str, rng: Random) -> tuple[str, str]:
    """Return a pair with a span before the final period of both sides, half of the time in brackets."""
    inserted = f" ({span})." if rng.random() < 0.5 else f" {span}."
    source, target = (text.removesuffix(".") + inserted for text in pair)
    return source, target


def write(work: Path, split: str, pairs: list[tuple[str, str]]) -> None:
    work.mkdir(parents=True, exist_ok=True)
    for side, language in enumerate(("en", "de")):
        write_lines(work / f"{split}.{language}", [pair[side] for pair in pairs])


if __name__ == "__main__":
    main()
