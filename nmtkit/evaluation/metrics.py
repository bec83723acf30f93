"""Scores of translations, each with a signature that says exactly what was compared.

    hypotheses, references --processing of the metric--> lines --sacreBLEU--> {metric: Score}

A metric reads the text in one of three forms. Which work gives that form depends on how the text comes:

    form        metrics                                  of plain text                        of tokenised text
    plain       sacrebleu (-lc, -intl), chrf2(++), ter   as it is                             Moses detokeniser
    tokens      bleu-tokenized, bleu-tokenized-lc        Moses tokeniser                      as it is
    compounds   bleu-compound-split                      punctuation, Moses, split compounds  split compounds

Every number comes from sacreBLEU, which only this module, ``significance.py`` and ``corpora/sacrebleu_sets.py`` import;
but of trees, which have one metric, EVALB (``evalb.py``).
"""

import dataclasses
import difflib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nmtkit.config.schema import TREES
from nmtkit.console import counted
from nmtkit.errors import DataError
from nmtkit.evaluation.evalb import CUTOFF_LENGTH, Totals, evaluate, right_branching_parses
from nmtkit.files import read_json
from nmtkit.text import moses
from nmtkit.text.scripts import bleu_tokenizer, is_unspaced, scripts_of

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric, Signature

METRICS = ("sacrebleu", "chrf2", "chrf2++", "ter", "bleu-tokenized", "bleu-tokenized-lc", "bleu-compound-split")
"""What is computed where nothing else is asked for."""
ON_REQUEST = ("sacrebleu-lc", "sacrebleu-intl")
"""What is computed only where it is asked for by name."""
RESAMPLES = 1000
"""Of the bootstrap that gives a confidence interval; sacreBLEU's own number."""
MOST_LINES_RESAMPLED = 10_000
"""Of more lines there are intervals only where they are asked for, as they take minutes."""
LINES_AT_ONCE = 10_000
"""Lines whose n-grams are in memory together: sacreBLEU keeps those of all references, 50 kB per line of 20 words."""

EVALB = "evalb"
"""The metric of trees, which has several scores."""
BRACKET_SCORES = ("evalb-f1", "evalb-precision", "evalb-recall")
"""Those that have intervals and paired tests, and that a sentence has by itself."""

TextKind = Literal["plain", "tokenized", "trees", "tagged-trees"]
_Form = Literal["plain", "tokens", "compounds", "trees"]

_METRICS_OF_FORM: dict[_Form, tuple[str, ...]] = {
    "plain": ("sacrebleu", "sacrebleu-lc", "sacrebleu-intl", "chrf2", "chrf2++", "ter"),
    "tokens": ("bleu-tokenized", "bleu-tokenized-lc"),
    "compounds": ("bleu-compound-split",),
    "trees": BRACKET_SCORES,
}
_FORM_OF_METRIC = {name: form for form, names in _METRICS_OF_FORM.items() for name in names}

_COMPARABLE_TO = {
    "sacrebleu": "other sacreBLEU scores of the same signature; not the paper's 27.3",
    "sacrebleu-lc": "other sacreBLEU scores of the same signature, lower-cased (case:lc)",
    "sacrebleu-intl": "other sacreBLEU scores of the same signature, tokenised by mteval-v14's rules (tok:intl)",
    "chrf2": "other chrF2 scores of the same signature",
    "chrf2++": "other chrF2++ scores of the same signature (nw:2); not chrF2",
    "ter": "other TER scores of the same signature; lower is better",
    "bleu-tokenized": "multi-bleu.perl and fairseq scores on the same tokens, cased; not sacreBLEU",
    "bleu-tokenized-lc": "multi-bleu.perl and fairseq scores on the same tokens, lower-cased; not sacreBLEU",
    "bleu-compound-split": "the paper's 27.3 and 28.4 (newstest2014 en-de), get_ende_bleu.sh; not sacreBLEU",
    "comet": "other COMET scores of the same model and reference; its scale is the model's own",
}

RIGHT_BRANCHING = "evalb-f1-right-branching"
_EVALB_COMPARABLE_TO = {
    "evalb-f1": "EVALB's F1 by COLLINS.prm on the same sentences; on section 23 of the WSJ, the paper's Table 4",
    "evalb-precision": "EVALB's labelled precision by COLLINS.prm on the same sentences",
    "evalb-recall": "EVALB's labelled recall by COLLINS.prm on the same sentences",
    "evalb-complete-match": "EVALB's complete match by COLLINS.prm on the same sentences",
    "evalb-tagging-accuracy": "EVALB's tagging accuracy; 0 for parses without tags (text = trees)",
    RIGHT_BRANCHING: "the F1 above: what a parser has that makes every phrase go to the sentence's end",
}


@dataclass(frozen=True)
class Interval:
    """Where the score of other test sentences of the same kind would lie, 95 times in 100: mean +- half_width.

    Attributes:
        mean: of the scores of the resampled test sets.
        half_width: half the distance between the scores that leave 2.5 % of them below and above.
        resamples: how many test sets were drawn from the lines.
        seed: of the random numbers, as sacreBLEU states it (SACREBLEU_SEED).
    """

    mean: float
    half_width: float
    resamples: int
    seed: str


@dataclass(frozen=True)
class Score:
    """One number and what it takes to reproduce it.

    Attributes:
        score: 0 to 100, higher is better; for TER 0 is perfect, lower is better and there is no upper bound. (COMET has
            a scale of its own.)
        signature: sacreBLEU's, and ``|text:...`` where the text was processed before.
        details: of BLEU the n-gram precisions, brevity penalty and lengths in tokens; "" of other metrics.
        interval: None where it was not asked for.
    """

    score: float
    signature: str
    details: str = ""
    interval: Interval | None = None


class Scorer:
    """One or more references, ready to score any number of systems.

    Each form of the references is made once, and their n-grams are counted once for each metric.
    """

    def __init__(
        self,
        references: Sequence[list[str]],
        *,
        target_language: str | None,
        text: TextKind,
        test_set: tuple[str, str] | None = None,
        tokenizer: str | None = None,
    ) -> None:
        """Args:
        references: one list of lines for each set of references, all of the same length.
        target_language: selects the Moses rules, e.g. ``de``; without it nothing that needs Moses is computed.
        tokenizer: sacreBLEU's for BLEU of plain text; by default that of the target language.
        text: ``tokenized`` where all text is already split into words, ``trees`` (tagged or not) where it is.
        test_set: name and language pair for the signature, where the references are a test set of sacreBLEU.

        Raises:
            DataError: there are no references or no lines, or the line counts differ.
        """
        if not references:
            raise DataError("there is no reference; give at least one")
        for number, lines in enumerate(references[1:], start=2):
            if len(lines) != len(references[0]):
                raise DataError(
                    f"reference 1 has {counted(len(references[0]), 'line')} and reference {number} has "
                    f"{len(lines)}: see that the two belong together and that neither is cut short"
                )
        self.references = [list(lines) for lines in references]
        self.target_language = target_language
        self.text = text
        self._tokenizer = tokenizer or bleu_tokenizer(target_language or "")
        self._test_set = test_set
        self._references_in_form: dict[_Form, list[list[str]]] = {}
        self._metrics: dict[str, Metric] = {}

    def score(
        self, hypotheses: list[str], metrics: Sequence[str] | None = None, *, resamples: int = 0
    ) -> dict[str, Score]:
        """Scores one system.

        Args:
            hypotheses: as many lines as the references have; a line may be empty.
            metrics: names from METRICS or ON_REQUEST; by default all of METRICS that are possible, see ``left_out``. Or
                EVALB alone, whatever the text is said to be: of trees the default.
            resamples: of the bootstrap for the confidence intervals; 0: none.

        Raises:
            DataError: there are no lines, the line counts differ, or a metric asked for is unknown or impossible.
        """
        self.check_lines(hypotheses)
        names = self.possible(metrics)
        if names == [EVALB]:
            return self._parsing_scores(hypotheses, resamples)
        scores: dict[str, Score] = {}
        for form in dict.fromkeys(_FORM_OF_METRIC[name] for name in names):
            lines = self._in_form(form, hypotheses)
            for name in names:
                if _FORM_OF_METRIC[name] == form:
                    scores[name] = self._measure(name, lines, resamples)
        return {name: scores[name] for name in names}

    def sentence_scores(self, hypotheses: list[str], metrics: Sequence[str] | None = None) -> list[dict[str, float]]:
        """The score of each line by itself, by each metric.

        BLEU of a line takes the orders that the line has (``eff:yes``); their mean is not BLEU of the text.

        Raises:
            DataError: as ``score``.
        """
        self.check_lines(hypotheses)
        scores: list[dict[str, float]] = [{} for _ in hypotheses]
        names = self.possible(metrics)
        if names == [EVALB]:
            found = evaluate(self.references[0], hypotheses).sentences
            return [{name: _of_brackets(name, one) for name in BRACKET_SCORES} for one in found]
        for name in names:
            form = _FORM_OF_METRIC[name]
            metric = _build(name, None, self._tokenizer, of_sentences=True)
            lines, references = self._in_form(form, hypotheses), self._of_references(form)
            for number, of_line in enumerate(zip(lines, *references, strict=True)):
                scores[number][name] = float(metric.sentence_score(of_line[0], of_line[1:]).score)
        return scores

    def sentence_quality(self, hypotheses: list[str]) -> tuple[str, list[float]]:
        """The score that puts lines in order, and that of each line.

        It is chrF2, as BLEU is 0 without a common phrase; of trees EVALB's F1, 0 of what EVALB does not count.
        """
        name = BRACKET_SCORES[0] if self.text in TREES else "chrf2"
        scores = self.sentence_scores(hypotheses, None if self.text in TREES else [name])
        return name, [of_line[name] for of_line in scores]

    def in_form_of(self, metric: str, lines: list[str]) -> list[str]:
        """The text as a metric reads it."""
        return self._in_form(_FORM_OF_METRIC[metric], lines)

    def metric(self, name: str) -> "Metric":
        """sacreBLEU's metric of that name, which knows the references."""
        if name not in self._metrics:
            self._metrics[name] = _build(name, self._of_references(_FORM_OF_METRIC[name]), self._tokenizer)
        return self._metrics[name]

    def signature(self, name: str, of_metric: "Signature") -> str:
        """sacreBLEU's signature of a metric, and what was done to the text before."""
        if self._test_set is not None:
            test, languages = self._test_set
            of_metric.update("test", test)
            of_metric.update("lang", languages)
        if name in BRACKET_SCORES:
            return f"{_evalb_signature(len(self.references[0]))}|{of_metric.format()}"
        _, label = _processing(_FORM_OF_METRIC[name], self.text, self.target_language)
        return f"{of_metric.format()}|text:{label}" if label else of_metric.format()

    def possible(self, metrics: Sequence[str] | None) -> list[str]:
        """The metrics asked for, each once; by default all of METRICS that are possible.

        Raises:
            DataError: one is unknown, or impossible on this text.
        """
        if self.text in TREES or (metrics is not None and EVALB in metrics):
            if metrics is not None and set(metrics) != {EVALB}:
                raise DataError(f"{EVALB} compares trees, unlike all other metrics; give it as the only metric")
            if len(self.references) > 1:
                raise DataError(f"{EVALB} compares with one gold tree per line; give a single reference")
            return [EVALB]
        impossible = left_out(target_language=self.target_language, text=self.text)
        if metrics is None:
            return [name for name in METRICS if name not in impossible]
        for name in metrics:
            _require_known(name)
            if name in impossible:
                raise DataError(f"{name} cannot be computed: {impossible[name]}")
        return list(dict.fromkeys(metrics))

    def check_lines(self, hypotheses: list[str]) -> None:
        """Raises DataError where a system has no lines, or not as many as the references."""
        if len(hypotheses) != len(self.references[0]):
            raise DataError(
                f"the hypotheses have {counted(len(hypotheses), 'line')} and the references {len(self.references[0])}: "
                "see that the two belong together and that neither is cut short"
            )
        if not hypotheses:
            raise DataError(
                "hypotheses and references have no lines: there is nothing to score; see that the files are right"
            )

    def _in_form(self, form: _Form, lines: list[str]) -> list[str]:
        process, _ = _processing(form, self.text, self.target_language)
        return process(lines)

    def _of_references(self, form: _Form) -> list[list[str]]:
        if form not in self._references_in_form:
            self._references_in_form[form] = [self._in_form(form, lines) for lines in self.references]
        return self._references_in_form[form]

    def _measure(self, name: str, lines: list[str], resamples: int) -> Score:
        """One metric on text of its form."""
        metric, statistics = self._statistics(name, lines)
        result = metric._aggregate_and_compute(statistics)
        interval = _interval(metric, statistics, resamples) if resamples > 1 else None
        details = ""
        if result.name == "BLEU":
            details = (
                f"{result.prec_str} (BP = {result.bp:.3f} ratio = {result.ratio:.3f} "
                f"hyp_len = {result.sys_len} ref_len = {result.ref_len})"
            )
        return Score(float(result.score), self.signature(name, metric.get_signature()), details, interval)

    def _statistics(self, name: str, lines: list[str]) -> tuple["Metric", list[Any]]:
        """Return the counts of each line, which do not depend on other lines, and a metric that adds them up."""
        if len(lines) <= LINES_AT_ONCE:
            metric = self.metric(name)
            return metric, metric._extract_corpus_statistics(lines, None)
        statistics: list[Any] = []
        for start in range(0, len(lines), LINES_AT_ONCE):
            part = slice(start, start + LINES_AT_ONCE)
            references = [of_set[part] for of_set in self._of_references(_FORM_OF_METRIC[name])]
            metric = _build(name, references, self._tokenizer)
            statistics += metric._extract_corpus_statistics(lines[part], None)
        return metric, statistics

    def _parsing_scores(self, parses: list[str], resamples: int) -> dict[str, Score]:
        """What EVALB says of trees in brackets, one a line; and of right-branching ones, to compare with."""
        gold = self.references[0]
        found, baseline = evaluate(gold, parses), evaluate(gold, right_branching_parses(gold))
        scores = {}
        for totals, end, length in ((found.all, "", "all"), (found.short, f"-{CUTOFF_LENGTH}", f"<={CUTOFF_LENGTH}")):
            signature = _evalb_signature(totals.sentences, length)
            brackets = f"{totals.matched} of {totals.gold} gold and {totals.test} parsed brackets"
            scores[f"evalb-f1{end}"] = Score(
                totals.f1, signature, f"{brackets}; {totals.errors} error and {totals.skipped} skipped sentences"
            )
            scores[f"evalb-precision{end}"] = Score(totals.precision, signature)
            scores[f"evalb-recall{end}"] = Score(totals.recall, signature)
            scores[f"evalb-complete-match{end}"] = Score(totals.complete_match, signature)
            scores[f"evalb-tagging-accuracy{end}"] = Score(totals.tagging_accuracy, signature)
        scores[RIGHT_BRANCHING] = Score(baseline.all.f1, _evalb_signature(len(gold)))
        if resamples > 1:
            counts = _bracket_counts(found.sentences)
            for name in BRACKET_SCORES:
                interval = _interval(self.metric(name), counts, resamples)
                scores[name] = dataclasses.replace(scores[name], interval=interval)
        return scores


class _Brackets:
    """One of BRACKET_SCORES, with that of sacreBLEU's Metric which its bootstrap and its tests use.

    Not a subclass, as sacreBLEU is imported late.
    """

    def __init__(self, name: str, gold: list[str]) -> None:
        self._name, self._gold = name, gold

    def _extract_corpus_statistics(self, parses: list[str], references: None) -> list[list[int]]:
        return _bracket_counts(evaluate(self._gold, parses).sentences)

    def _aggregate_and_compute(self, statistics: Iterable[Iterable[Any]]) -> Any:
        return self._compute_score_from_stats([sum(counts) for counts in zip(*statistics, strict=True)])

    def _compute_score_from_stats(self, statistics: Iterable[Any]) -> Any:
        from sacrebleu.metrics.base import Score as SacrebleuScore

        gold, test, matched = (round(float(count)) for count in statistics)
        return SacrebleuScore(self._name, _of_brackets(self._name, Totals(gold=gold, test=test, matched=matched)))

    def get_signature(self) -> "Signature":
        from sacrebleu.metrics.base import Signature

        return Signature({"num_refs": 1})


def _bracket_counts(sentences: Sequence[Totals]) -> list[list[int]]:
    return [[one.gold, one.test, one.matched] for one in sentences]


def _of_brackets(name: str, totals: Totals) -> float:
    """One of BRACKET_SCORES."""
    return float(getattr(totals, name.removeprefix("evalb-")))


def _evalb_signature(sentences: int, length: str = "all") -> str:
    return f"evalb|params:COLLINS|length:{length}|sentences:{sentences}"


def _interval(metric: "Metric", statistics: list[Any], resamples: int) -> "Interval":
    """The confidence interval that sacreBLEU's ``corpus_score(n_bootstrap=resamples)`` gives, to the last digit.

    That call holds all resamples in memory, and fails where their scores are partly numpy's numbers and partly
    Python's, as they are when some resamples have not one match (sacreBLEU 2.6).
    """
    import numpy as np

    seed = check_seed()
    generator = np.random.default_rng(None if seed == "none" else int(seed))
    table, size = np.array(statistics, dtype="float32"), len(statistics)
    found = [metric._compute_score_from_stats(table[generator.choice(size, size)].sum(0)) for _ in range(resamples)]
    if len({type(each.score) for each in found}) > 1:
        for each in found:
            each.score = float(each.score)
    found[0].estimate_ci(found)
    return Interval(float(found[0]._mean), float(found[0]._ci), resamples, seed)


def check_seed() -> str:
    """Returns SACREBLEU_SEED, which sacreBLEU draws its random numbers by; raises DataError where it is no seed."""
    seed = os.environ.get("SACREBLEU_SEED", "12345").lower()
    if seed != "none" and not re.fullmatch(r"\d+", seed, re.ASCII):
        raise DataError(f"the environment variable SACREBLEU_SEED is {seed!r}: set a whole number from 0, or unset it")
    return seed


def score(
    hypotheses: list[str],
    references: list[str],
    *,
    target_language: str | None,
    text: TextKind,
    metrics: Sequence[str] | None = None,
) -> dict[str, Score]:
    """Scores translations line by line against one reference each; see Scorer, which takes more references too."""
    return Scorer([references], target_language=target_language, text=text).score(hypotheses, metrics)


def sentence_utility(metric: str, target_language: str = "") -> Callable[[str, str], float]:
    """A function that scores one hypothesis by one reference: sacreBLEU's sentence score, 0 to 100.

    Equal ones have 100, which sacreBLEU denies some, such as empty ones.

    Args:
        metric: ``chrf2`` or ``sacrebleu`` (with the orders that a short sentence has).
        target_language: selects the tokenizer of ``sacrebleu``.

    Raises:
        DataError: it is neither.
    """
    if metric not in ("chrf2", "sacrebleu"):
        raise DataError(f"{metric!r} cannot score single sentences: use chrf2 or sacrebleu")
    sentence = _build(metric, None, bleu_tokenizer(target_language), of_sentences=True)

    def utility(hypothesis: str, reference: str) -> float:
        if hypothesis == reference:
            return 100.0
        return float(sentence.sentence_score(hypothesis, [reference]).score)

    return utility


def resamples_for(num_lines: int, asked: int | None = None) -> int:
    """How many resamples to take of a text for its intervals: as asked, else RESAMPLES, or 0 of a very long text."""
    if asked is not None:
        return asked
    return RESAMPLES if num_lines <= MOST_LINES_RESAMPLED else 0


def plain_text(lines: list[str], text: TextKind, language: str) -> list[str]:
    """Lines of either kind as plain text, as a reader or a learned metric expects them."""
    return moses.detokenize(lines, moses.language_code(language)) if text == "tokenized" else lines


def left_out(*, target_language: str | None, text: TextKind) -> dict[str, str]:
    """The metrics that cannot be computed on such text, each with the reason and what to do."""
    reasons = {}
    wordless = _without_words(target_language or "") if text == "plain" else ()
    for name in METRICS + ON_REQUEST:
        form = _FORM_OF_METRIC[name]
        if form == "compounds" and target_language is None:
            reasons[name] = "it is defined for German only: state the target language (--target-language de)"
        elif form == "compounds" and target_language is not None and moses.language_code(target_language) != "de":
            other = "sacrebleu" if wordless else "bleu-tokenized"
            reasons[name] = f"it is defined for German only, not for {target_language}: use {other}"
        elif name in wordless:
            reasons[name] = f"it needs blanks between words, which {target_language} does not have: use sacrebleu"
        elif form == "tokens" and text == "plain" and target_language is None:
            reasons[name] = "the Moses tokeniser needs the target language (e.g. --target-language de)"
        elif form == "plain" and text == "tokenized" and target_language is None:
            reasons[name] = (
                "tokenised text has to be detokenised first, and the Moses detokeniser needs the target language "
                "(e.g. --target-language de)"
            )
    return reasons


def _without_words(language: str) -> tuple[str, ...]:
    """Return the metrics that find no words in a language. TER splits Chinese and Japanese itself."""
    if not is_unspaced(language):
        return ()
    no_ter = () if "Han" in scripts_of(language) else ("ter",)
    return ("bleu-tokenized", "bleu-tokenized-lc", "sacrebleu-intl", *no_ter)


def single_scores(metrics: list[str]) -> list[str]:
    """What paired tests compare: the metrics themselves, of EVALB each of BRACKET_SCORES."""
    return list(BRACKET_SCORES) if metrics == [EVALB] else metrics


def comparable_to(metric: str) -> str:
    """What a score of this metric may be compared with, in one short phrase.

    Raises:
        DataError: the metric is unknown.
    """
    known = _COMPARABLE_TO | _EVALB_COMPARABLE_TO
    name = metric.removesuffix(f"-{CUTOFF_LENGTH}")
    if name not in known:
        _require_known(metric)
    return known[name]


def scores_as_json(scores: dict[str, Score]) -> dict[str, dict[str, Any]]:
    """The form of ``scores.json`` for one test set: ``{metric: {"score", "signature"[, "details"][, "interval"]}}``."""
    stated = {name: dataclasses.asdict(one) for name, one in scores.items()}
    return {name: {key: value for key, value in one.items() if value not in ("", None)} for name, one in stated.items()}


def read_scores(path: Path) -> dict[str, dict[str, Any]]:
    """Reads ``scores.json``; raises DataError where it is damaged."""
    interval = {"mean": float, "half_width": float, "resamples": int}
    score = {"score": float, "signature?": str, "details?": str, "interval?": interval}
    return read_json(path, {str: {str: score}})


def _require_known(metric: str) -> None:
    known = (*METRICS, *ON_REQUEST, EVALB)
    if metric.lower() == "comet":
        raise DataError("COMET needs a model: ask for it with --comet MODEL, such as --comet Unbabel/wmt22-comet-da")
    if metric not in known:
        nearest = difflib.get_close_matches(metric.lower(), known, n=1, cutoff=0.0)[0]
        raise DataError(f"unknown metric {metric!r}: did you mean {nearest!r}? The metrics are {', '.join(known)}")


def _processing(
    form: _Form, text: TextKind, target_language: str | None
) -> tuple[Callable[[list[str]], list[str]], str]:
    """The work that turns text into the form a metric reads, and the label of that work for the signature."""
    language = "" if target_language is None else moses.language_code(target_language)

    def split(lines: list[str]) -> list[str]:
        return [moses.split_compounds(line) for line in lines]

    def punctuated(lines: list[str]) -> list[str]:
        return [moses.replace_unicode_punctuation(line) for line in lines]

    match form, text:
        case ("plain", "tokenized"):
            label = f"detokenized-moses-{language}-sacremoses-{moses.version()}"
            return lambda lines: moses.detokenize(lines, language), label
        case ("tokens", "plain"):
            return lambda lines: moses.tokenize(lines, language), f"moses-{language}-sacremoses-{moses.version()}"
        case ("compounds", "plain"):
            label = f"unicode-punctuation+moses-{language}+compound-split-sacremoses-{moses.version()}"
            return lambda lines: split(moses.tokenize(punctuated(lines), language)), label
        case ("compounds", "tokenized"):
            return split, "compound-split"
    return lambda lines: lines, ""


def _build(name: str, references: list[list[str]] | None, tokenizer: str, *, of_sentences: bool = False) -> "Metric":
    """sacreBLEU's metric of that name, on text of its form; the tokenizer is that of BLEU of plain text."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    if name in BRACKET_SCORES:
        assert references is not None
        return _Brackets(name, references[0])  # type: ignore[return-value]
    match name:
        case "chrf2":
            return CHRF(references=references)
        case "chrf2++":
            return CHRF(word_order=2, references=references)
        case "ter":
            asian = tokenizer != "13a"  # sacreBLEU uses `asian_support` only together with `normalized`
            return TER(normalized=asian, asian_support=asian, references=references)
        case "sacrebleu" | "sacrebleu-lc":
            tokenize = tokenizer
        case "sacrebleu-intl":
            tokenize = "intl"
        case _:
            tokenize = "none"
    try:
        # force: only silences the remark on text that looks tokenised, it changes no score
        return BLEU(
            tokenize=tokenize,
            lowercase=name.endswith("-lc"),
            force=True,
            effective_order=of_sentences,
            references=references,
        )
    except RuntimeError as error:  # sacreBLEU's where MeCab or its dictionary is missing
        language = tokenize.removesuffix("-mecab")
        raise DataError(f"{name} with tok:{tokenize} needs MeCab; pip install 'nmtkit[{language}]'") from error
