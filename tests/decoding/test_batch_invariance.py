"""What a line is translated together with does not change its best translation: exactly so in float64, and in float32
but for candidates that are as good as equal."""

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.decoding import file_translation as streams
from nmtkit.decoding.file_translation import Window, translate_windows
from nmtkit.decoding.forced import ForcedDecoder
from nmtkit.decoding.lengths import length_penalty
from nmtkit.decoding.parts import Begun, Parts, Written
from nmtkit.decoding.request import Batching, Translation, TranslationRequest
from nmtkit.decoding.translator import Translator
from nmtkit.model.transformer import Transformer
from nmtkit.text.new_tokenizers import learn_tokenizer
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import EOS
from tests.decoding.models import TEXT, data_config, model_for

WORDS = sorted({word for source, _ in TEXT for word in source.split()})
RANDOM = random.Random(1)
LINES = [" ".join(RANDOM.choices(WORDS, k=RANDOM.randint(1, 7))) for _ in range(40)]
LONG = " ".join(RANDOM.choices(WORDS, k=25))
AS_GOOD_AS_EQUAL = 1e-4
ROUNDING = 1e-4  # of a whole score's size: float32 has seven digits, of which sums over a model's layers leave four

DECODING = {"max_length_offset": 8}
ENDING = 2.0


def model_of(tokenizer: Tokenizer, dtype: torch.dtype) -> Transformer:
    """The same random weights in both precisions. Every third piece has a twin, whose embedding differs from its
    own by a millionth: translations that differ only in twins are about as far from each other as rounding goes."""
    model = model_for(tokenizer, torch.float32, decoder_layers=2, d_model=32, d_ff=64)
    table = model.embeddings["shared"].data
    first = table[4:-1:3]
    table[5::3] = first * (1 + 1e-6 * torch.randn_like(first))
    table[EOS] *= ENDING  # larger than others, so that translations end at different lengths
    return model.to(dtype)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return learn_tokenizer(data_config(vocab_size=90), lambda: TEXT)


def translator_of(tokenizer: Tokenizer, dtype: torch.dtype, beam: int) -> Translator:
    return Translator([model_of(tokenizer, dtype)], tokenizer, DecodingConfig(beam=beam, **DECODING))


def best(
    translator: Translator, lines: Sequence[str] = LINES, *, sentences: int | None = None, tokens: int | None = None,
    n_best: int = 1,
) -> list[Translation]:  # fmt: skip
    batching = Batching(sentences, tokens)
    return [found[0] for found in translator.translations(lines, TranslationRequest(n_best=n_best), batching=batching)]


def by_processes(translator: Translator, num_processes: int, folder: Path) -> list[Translation]:
    """As `nmtkit translate --processes` shares a file out, one process after the other."""
    parts = Parts(folder / "out", {}, streams.WINDOW_LINES)
    parts.begin()
    found: dict[int, Translation] = {}

    def work(window: Window, advance: Callable[[float], None], begun: Begun) -> Written:
        translations = best(translator, window.lines)
        found.update(enumerate(translations, window.first_line))
        return Written([one.text for one in translations], ["" for _ in translations])

    for rank in range(num_processes):
        count = translate_windows(LINES, work, parts, rank=rank, num_processes=num_processes)
    parts.join(count, [("output", folder / "out")])
    in_order = [found[line] for line in sorted(found)]
    assert (folder / "out").read_text(encoding="utf-8") == "".join(f"{one.text}\n" for one in in_order)
    return in_order


def with_every_batching(
    translator: Translator, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, list[Translation]]]:
    """The best translation of each line, by every way to take lines together: the way's name, and what was found."""
    for sentences in (3, len(LINES)):
        yield f"batches of {sentences} lines", best(translator, sentences=sentences)
    for tokens in (40, 150):
        yield f"batches of {tokens} tokens", best(translator, tokens=tokens)
    for seed in (1, 2):
        order = random.Random(seed).sample(range(len(LINES)), len(LINES))
        found = best(translator, [LINES[index] for index in order], sentences=7)
        yield f"order {seed}", [found[order.index(index)] for index in range(len(LINES))]
    padded = best(translator, [*LINES, LONG], sentences=len(LINES) + 1)
    yield "padded to a long line", padded[:-1]
    for n_best in range(2, translator.decoding.beam + 1):
        yield f"--n-best {n_best}", best(translator, n_best=n_best)
    for num_processes, lines in ((1, 11), (2, 11), (3, 6)):
        with monkeypatch.context() as patch:
            patch.setattr(streams, "WINDOW_LINES", lines)
            yield f"{num_processes} processes", by_processes(translator, num_processes, folder)


def exact_gaps(
    tokenizer: Tokenizer, pairs: Sequence[tuple[str, Translation, Translation]]
) -> list[tuple[float, float]]:
    """How far two translations of a line are apart in float64: where they part, and as a whole.

    Where they part is the difference of their log-probabilities up to the first token that is not the same, which is
    what a search compares there; as a whole, of their scores.
    """
    vocab = range(tokenizer.vocab_size("target"))
    ids = dict(zip(tokenizer.pieces(vocab, "target"), vocab, strict=True))
    decoder = ForcedDecoder([model_of(tokenizer, torch.float64)], tokenizer, DecodingConfig(**DECODING))
    penalty = length_penalty(decoder.decoding.length_penalty, decoder.decoding.alpha)
    sources = tokenizer.encode([tokenizer.normalize(line) for line, _, _ in pairs], "source")
    scored = [
        decoder.score_ids(sources, [[ids[piece] for piece in pair[side].pieces] for pair in pairs]) for side in (1, 2)
    ]
    gaps = []
    for one, other in zip(*scored, strict=True):
        place = next(place for place, two in enumerate(zip(one.ids, other.ids, strict=False)) if two[0] != two[1])
        parting = abs(one.log_probs[place] - other.log_probs[place])
        gaps.append((parting, abs(one.log_prob / penalty(len(one.ids)) - other.log_prob / penalty(len(other.ids)))))
    return gaps


@pytest.mark.parametrize("beam", [1, 4])
def test_in_float64_batching_changes_no_translation(
    tokenizer: Tokenizer, beam: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = translator_of(tokenizer, torch.float64, beam)
    alone = best(translator, sentences=1)
    assert len({one.pieces for one in alone}) > len(LINES) / 2  # so the source does make a difference
    for way, found in with_every_batching(translator, tmp_path, monkeypatch):
        assert [one.pieces for one in found] == [one.pieces for one in alone], way
        assert [one.score for one in found] == pytest.approx([one.score for one in alone], abs=1e-9), way


@pytest.mark.parametrize("beam", [1, 4])
def test_in_float32_batching_only_exchanges_candidates_as_good_as_equal(
    tokenizer: Tokenizer, beam: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = translator_of(tokenizer, torch.float32, beam)
    alone = best(translator, sentences=1)
    exchanged = []
    for way, found in with_every_batching(translator, tmp_path, monkeypatch):
        for line, one, other in zip(LINES, alone, found, strict=True):
            if one.pieces != other.pieces:
                exchanged.append((way, line, one, other))
            else:
                assert other.score == pytest.approx(one.score, rel=ROUNDING, abs=0.0), f"{way}: {line}"
    gaps = exact_gaps(tokenizer, [entry[1:] for entry in exchanged])
    # A continuation that changed places early may end further apart than it was then.
    worse = [(gap, *what) for gap, what in zip(gaps, exchanged, strict=True) if not min(gap) < AS_GOOD_AS_EQUAL]
    assert not worse, f"{len(worse)} translations depend on their batch, as the first: {worse[0]}"


def test_the_translations_of_these_tests_differ_in_length_and_have_others_as_good_as_equal(
    tokenizer: Tokenizer,
) -> None:
    two_best = translator_of(tokenizer, torch.float64, 4).translations(LINES, TranslationRequest(n_best=2))
    assert len({len(first.pieces) for first, _ in two_best}) > 4
    gaps = [first.score - second.score for first, second in two_best]
    assert sum(0 < gap < AS_GOOD_AS_EQUAL for gap in gaps) > len(LINES) / 4
    assert sum(gap > AS_GOOD_AS_EQUAL for gap in gaps) > 0


@pytest.mark.parametrize("n_best", [1, 2, 3])
def test_in_float64_a_longer_list_begins_with_the_shorter_one(tokenizer: Tokenizer, n_best: int) -> None:
    translator = translator_of(tokenizer, torch.float64, 4)
    longest, shorter = (translator.translations(LINES, TranslationRequest(n_best=count)) for count in (4, n_best))
    for of_longest, of_shorter in zip(longest, shorter, strict=True):
        assert [one.pieces for one in of_longest[:n_best]] == [one.pieces for one in of_shorter]
