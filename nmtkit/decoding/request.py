"""Requests to an engine, and its results: sampling, batching, requirements, segments and translations."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import get_args

from nmtkit.data.batching import cut_by_padded_tokens
from nmtkit.decoding.lengths import Split
from nmtkit.decoding.wanted import Ids, Wanted
from nmtkit.text.terms import Glossary, Kind


@dataclass(frozen=True)
class Sampling:
    """Parameters of sampling.

    Attributes:
        temperature: divisor of the log-probabilities.
        top_k: number of most probable tokens to sample from; 0: all.
        top_p: sample only from the most probable tokens that together have at least this probability (nucleus
            sampling, Holtzman et al. 2020, arXiv 1904.09751); 1: all. Applied after temperature and top_k.
        seed: random seed; together with the number of a line it decides which translations are sampled.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1

    def __post_init__(self) -> None:
        """Raise ValueError for numbers out of range."""
        if not 1e-6 <= self.temperature < math.inf:  # scores divided by less could be infinite
            raise ValueError(f"temperature is a number of at least 1e-6, not {self.temperature}")
        if self.top_k < 0 or self.seed < 0:
            raise ValueError(f"top_k and seed are at least 0, not {self.top_k} and {self.seed}")
        if not 0 <= self.top_p <= 1:
            raise ValueError(f"top_p is a share, from 0 to 1, not {self.top_p}")


@dataclass(frozen=True)
class Batching:
    """Size of the batches, which does not affect translations.

    Attributes:
        sentences: sentences per batch.
        tokens: maximum source tokens per batch, with padding; used if ``sentences`` is None. By default
            `Engine.batch_tokens`.
    """

    sentences: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for an empty batch."""
        number = self.tokens if self.sentences is None else self.sentences
        if number is not None and number < 1:
            raise ValueError("a batch has at least one sentence, and at least one token")

    def batches(self, sources: Sequence[Sequence[int]], indices: Sequence[int], tokens: int) -> list[list[int]]:
        """Cut the ``indices`` of sources into batches of similar length, longest first, of at most ``tokens``."""
        order = sorted(indices, key=lambda index: len(sources[index]), reverse=True)
        if self.sentences is not None:
            return [order[start : start + self.sentences] for start in range(0, len(order), self.sentences)]
        runs = cut_by_padded_tokens([len(sources[index]) + 1 for index in order], tokens)  # and the end symbol
        return [order[start:stop] for start, stop in runs]


DEFAULT_BATCHING = Batching()


@dataclass(frozen=True)
class TranslationRequest:
    """Requirements on translations in addition to the decoding settings.

    Attributes:
        n_best: number of translations per line.
        sampling: sample ``n_best`` translations instead of searching for the best.
        prefixes: beginning of the translation of each line; empty, or one per line.
        required: phrases that the translation of each line must contain; empty, or one list per line.
        forbidden: phrases that no translation may contain.
        attention: add an alignment to each translation.
        max_source_tokens: longer sources are cut, and the translations of their segments joined; by default the length
            of the longest source seen in training. Of documents, only the first tokens are read.
        split: translate each sentence of a line by itself: auto, always or never, see `splits_sentences`. auto does not
            split a line with a prefix or required phrases; in documents, no line of a text that has some.
        glossary: terms; where one occurs in a sentence, its translation must appear.
        keep: kinds of spans of a sentence that must appear unchanged: tags, urls, emails, numbers.
        first_line: number of the first line, from 1, for messages and for the seeds of samples.
        before: for models with context, the lines before the first one; as many as `Tokenizer.context` are used.
        source_language, target_language: codes of the languages to translate from and to, for models with several.
    """

    n_best: int = 1
    sampling: Sampling | None = None
    prefixes: Sequence[str] = ()
    required: Sequence[Sequence[str]] = ()
    forbidden: Sequence[str] = ()
    attention: bool = False
    max_source_tokens: int | None = None
    split: Split = "auto"
    glossary: Glossary | None = None
    keep: Sequence[Kind] = ()
    first_line: int = 1
    before: Sequence[str] = ()
    source_language: str | None = None
    target_language: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for values out of range, TypeError for a string or iterator instead of a list of strings."""
        if self.split not in get_args(Split) or not set(self.keep) <= set(get_args(Kind)):
            splits, kinds = (", ".join(get_args(choices)) for choices in (Split, Kind))
            raise ValueError(f"split is one of {splits}, and keep holds some of {kinds}")
        if min(self.n_best, self.first_line, 1 if self.max_source_tokens is None else self.max_source_tokens) < 1:
            raise ValueError("n_best, max_source_tokens and first_line are at least 1")
        lists = (self.prefixes, self.required, self.forbidden, self.keep, self.before, *self.required)
        if any(isinstance(texts, str) or not isinstance(texts, Collection) for texts in lists):
            raise TypeError(
                "prefixes, forbidden, keep and before are lists of strings, and required is a list of lists of them; "
                "none is an iterator, or one string, each character of which would be a phrase"
            )


@dataclass(frozen=True)
class Translation:
    """One translation of a line. For a line that was cut, numbers are sums over its segments.

    Attributes:
        log_prob: natural logarithm of the probability, with end symbols. NaN from CTranslate2, as is the score.
        score: value by which the search ranks: log_prob divided by the length penalty, plus the coverage penalty.
        pieces: tokens; for a line that was cut those of all segments, with an end symbol between them.
        token_log_probs: log-probability of each piece and of the last end symbol.
        alignment: index of the source piece with the highest attention for each piece, if requested; the end symbol of
            the source is left out.
        hit_limit: the translation, or that of a segment, was ended by the maximum length.
        parts: number of segments.
        is_short: the translation, or that of a segment, is so short for its source that text was probably lost.
        is_unsatisfied: the requested prefix, a required phrase, or what ``missing`` names is missing.
        missing: translations of terms, and spans, that it should contain and does not.
        is_cut: only the first tokens of the source were read.
        is_unknown: at least half of the tokens of the source, or of a segment, are unknown to the model.
        is_mended: the output of the model was no tree over the source words and was repaired; None for text.
        source_pieces: source tokens of all segments, which the indices of ``alignment`` refer to.
        source_is_context: for each of them, True if it is of the sentences before the segment.
        probabilities: of each label, or for choice of each answer by its number; {} for a number, None for text.
    """

    text: str
    log_prob: float = math.nan
    score: float = math.nan
    pieces: tuple[str, ...] = ()
    token_log_probs: tuple[float, ...] = ()
    alignment: tuple[int, ...] | None = None
    hit_limit: bool = False
    parts: int = 1
    is_short: bool = False
    is_unsatisfied: bool = False
    is_cut: bool = False
    is_unknown: bool = False
    is_mended: bool | None = None
    source_pieces: tuple[str, ...] | None = None
    source_is_context: tuple[bool, ...] = ()
    missing: tuple[str, ...] = ()
    probabilities: dict[str, float] | None = None


@dataclass(frozen=True)
class Segment:
    """A line, or a part of a long line, that is translated at once.

    Attributes:
        line: index of the line.
        ids: source tokens, with those of the sentences before it.
        words: number of words.
        context: number of tokens of the sentences before it.
        number: index of the segment within its line.
        wanted: terms and spans of the source, which the search does not require.
        enforced: those that it requires.
        ends_word: no letter or digit may follow the prefix directly.
        is_cut: the line goes on after its last segment.
    """

    line: int
    ids: list[int]
    words: int
    context: int = 0
    number: int = 0
    prefix: Ids = ()
    required: tuple[Ids, ...] = ()
    wanted: tuple[Wanted, ...] = ()
    enforced: tuple[Wanted, ...] = ()
    ends_word: bool = False
    is_cut: bool = False

    @property
    def phrases(self) -> list[tuple[Ids, ...]]:
        """Phrases that the search requires, each as alternatives."""
        return [*((phrase,) for phrase in self.required), *(wanted.phrases for wanted in self.enforced)]
