"""N-best lists: read, scored anew by models, put into a new order, and written in the form they came in.

A list is either a line of JSON for each source line, as `nmtkit translate --n-best N --json` writes it,

    {"line": 1, "source": "...", "hypotheses": [{"text": "...", "score": -1.2, ...}, ...]}

or lines of fields divided by |||, NUMBER ||| HYPOTHESIS ||| FEATURES ||| SCORE, as Moses, Marian and their rescoring
tools have them, which count source lines from 0, and `nmtkit translate --n-best N`, which counts from 1. Every source
line gives one list, be it an empty one.
"""

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nmtkit.decoding.forced import ForcedScore
from nmtkit.decoding.search import LengthPenalty
from nmtkit.errors import DataError
from nmtkit.files import LineReader


@dataclass(frozen=True)
class Candidate:
    """A hypothesis of a list.

    Attributes:
        text: one line.
        score: the list's own; None where it gives none.
        fields: the JSON object it came in; or of the other form "features", if there are any, and what follows the
            score as "further".
    """

    text: str
    score: float | None
    fields: dict[str, Any]


@dataclass(frozen=True)
class NBestList:
    """The hypotheses of a source line.

    Attributes:
        place: how messages call it: the file and the line.
        source: one line.
        fields: the JSON object it came in; None for the other form.
        number: of the source line in the other form, as it is counted there; None for JSON.
    """

    place: str
    source: str
    candidates: tuple[Candidate, ...]
    fields: dict[str, Any] | None = None
    number: int | None = None


@dataclass(frozen=True)
class Feature:
    """What a model, or an ensemble, adds to the score of a hypothesis: weight * log P / penalty(tokens).

    Attributes:
        score: gives one score for each pair of source and hypothesis (see ForcedDecoder.score).
    """

    score: Callable[[list[tuple[str, str]]], list[ForcedScore]]
    weight: float
    penalty: LengthPenalty


@dataclass(frozen=True)
class Ranked:
    """A hypothesis with its new score.

    Attributes:
        score: the weighted sum.
        model_scores: log P / penalty(tokens) by each feature, without its weight.
        is_cut: whether a model saw only the first tokens of the source or the hypothesis.
    """

    candidate: Candidate
    score: float
    model_scores: tuple[float, ...]
    is_cut: bool


def rerank(
    lists: Sequence[NBestList],
    features: Sequence[Feature],
    *,
    original_weight: float = 0.0,
) -> list[list[Ranked]]:
    """The hypotheses of each list, best first; equal scores stay in the order of the list.

    Args:
        original_weight: of the list's own scores.

    Raises:
        DataError: a hypothesis has no score of its own, but that has a weight.
    """
    pairs = [(entry.source, candidate.text) for entry in lists for candidate in entry.candidates]
    originals = [_original(entry, candidate, original_weight) for entry in lists for candidate in entry.candidates]
    columns = []
    is_cut = [False] * len(pairs)
    for feature in features:
        found = feature.score(pairs)
        columns.append([score.log_prob / feature.penalty(len(score.ids)) for score in found])
        is_cut = [before or score.is_cut for before, score in zip(is_cut, found, strict=True)]
    rows = iter(zip(is_cut, originals, *columns, strict=True))
    rankings = []
    for entry in lists:
        ranked = []
        for candidate in entry.candidates:
            cut, original, *scores = next(rows)
            weighted = (feature.weight * score for feature, score in zip(features, scores, strict=True))
            ranked.append(Ranked(candidate, math.fsum([original, *weighted]), tuple(scores), cut))
        rankings.append(sorted(ranked, key=lambda hypothesis: -hypothesis.score))
    return rankings


def _original(entry: NBestList, candidate: Candidate, weight: float) -> float:
    """The weighted score of the list; 0 without a weight, whatever stands there."""
    if weight == 0:
        return 0.0
    if candidate.score is None:
        raise DataError(
            f"{entry.place}: a hypothesis has no numeric score; correct the list, or give the original score no weight"
        )
    return weight * candidate.score


# ---- reading


def read_lists(
    lines: LineReader, sources: Sequence[str] | None = None, count_from: int | None = None
) -> Iterator[NBestList]:
    """All lists of a file, one for each source line; the first line tells the form.

    Args:
        sources: the source lines, which only the form with ||| needs.
        count_from: the number of the first source line, 0 or 1; None: as the first line of the list tells.

    Raises:
        DataError: a line is of neither form, the sources are missing or not needed, or it cannot be told from which
            number they are counted.
    """
    rest = iter(lines)
    first = next(rest, None)
    rest = itertools.chain([] if first is None else [first], rest)
    if first is not None and first.lstrip().startswith("{"):
        if sources is not None:
            raise DataError(f"{lines.name}: its JSON lines contain the source lines; remove --source")
        return _json_lists(lines.name, rest)
    if sources is None and first is not None:
        raise DataError(f"{lines.name}: is not JSON, so it contains no source lines; give their file with --source")
    if first is None or sources is None:
        return _divided_lists(lines.name, rest, sources or [], 0)
    if count_from is None:
        count_from = _count_from(lines.name, first)
    return _divided_lists(lines.name, rest, sources, count_from)


def _count_from(name: str, first: str) -> int:
    """0 for a list that begins with line 0, 1 for one of our own that begins with line 1.

    Another list may have nothing for its first lines, so of any other beginning nothing follows, and a wrong guess
    would pair each hypothesis with its neighbour's source.
    """
    _, number, candidate = _divided(f"{name}, line 1", first)
    if number == 0:
        return 0
    if number == 1 and candidate.fields["features"].startswith("log_prob="):
        return 1
    raise DataError(f"{name}: begins with line {number}; give the first source line's number, --count-from 0 or 1")


def _json_lists(name: str, lines: Iterable[str]) -> Iterator[NBestList]:
    for number, line in enumerate(lines, start=1):
        place = f"{name}, line {number}"
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{place}: not valid JSON ({error}); each line holds one list") from None
        if not (isinstance(fields, dict) and isinstance(fields.get("source"), str)):
            raise DataError(f'{place}: not a JSON object with a string "source"')
        hypotheses = fields.get("hypotheses")
        if not isinstance(hypotheses, list):
            raise DataError(f'{place}: "hypotheses" is not a list')
        candidates = []
        for hypothesis in hypotheses:
            if not (isinstance(hypothesis, dict) and isinstance(hypothesis.get("text"), str)):
                raise DataError(f'{place}: a hypothesis is not an object with a string "text"')
            score = hypothesis.get("score")
            if score is not None and (isinstance(score, bool) or not isinstance(score, (int, float))):
                raise DataError(f'{place}: the "score" of a hypothesis is not a number')
            candidates.append(Candidate(_one_line(hypothesis["text"]), _number(score), hypothesis))
        yield NBestList(place, _one_line(fields["source"]), tuple(candidates), fields)


def _divided_lists(name: str, lines: Iterable[str], sources: Sequence[str], count_from: int) -> Iterator[NBestList]:
    """Lists of the form with |||, and empty ones for the source lines that have none."""

    def empty(numbers: Iterable[int]) -> Iterator[NBestList]:
        for number in numbers:
            yield NBestList(f"{name}, source line {number}", sources[number - count_from], (), number=number)

    expected, end = count_from, count_from + len(sources)
    parsed = (_divided(f"{name}, line {number}", line) for number, line in enumerate(lines, start=1))
    for number, group in itertools.groupby(parsed, key=lambda entry: entry[1]):
        entries = list(group)
        place = entries[0][0]
        if number < expected:
            raise DataError(
                f"{place}: found source line {number} where {expected} or later was expected; keep the hypotheses of a "
                "line together, and the lines in order"
            )
        if number >= end:
            raise DataError(
                f"{place}: source line {number} does not exist (there are {len(sources)}, from {count_from}); give "
                "the source that the list was made from"
            )
        yield from empty(range(expected, number))
        source = sources[number - count_from]
        yield NBestList(place, source, tuple(entry[2] for entry in entries), number=number)
        expected = number + 1
    yield from empty(range(expected, end))


def _divided(place: str, line: str) -> tuple[str, int, Candidate]:
    """Number ||| text, number ||| text ||| score, or number ||| text ||| features ||| score and whatever follows."""
    number, *fields = [field.strip(" ") for field in line.split("|||")]
    if not fields or not re.fullmatch(r"[0-9]{1,15}", number):
        raise DataError(f"{place}: not of the form NUMBER ||| TEXT ||| FEATURES ||| SCORE, nor a JSON object")
    text, features, score, further = fields[0], "", None, fields[3:]
    if len(fields) == 2:
        score = fields[1]
    elif len(fields) > 2:
        features, score = fields[1:3]
    value = None if score is None else _number(score)
    if score is not None and value is None:
        raise DataError(f"{place}: its score, {score[:40]!r}, is not a number")
    return place, int(number), Candidate(text, value, {"features": features, "further": further})


def _number(value: str | int | float | None) -> float | None:
    """None for what is no number, infinite or too large."""
    try:
        number = math.nan if value is None else float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _one_line(text: str) -> str:
    """A text of JSON as a line: line ends become blanks, and halves of characters U+FFFD, as they cannot be written."""
    return _whole_characters(text.replace("\n", " "))


def _whole_characters(text: str) -> str:
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


# ---- writing


def as_lines(entry: NBestList, ranking: Sequence[Ranked]) -> list[str]:
    """A list in its new order, in the form it came in; the old score is kept beside the new one.

    JSON: `score` is the new score, `original_score` the old one, `model_scores` those of the features. The other form
    has the new score last, and `original= ` and `model1= ` after the features.
    """
    if entry.fields is None:
        return [_as_divided(entry.number, ranked) for ranked in ranking]
    hypotheses = [_as_object(ranked) for ranked in ranking]
    return [_whole_characters(json.dumps({**entry.fields, "hypotheses": hypotheses}, ensure_ascii=False))]


def _as_object(ranked: Ranked) -> dict[str, Any]:
    added = {
        "score": ranked.score,
        "original_score": ranked.candidate.score,
        "model_scores": list(ranked.model_scores),
    }
    return {**ranked.candidate.fields, **added}


def _as_divided(number: int | None, ranked: Ranked) -> str:
    features = [ranked.candidate.fields["features"]]
    if ranked.candidate.score is not None:
        features.append(f"original= {ranked.candidate.score:g}")
    features += [f"model{place}= {score:.6f}" for place, score in enumerate(ranked.model_scores, start=1)]
    fields = [str(number), ranked.candidate.text, " ".join(features).strip(), f"{ranked.score:.6f}"]
    return " ||| ".join([*fields, *ranked.candidate.fields["further"]])
