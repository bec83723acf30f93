"""Scores of translations, each with a signature that says exactly what was compared.

    hypotheses, references --processing of the metric--> lines --sacreBLEU--> {metric: Score}

A metric reads the text in one of three forms. Which work gives that form depends on how the text comes:

    form        metrics                              of plain text                        of tokenised text
    plain       sacrebleu, chrf2, ter                as it is                             Moses detokeniser
    tokens      bleu-tokenized, bleu-tokenized-lc    Moses tokeniser                      as it is
    compounds   bleu-compound-split                  punctuation, Moses, split compounds  split compounds

Every number comes from sacreBLEU, which only this module and ``text/sacrebleu_sets.py`` import; but of trees, which
have one metric, EVALB (``evalb.py``).
"""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from nmtkit.config import TREES
from nmtkit.errors import DataError
from nmtkit.evaluation.evalb import CUTOFF_LENGTH, evaluate, right_branching_parses
from nmtkit.text import moses

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

METRICS = ("sacrebleu", "chrf2", "ter", "bleu-tokenized", "bleu-tokenized-lc", "bleu-compound-split")

EVALB = "evalb"
"""The metric of trees, which has several scores."""

TextKind = Literal["plain", "tokenized", "trees", "tagged-trees"]
_Form = Literal["plain", "tokens", "compounds"]

_FORM_OF_METRIC: dict[str, _Form] = {
    "sacrebleu": "plain",
    "chrf2": "plain",
    "ter": "plain",
    "bleu-tokenized": "tokens",
    "bleu-tokenized-lc": "tokens",
    "bleu-compound-split": "compounds",
}

_COMPARABLE_TO = {
    "sacrebleu": "other sacreBLEU scores of the same signature; not the paper's 27.3",
    "chrf2": "other chrF2 scores of the same signature",
    "ter": "other TER scores of the same signature; lower is better",
    "bleu-tokenized": "multi-bleu.perl and fairseq scores on the same tokens, cased; not sacreBLEU",
    "bleu-tokenized-lc": "multi-bleu.perl and fairseq scores on the same tokens, lower-cased; not sacreBLEU",
    "bleu-compound-split": "the paper's 27.3 and 28.4 (newstest2014 en-de), get_ende_bleu.sh; not sacreBLEU",
}

RIGHT_BRANCHING = "evalb-f1-right-branching"
_PARSING_COMPARABLE_TO = {
    "evalb-f1": "EVALB's F1 by COLLINS.prm on the same sentences; on section 23 of the WSJ, the paper's Table 4",
    "evalb-precision": "EVALB's labelled precision by COLLINS.prm on the same sentences",
    "evalb-recall": "EVALB's labelled recall by COLLINS.prm on the same sentences",
    "evalb-complete-match": "EVALB's complete match by COLLINS.prm on the same sentences",
    "evalb-tagging-accuracy": "EVALB's tagging accuracy; 0 for parses without tags (text = trees)",
    RIGHT_BRANCHING: "the F1 above: what a parser has that makes every phrase go to the sentence's end",
}


@dataclass(frozen=True)
class Score:
    """One number and what it takes to reproduce it.

    Attributes:
        score: 0 to 100, higher is better; for TER 0 is perfect, lower is better and there is no upper bound.
        signature: sacreBLEU's, and ``|text:...`` where the text was processed before.
        details: of BLEU the n-gram precisions, brevity penalty and lengths in tokens; "" of other metrics.
    """

    score: float
    signature: str
    details: str = ""


def score(
    hypotheses: list[str],
    references: list[str],
    *,
    target_language: str | None,
    text: TextKind,
    metrics: Sequence[str] | None = None,
) -> dict[str, Score]:
    """Scores translations line by line against one reference each.

    Args:
        hypotheses: the translations; a line may be empty.
        references: as many lines.
        target_language: selects the Moses rules, e.g. ``de``; without it nothing that needs Moses is computed.
        text: ``tokenized`` where both sides are already split into words, ``trees`` (tagged or not) where they are.
        metrics: names from METRICS; by default all that are possible, see ``left_out``. Or EVALB alone, whatever the
            text is said to be: of trees the default.

    Raises:
        DataError: there are no lines, the line counts differ, or a metric asked for is unknown or impossible.
    """
    if len(hypotheses) != len(references):
        raise DataError(
            f"the hypotheses have {len(hypotheses)} lines and the references {len(references)}: "
            "see that the two belong together and that neither is cut short"
        )
    if not hypotheses:
        raise DataError(
            "hypotheses and references have no lines: there is nothing to score; see that the files are right"
        )
    if text in TREES or (metrics is not None and EVALB in metrics):
        if metrics is not None and set(metrics) != {EVALB}:
            raise DataError(f"{EVALB} compares trees and no other metric does: ask for it alone")
        return _parsing_scores(hypotheses, references)
    names = _choose(metrics, left_out(target_language=target_language, text=text))

    scores: dict[str, Score] = {}
    for form in dict.fromkeys(_FORM_OF_METRIC[name] for name in names):
        process, label = _processing(form, text, target_language)
        lines, reference_lines = process(hypotheses), process(references)
        for name in names:
            if _FORM_OF_METRIC[name] == form:
                scores[name] = _measure(name, lines, [reference_lines], label)
    return {name: scores[name] for name in names}


def _parsing_scores(parses: list[str], gold: list[str]) -> dict[str, Score]:
    """What EVALB says of trees in brackets, one a line; and of right-branching ones, to compare with."""
    found, baseline = evaluate(gold, parses), evaluate(gold, right_branching_parses(gold))
    scores = {}
    for totals, end, length in ((found.all, "", "all"), (found.short, f"-{CUTOFF_LENGTH}", f"<={CUTOFF_LENGTH}")):
        signature = f"evalb|params:COLLINS|length:{length}|sentences:{totals.sentences}"
        brackets = f"{totals.matched} of {totals.gold} gold and {totals.test} parsed brackets"
        scores[f"evalb-f1{end}"] = Score(
            totals.f1, signature, f"{brackets}; {totals.errors} error and {totals.skipped} skipped sentences"
        )
        scores[f"evalb-precision{end}"] = Score(totals.precision, signature)
        scores[f"evalb-recall{end}"] = Score(totals.recall, signature)
        scores[f"evalb-complete-match{end}"] = Score(totals.complete_match, signature)
        scores[f"evalb-tagging-accuracy{end}"] = Score(totals.tagging_accuracy, signature)
    scores[RIGHT_BRANCHING] = Score(baseline.all.f1, f"evalb|params:COLLINS|length:all|sentences:{len(gold)}")
    return scores


def sentence_utility(metric: str) -> Callable[[str, str], float]:
    """A function that scores one hypothesis by one reference: sacreBLEU's sentence score, 0 to 100.

    Args:
        metric: ``chrf2`` or ``sacrebleu`` (with the orders that a short sentence has).

    Raises:
        DataError: it is neither.
    """
    sentence: Metric
    match metric:
        case "chrf2":
            from sacrebleu.metrics.chrf import CHRF

            sentence = CHRF()
        case "sacrebleu":
            from sacrebleu.metrics.bleu import BLEU

            sentence = BLEU(effective_order=True)
        case _:
            raise DataError(f"{metric!r} is no utility of sentences: use chrf2 or sacrebleu")
    return lambda hypothesis, reference: float(sentence.sentence_score(hypothesis, [reference]).score)


def left_out(*, target_language: str | None, text: TextKind) -> dict[str, str]:
    """The metrics that cannot be computed on such text, each with the reason and what to do."""
    reasons = {}
    for name in METRICS:
        form = _FORM_OF_METRIC[name]
        if form == "compounds" and target_language is None:
            reasons[name] = "it is defined for German only: state the target language (--target-language de)"
        elif form == "compounds" and target_language is not None and moses.language_code(target_language) != "de":
            reasons[name] = f"it is defined for German only, not for {target_language}: use bleu-tokenized"
        elif form == "tokens" and text == "plain" and target_language is None:
            reasons[name] = "the Moses tokeniser needs the target language (e.g. --target-language de)"
        elif form == "plain" and text == "tokenized" and target_language is None:
            reasons[name] = (
                "tokenised text has to be detokenised first, and the Moses detokeniser needs the target language "
                "(e.g. --target-language de)"
            )
    return reasons


def comparable_to(metric: str) -> str:
    """What a score of this metric may be compared with, in one short phrase.

    Raises:
        DataError: the metric is unknown.
    """
    if metric.startswith(f"{EVALB}-"):
        return _PARSING_COMPARABLE_TO[metric.removesuffix(f"-{CUTOFF_LENGTH}")]
    _require_known(metric)
    return _COMPARABLE_TO[metric]


def scores_as_json(scores: dict[str, Score]) -> dict[str, dict[str, Any]]:
    """The form of ``scores.json`` for one test set: ``{metric: {"score", "signature"[, "details"]}}``."""
    return {
        name: {"score": one.score, "signature": one.signature} | ({"details": one.details} if one.details else {})
        for name, one in scores.items()
    }


def _choose(metrics: Sequence[str] | None, impossible: dict[str, str]) -> list[str]:
    if metrics is None:
        return [name for name in METRICS if name not in impossible]
    for name in metrics:
        _require_known(name)
        if name in impossible:
            raise DataError(f"{name} cannot be computed: {impossible[name]}")
    return list(dict.fromkeys(metrics))


def _require_known(metric: str) -> None:
    if metric not in METRICS:
        known = (*METRICS, EVALB)
        nearest = difflib.get_close_matches(metric.lower(), known, n=1, cutoff=0.0)[0]
        raise DataError(f"unknown metric {metric!r}: did you mean {nearest!r}? The metrics are {', '.join(known)}")


def _processing(
    form: _Form, text: TextKind, target_language: str | None
) -> tuple[Callable[[list[str]], list[str]], str]:
    """The work that turns text into the form a metric reads, and the label of that work for the signature."""
    language = "" if target_language is None else moses.language_code(target_language)

    def as_it_is(lines: list[str]) -> list[str]:
        return lines

    def detokenized(lines: list[str]) -> list[str]:
        return moses.detokenize(lines, language)

    def tokenized(lines: list[str]) -> list[str]:
        return moses.tokenize(lines, language)

    def split(lines: list[str]) -> list[str]:
        return [moses.split_compounds(line) for line in lines]

    def normalized_tokenized_split(lines: list[str]) -> list[str]:
        return split(tokenized([moses.replace_unicode_punctuation(line) for line in lines]))

    match form, text:
        case ("plain", "tokenized"):
            return detokenized, f"detokenized-moses-{language}-sacremoses-{moses.version()}"
        case ("tokens", "plain"):
            return tokenized, f"moses-{language}-sacremoses-{moses.version()}"
        case ("compounds", "plain"):
            label = f"unicode-punctuation+moses-{language}+compound-split-sacremoses-{moses.version()}"
            return normalized_tokenized_split, label
        case ("compounds", "tokenized"):
            return split, "compound-split"
    return as_it_is, ""


def _measure(metric: str, hypotheses: list[str], references: list[list[str]], label: str) -> Score:
    """One metric on text of its form; ``references`` holds one list of lines for each set of references."""
    match metric:
        case "sacrebleu":
            return _bleu(hypotheses, references, label=label)
        case "chrf2":
            return _chrf(hypotheses, references, label=label)
        case "ter":
            return _ter(hypotheses, references, label=label)
        case "bleu-tokenized-lc":
            return _bleu(hypotheses, references, tokenize="none", lowercase=True, label=label)
        case _:
            return _bleu(hypotheses, references, tokenize="none", label=label)


def _bleu(
    hypotheses: list[str],
    references: list[list[str]],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    label: str = "",
) -> Score:
    from sacrebleu.metrics.bleu import BLEU

    # force: only silences the remark on text that looks tokenised, it changes no score
    metric = BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
    result = metric.corpus_score(hypotheses, references)
    details = (
        f"{result.prec_str} (BP = {result.bp:.3f} ratio = {result.ratio:.3f} "
        f"hyp_len = {result.sys_len} ref_len = {result.ref_len})"
    )
    return Score(result.score, _signature(metric, label), details)


def _chrf(hypotheses: list[str], references: list[list[str]], *, word_order: int = 0, label: str = "") -> Score:
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF(word_order=word_order)
    return Score(metric.corpus_score(hypotheses, references).score, _signature(metric, label))


def _ter(hypotheses: list[str], references: list[list[str]], *, label: str = "") -> Score:
    from sacrebleu.metrics.ter import TER

    metric = TER()
    return Score(metric.corpus_score(hypotheses, references).score, _signature(metric, label))


def _signature(metric: "Metric", label: str) -> str:
    signature = metric.get_signature().format()
    return f"{signature}|text:{label}" if label else signature
