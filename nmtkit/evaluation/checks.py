"""What is wrong with a text before it is scored: the slips that make a score mean something else than it seems to.

    hypotheses, references, sources --findings--> [Finding], each told in one line

Nothing here changes a text or a score.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from nmtkit.console import listed
from nmtkit.evaluation.evalb import evaluate
from nmtkit.text import leftovers
from nmtkit.text.scripts import Script, bleu_tokenizer, is_unspaced_text

_SPACED = re.compile(r"(?:^| )[.,](?= |$)")
"""Full stop or comma as a word of its own. Others, such as "!", stand after a blank in plain French."""
_ATTACHED = re.compile(r"\w[.,](?= |$)")
_WORD = re.compile(r"[^\W\d_]+")
_TOKENIZED_SHARE = 0.1
"""Of the lines, above which a text is taken to be tokenised (or, where it should be, not to be)."""
_MIN_VOTES = 3
_TIMES_AS_FREQUENT = 4
"""A word says that a line is in one language if that side's text has it so much more often than the other's."""

_ADVICE = {
    "subword marks": "join the subwords first, as `nmtkit translate` does",
    "entities": "undo the tokeniser's escaping first",
    "unknown words": "the vocabulary lacks characters of the text",
    "markup": "give text without markup; files that end in .sgm or .xml are read as what they are",
}


@dataclass(frozen=True)
class Finding:
    """Something odd about a text.

    Attributes:
        kind: ``empty``, ``copied_source``, ``wrong_language``, ``reference_is_source``, ``tokenized``,
            ``not_tokenized``, ``unspaced`` or a kind of ``text/leftovers.py``; of trees ``not_counted``.
        what: in words.
        lines: where, counted from 1.
        advice: what to do.
    """

    kind: str
    what: str
    lines: tuple[int, ...]
    advice: str

    def __str__(self) -> str:
        return f"{self.what} in {listed(self.lines)}; {self.advice}"


def findings(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    sources: Sequence[str] | None,
    target_language: str | None,
    text: str,
) -> list[Finding]:
    """All that is odd about a system's output, the most telling first.

    Args:
        hypotheses: the lines that are to be scored.
        references: one or more sets of as many lines.
        sources: as many lines; without them copies and a wrong language of the same script are not found.
        target_language: without it a wrong script is not found.
        text: ``plain`` or ``tokenized``, as it is said to be; anything else is trees.
    """
    if text not in ("plain", "tokenized"):
        return _not_counted(hypotheses, references[0])
    of_line = list(zip(*references, strict=True))
    copied = _numbers(
        sources is not None
        and _WORD.search(hypothesis) is not None
        and hypothesis.split() == sources[number].split()
        and all(reference.split() != sources[number].split() for reference in of_line[number])
        for number, hypothesis in enumerate(hypotheses)
    )
    empty = _numbers(
        not hypothesis.strip() and any(reference.strip() for reference in of_line[number])
        for number, hypothesis in enumerate(hypotheses)
    )
    foreign = [line for line in _foreign(hypotheses, of_line, sources, target_language) if line not in set(copied)]
    found = [
        Finding("empty", "no translation", empty, "a line was lost, or the model said nothing"),
        Finding("copied_source", "the source instead of a translation", copied, "see what the model was trained on"),
        Finding(
            "wrong_language",
            f"not {target_language or 'the language of the reference'}",
            tuple(foreign),
            "see that it is the right file, and the right direction",
        ),
        *_reference_is_source(references, sources),
        *_leftovers(hypotheses, references, sources),
        *_tokenization(hypotheses, references, text),
        *_unspaced(references[0], target_language, text),
    ]
    return [finding for finding in found if finding.lines]


def _not_counted(parses: Sequence[str], gold: Sequence[str]) -> list[Finding]:
    """The sentences that EVALB leaves out of its scores."""
    remarks = evaluate(gold, parses).remarks
    if not remarks:
        return []
    what = f"EVALB's error or skipped sentences (the first: {remarks[0][1]})"
    lines = tuple(line for line, _ in remarks)
    return [Finding("not_counted", what, lines, "they count in no score; see that the words are those of gold")]


def _numbers(are_so: Iterable[bool]) -> tuple[int, ...]:
    return tuple(number for number, is_so in enumerate(are_so, start=1) if is_so)


def _reference_is_source(references: Sequence[Sequence[str]], sources: Sequence[str] | None) -> list[Finding]:
    """The wrong side of a test set given as its reference."""
    if sources is None:
        return []
    equal = [
        _numbers(one.split() == other.split() for one, other in zip(lines, sources, strict=True))
        for lines in references
    ]
    advice = "the wrong side of the test set was given"
    return [
        Finding("reference_is_source", "the reference is the source", lines, advice)
        for lines in equal
        if len(lines) > len(sources) / 2
    ]


def _leftovers(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], sources: Sequence[str] | None
) -> list[Finding]:
    """What neither references nor sources have anywhere: theirs may be tokenised and escaped, too."""
    expected = {what for lines in (*references, sources or ()) for line in lines for what in leftovers.leftovers(line)}
    lines: dict[str, list[int]] = {kind: [] for kind in leftovers.KINDS}
    example: dict[str, str] = {}
    for number, hypothesis in enumerate(hypotheses):
        new = {what: kind for what, kind in leftovers.leftovers(hypothesis).items() if what not in expected}
        for what, kind in new.items():
            example.setdefault(kind, what)
        for kind in set(new.values()):
            lines[kind].append(number + 1)
    return [
        Finding(kind, f"{kind} such as {example[kind]}", tuple(of_kind), _ADVICE[kind])
        for kind, of_kind in lines.items()
        if of_kind
    ]


def _tokenization(hypotheses: Sequence[str], references: Sequence[Sequence[str]], text: str) -> list[Finding]:
    """Text that is split into words though it should be plain, or the other way round."""
    if text == "plain":
        spaced = _where(_SPACED, hypotheses)
        if len(spaced) <= _TOKENIZED_SHARE * len(hypotheses):
            return []
        both = len(_where(_SPACED, references[0])) > _TOKENIZED_SHARE * len(hypotheses)
        advice = "say --text tokenized" if both else "detokenise it; the reference is plain"
        return [Finding("tokenized", "punctuation split off as a tokeniser does", spaced, advice)]
    attached = _where(_ATTACHED, hypotheses)
    if len(attached) <= _TOKENIZED_SHARE * len(hypotheses) + len(_where(_ATTACHED, references[0])):
        return []
    return [Finding("not_tokenized", "punctuation not split off", attached, "tokenise it as the reference is")]


def _unspaced(reference: Sequence[str], target_language: str | None, text: str) -> list[Finding]:
    """Text without blanks between words whose language is not stated, so that BLEU looks for blanks in it."""
    if text != "plain" or bleu_tokenizer(target_language or "") != "13a":
        return []
    lines = _numbers(is_unspaced_text(line) for line in reference)
    if len(lines) <= len(reference) / 2:
        return []
    what = "a reference without blanks between words, of which BLEU makes one word (tok:13a)"
    return [Finding("unspaced", what, lines, "state its language, such as --target-language zh, ja or th")]


def _where(pattern: re.Pattern[str], lines: Sequence[str]) -> tuple[int, ...]:
    return _numbers(pattern.search(line) is not None for line in lines)


def _foreign(
    hypotheses: Sequence[str],
    of_line: Sequence[Sequence[str]],
    sources: Sequence[str] | None,
    target_language: str | None,
) -> Iterable[int]:
    """The lines in another script than the language's, or in the language of the source."""
    script = Script(target_language or "")  # of no language nothing is foreign
    is_like_source = _like_source(of_line, sources)

    def is_odd(line: str) -> bool:
        return script.is_foreign(line) or is_like_source(line)

    for number, hypothesis in enumerate(hypotheses):
        if is_odd(hypothesis) and not any(is_odd(reference) for reference in of_line[number]):
            yield number + 1


def _like_source(of_line: Sequence[Sequence[str]], sources: Sequence[str] | None) -> Callable[[str], bool]:
    """Whether more words of a line belong to the language of the source than to that of the references.

    No language is known here: which words are whose is learned from the very texts that are given.
    """
    if sources is None:
        return lambda line: False
    in_sources = Counter(word for line in sources for word in _words(line))
    in_references = Counter(word for lines in of_line for line in lines for word in _words(line))
    share = sum(in_sources.values()) / max(1, sum(in_references.values()))

    def is_like(line: str) -> bool:
        votes = 0
        against = 0
        for word in _words(line):
            ours, theirs = in_references[word] * share, in_sources[word]
            votes += theirs > _TIMES_AS_FREQUENT * ours
            against += ours > _TIMES_AS_FREQUENT * theirs
        return votes >= _MIN_VOTES and votes > against

    return is_like


def _words(line: str) -> list[str]:
    return _WORD.findall(line.lower())
