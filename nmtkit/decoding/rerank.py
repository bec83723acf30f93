"""N-best lists: read them, score them with models, sort them, and write them in their original format.

There are two formats. The first has a line of JSON per source line, as `nmtkit translate --n-best N --json` writes it:

    {"line": 1, "source": "...", "hypotheses": [{"text": "...", "score": -1.2, ...}, ...]}

The second has a line per hypothesis, NUMBER ||| HYPOTHESIS ||| FEATURES ||| SCORE. Moses and Marian count source lines
from 0 in it, `nmtkit translate --n-best N` from 1. Every source line has one list, which may be empty.
"""

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nmtkit.decoding.engine import SURROGATE
from nmtkit.decoding.forced import ForcedScore
from nmtkit.decoding.lengths import LengthPenalty
from nmtkit.errors import DataError
from nmtkit.lines import LineReader

_DIVIDER = re.compile(r"(?<= )\|\|\|(?= |$)")
_OWN_FEATURES = re.compile(r"(?:(?:^| )(?:original|model\d+)= [-+.\w]+)+$")


@dataclass(frozen=True)
class Candidate:
    """A hypothesis of a list.

    Attributes:
        text: the hypothesis, one line.
        tokens: its tokens, of JSON; () if they are not stated.
        score: score in the list; None if there is none.
        fields: JSON object of the hypothesis; in the format with |||, "features" and the fields after the score
            ("further").
    """

    text: str
    score: float | None
    fields: dict[str, Any]
    tokens: tuple[str, ...] = ()


@dataclass(frozen=True)
class NBestList:
    """The hypotheses of a source line.

    Attributes:
        location: file and line, for messages.
        source: the source line.
        fields: JSON object of the list; None in the format with |||.
        number: number of the source line in the format with |||, as counted there; None for JSON.
        before: for models with context, the source lines before, of the same document.
    """

    location: str
    source: str
    candidates: tuple[Candidate, ...]
    fields: dict[str, Any] | None = None
    number: int | None = None
    before: tuple[str, ...] = ()


@dataclass(frozen=True)
class Feature:
    """Contribution of a model or an ensemble to the score of a hypothesis: weight * log P / penalty(tokens).

    Attributes:
        score: function that returns one score per pair of source and hypothesis, given the pairs before each
            (`ForcedDecoder.score`). With `is_reversed`, the pairs are hypothesis and source: the channel model of
            Yee et al. 2019 (arXiv 1908.05731).
        num_begin: number of tokens with which every target begins, such as a language; the penalty counts them, too.
        as_read: function that returns a hypothesis, given its text and its tokens, as the model reads it.
    """

    score: Callable[[list[tuple[str, str]], list[list[tuple[str, str]]]], list[ForcedScore]]
    weight: float
    penalty: LengthPenalty
    num_begin: int = 0
    as_read: Callable[[str, Sequence[str]], str] = lambda text, tokens: text
    is_reversed: bool = False


@dataclass(frozen=True)
class Ranked:
    """A hypothesis with its new score.

    Attributes:
        score: the weighted sum.
        model_scores: log P / penalty(tokens) of each feature, without its weight.
        is_cut: a model saw only the first tokens of the source or the hypothesis.
    """

    candidate: Candidate
    score: float
    model_scores: tuple[float, ...]
    is_cut: bool


def rerank(
    lists: Iterable[NBestList], features: Sequence[Feature], *, original_weight: float = 0.0
) -> list[list[Ranked]]:
    """Return the hypotheses of each list, best first; hypotheses of equal score keep their order.

    Args:
        original_weight: weight of the scores in the list.

    Raises:
        DataError: ``original_weight`` is not 0, and a hypothesis has no score in the list.
    """
    lists = list(lists)  # `read_lists` gives an iterator
    for entry in lists:
        if original_weight and any(candidate.score is None for candidate in entry.candidates):
            raise DataError(
                f"{entry.location}: a hypothesis has no numeric score; correct the list, or give the original score no "
                "weight"
            )
    before = [[(line, "") for line in entry.before] for entry in lists for _ in entry.candidates]
    scored = []
    for feature in features:
        pairs = [
            (entry.source, feature.as_read(each.text, each.tokens)) for entry in lists for each in entry.candidates
        ]
        scored.append(feature.score([pair[::-1] for pair in pairs] if feature.is_reversed else pairs, before))
    by_hypothesis = zip(*scored, strict=True)
    rankings = []
    for entry in lists:
        ranked = []
        for candidate in entry.candidates:
            forced = next(by_hypothesis)
            scores = [
                score.log_prob / feature.penalty(len(score.ids) + feature.num_begin)
                for feature, score in zip(features, forced, strict=True)
            ]
            original = original_weight * candidate.score if original_weight and candidate.score is not None else 0.0
            weighted = (feature.weight * score for feature, score in zip(features, scores, strict=True))
            is_cut = any(score.is_cut for score in forced)
            ranked.append(Ranked(candidate, math.fsum([original, *weighted]), tuple(scores), is_cut))
        rankings.append(sorted(ranked, key=lambda hypothesis: -hypothesis.score))
    return rankings


# ---- reading


def read_lists(
    lines: LineReader, sources: Sequence[str] | None = None, count_from: int | None = None
) -> Iterator[NBestList]:
    """Return all lists of a file, one per source line; the first line decides the format.

    Args:
        sources: source lines, for the format with ||| only.
        count_from: number of the first source line, 0 or 1; None: detected from the first line of the list.

    Raises:
        DataError: a line has neither format, the sources are missing, the sources or their first number are not needed,
            or the number is unclear.
    """
    rest = iter(lines)
    first = next(rest, None)
    rest = itertools.chain([] if first is None else [first], rest)
    if first is not None and first.lstrip().startswith("{"):
        if sources is not None:
            raise DataError(f"{lines.name}: its JSON lines contain the source lines; remove --source")
        if count_from is not None:
            raise DataError(f"{lines.name}: its JSON lines are not numbered; remove --count-from")
        return _json_lists(lines.name, rest)
    if sources is None and first is not None:
        raise DataError(f"{lines.name}: is not JSON, so it contains no source lines; give their file with --source")
    if first is None or sources is None:
        return _divided_lists(lines.name, rest, sources or [], 0)
    if count_from is None:
        _, count_from, candidate = _parse_divided(f"{lines.name}, line 1", first)
        # With any other first number, the first source lines may have no hypotheses; a wrong guess would pair each
        # hypothesis with the source of another line.
        is_own = candidate.fields["features"].startswith("log_prob=")
        if not (count_from == 0 or (count_from == 1 and is_own)):
            raise DataError(
                f"{lines.name}: begins with line {count_from}; give the first source line's number, --count-from 0 or 1"
            )
    return _divided_lists(lines.name, rest, sources, count_from)


def _json_lists(name: str, lines: Iterable[str]) -> Iterator[NBestList]:
    for number, line in enumerate(lines, start=1):
        location = f"{name}, line {number}"
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{location}: not valid JSON ({error}); each line holds one list") from None
        if not (isinstance(fields, dict) and isinstance(fields.get("source"), str)):
            raise DataError(f'{location}: not a JSON object with a string "source"')
        hypotheses = fields.get("hypotheses")
        if not isinstance(hypotheses, list):
            raise DataError(f'{location}: "hypotheses" is not a list')
        candidates = []
        for hypothesis in hypotheses:
            if not (isinstance(hypothesis, dict) and isinstance(hypothesis.get("text"), str)):
                raise DataError(f'{location}: a hypothesis is not an object with a string "text"')
            score = hypothesis.get("score")
            # In Python, True and False are ints.
            if score is not None and (isinstance(score, bool) or not isinstance(score, (int, float))):
                raise DataError(f'{location}: the "score" of a hypothesis is not a number')
            stated = hypothesis.get("tokens")
            tokens = stated if isinstance(stated, list) and all(isinstance(each, str) for each in stated) else ()
            text = _one_line(hypothesis["text"])
            candidates.append(Candidate(text, _number(score), hypothesis, tuple(map(_one_line, tokens))))
        yield NBestList(location, _one_line(fields["source"]), tuple(candidates), fields)


def _divided_lists(name: str, lines: Iterable[str], sources: Sequence[str], count_from: int) -> Iterator[NBestList]:
    """Yield the lists of the format with |||, and empty lists for source lines without hypotheses."""

    def empty(numbers: Iterable[int]) -> Iterator[NBestList]:
        for number in numbers:
            yield NBestList(f"{name}, source line {number}", sources[number - count_from], (), number=number)

    expected, end = count_from, count_from + len(sources)
    parsed = (_parse_divided(f"{name}, line {number}", line) for number, line in enumerate(lines, start=1))
    for number, group in itertools.groupby(parsed, key=lambda entry: entry[1]):
        entries = list(group)
        location = entries[0][0]
        if number < expected:
            raise DataError(
                f"{location}: found source line {number} where {expected} or later was expected; keep the hypotheses "
                "of a line together, and the lines in order"
            )
        if number >= end:
            raise DataError(
                f"{location}: source line {number} does not exist (there are {len(sources)}, from {count_from}); give "
                "the source that the list was made from"
            )
        yield from empty(range(expected, number))
        source = sources[number - count_from]
        yield NBestList(location, source, tuple(entry[2] for entry in entries), number=number)
        expected = number + 1
    yield from empty(range(expected, end))


def _parse_divided(location: str, line: str) -> tuple[str, int, Candidate]:
    """Parse NUMBER ||| TEXT, optionally with ||| SCORE, or with ||| FEATURES ||| SCORE and further fields."""
    number, *fields = _DIVIDER.split(line, maxsplit=1)
    if fields:
        # In lists of `translate`, a translation may hold ||| between blanks, too.
        text, is_own, rest = fields[0].rpartition(" ||| log_prob=")
        fields = [text, *_DIVIDER.split(f"log_prob={rest}")] if is_own else _DIVIDER.split(fields[0])
    number, *fields = (field.strip(" ") for field in (number, *fields))  # U+3000, say, may be part of a hypothesis
    if not fields or not re.fullmatch(r"[0-9]{1,15}", number):
        raise DataError(f"{location}: not of the form NUMBER ||| TEXT ||| FEATURES ||| SCORE, nor a JSON object")
    features, score = fields[1:3] if len(fields) > 2 else ("", fields[1] if len(fields) == 2 else None)
    value = _number(score)
    if score is not None and value is None:
        raise DataError(f"{location}: its score, {score[:40]!r}, is not a number")
    return location, int(number), Candidate(fields[0], value, {"features": features, "further": fields[3:]})


def _number(value: str | int | float | None) -> float | None:
    """Return a finite number; None for anything else."""
    try:
        number = math.nan if value is None else float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _one_line(text: str) -> str:
    """Return a JSON string as one line: line ends become blanks, and halves of surrogate pairs U+FFFD."""
    return SURROGATE.sub("\ufffd", text.replace("\n", " "))


# ---- writing


def as_lines(entry: NBestList, ranking: Sequence[Ranked]) -> list[str]:
    """Return a list in its new order, in its original format, with both the new and the old score.

    JSON: `score` is the new score, `original_score` the old one, `model_scores` those of the features. The format with
    ||| has the new score in place of the old one, and `original= ` and `model1= ` after the features, or in place of
    those of an earlier reranking.
    """
    if entry.fields is not None:
        hypotheses = []
        for ranked in ranking:
            old, scores = ranked.candidate, list(ranked.model_scores)
            new = {"score": ranked.score, "original_score": old.score, "model_scores": scores}
            hypotheses.append({**old.fields, **new})
        return [SURROGATE.sub("\ufffd", json.dumps({**entry.fields, "hypotheses": hypotheses}, ensure_ascii=False))]
    lines = []
    for ranked in ranking:
        old = ranked.candidate
        features = [_OWN_FEATURES.sub("", old.fields["features"])]
        if old.score is not None:
            features.append(f"original= {old.score:g}")
        features += [f"model{number}= {score:.6f}" for number, score in enumerate(ranked.model_scores, start=1)]
        fields = [str(entry.number), old.text, " ".join(features).strip(), f"{ranked.score:.6f}"]
        lines.append(" ||| ".join([*fields, *old.fields["further"]]))
    return lines
