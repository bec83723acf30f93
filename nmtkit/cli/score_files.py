"""`nmtkit score --hypothesis`: check, score and compare files of one or more systems.

    files, or a test set by name --read_texts--> Texts --score_files--> warnings, then tables and JSON

The first system is the baseline of comparisons.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmtkit import console
from nmtkit.corpora.corpus import local_text, open_corpus
from nmtkit.corpora.download import Downloader
from nmtkit.corpora.sacrebleu_sets import PREFIX
from nmtkit.errors import DataError
from nmtkit.evaluation.checks import text_faults
from nmtkit.evaluation.comet import Comet
from nmtkit.evaluation.metric_names import METRICS, comparable_to, left_out
from nmtkit.evaluation.metrics import Scorer, resamples_for
from nmtkit.evaluation.rouge import ROUGE_METRICS, Rouge
from nmtkit.evaluation.scores import Score, scores_as_json, shown_score
from nmtkit.evaluation.significance import SIGNIFICANT_BELOW, Method, PairedResult, as_json, paired_test, testable
from nmtkit.files import as_text, write_atomically
from nmtkit.json_toml import json_line, write_json
from nmtkit.lines import any_text

Differences = dict[tuple[Method, str], dict[str, PairedResult]]
"""Results of each system by test and metric; the first system is the baseline."""


@dataclass(frozen=True)
class Texts:
    """The lines of systems, references and source.

    Attributes:
        systems: lines of each system by the name of its file; the first system is the baseline of comparisons.
        references: all lines of each reference.
        sources: source lines, if given.
        test_set: name and language pair for sacreBLEU's signature, if the references are one of its test sets.
    """

    systems: dict[str, list[str]]
    references: list[list[str]]
    sources: list[str] | None
    test_set: tuple[str, str] | None = None


def read_texts(
    hypotheses: list[Path],
    references: list[Path],
    source: Path | None,
    test_set: str | None,
    languages: tuple[str | None, str | None],
    mirror: Path | None,
) -> Texts:
    """Read all files, or fetch the test set.

    Args:
        references: empty if there is a test set.
        languages: source and target language of the test set.

    Raises:
        DataError: a file cannot be read or is empty, or the numbers of lines differ.
    """
    for option, paths in (("--hypothesis", hypotheses), ("--reference", references)):
        if len(set(paths)) < len(paths):
            raise DataError(f"the same file is given twice as {option}; give each once")
    for path in hypotheses:
        if any(path.resolve() == reference.resolve() for reference in references):
            console.log.warning("%s is the hypothesis and a reference, so its scores say nothing", path)
    systems = {as_text(path): _lines(path) for path in hypotheses}
    sources = None if source is None else _lines(source)
    named = {str(path): _lines(path) for path in references}
    signature_name = None
    if test_set is not None:
        source_language, target_language = map(str, languages)
        with console.transfers() as report:
            downloader = Downloader(mirror, progress=report)
            corpus = open_corpus(test_set, source_language, target_language, downloader)
            sources = list(corpus.source.open())
            named = {f"the reference of {test_set}": list(corpus.target.open())}
        if test_set.startswith(PREFIX):
            signature_name = (test_set.removeprefix(PREFIX), f"{source_language}-{target_language}")
    compared = named if sources is None else {**named, str(source or f"the source of {test_set}"): sources}
    for system, lines in systems.items():
        for name, others in compared.items():
            if len(others) != len(lines):
                raise DataError(
                    f"{system} has {console.counted(len(lines), 'line')}, but {name} has {len(others)}; "
                    "line n of one must belong to line n of the other"
                )
        if not lines:
            raise DataError(f"{system} and {next(iter(named))} are empty: there is nothing to score")
    return Texts(systems, list(named.values()), sources, signature_name)


def _lines(path: Path) -> list[str]:
    return list(local_text(path).open())


def score_files(
    texts: Texts,
    text: str,
    target_language: str | None,
    *,
    metrics: list[str] | None,
    rouge: Rouge,
    resamples: int | None,
    paired: list[Method],
    trials: int | None,
    comet: Comet | None,
    sentences: Path | None,
    json_file: Path | None,
) -> None:
    """Warn of suspicious lines, compute the scores, print tables, and write the requested files.

    Args:
        metrics: None for all that are possible.
        rouge: the settings of ROUGE.
        resamples: bootstrap resamples for the intervals; None decides by the number of lines.
        paired: the significance tests of the systems' differences from the first system.
        trials: number of trials of these tests; None for sacreBLEU's defaults.

    Raises:
        DataError: a metric is unknown or cannot be computed, a line cannot be scored, or a test is for no metric.
    """
    scorer = Scorer(texts.references, target_language=target_language, text=text, test_set=texts.test_set, rouge=rouge)
    possible = scorer.possible(metrics)
    tests = [(method, metric) for method in paired for metric in testable(method, scorer.tested(metrics))]
    for system, lines in texts.systems.items():
        for fault in text_faults(
            lines,
            texts.references,
            sources=texts.sources,
            target_language=target_language,
            text=text,
            metrics=possible,
            name=system,
        ):
            console.log.warning("%s: %s", system, fault)
    resamples = resamples_for(len(texts.references[0]), resamples)
    scores = {system: scorer.score(lines, possible, resamples=resamples) for system, lines in texts.systems.items()}
    line_scores = {}
    if sentences is not None:
        line_scores = {system: scorer.sentence_scores(lines, possible) for system, lines in texts.systems.items()}
    if comet is not None:
        _add_comet(texts, comet, scores, line_scores)
    differences: Differences = {}
    with console.progress("comparing", len(tests)) as advance:
        for done, (method, metric) in enumerate(tests):
            advance(done, note=f"{method}, {metric}")
            differences[method, metric] = paired_test(scorer, texts.systems, metric, method, trials=trials)
    missing = {}
    if metrics is None:
        every = left_out(target_language=target_language, text=text)
        missing = {name: reason for name, reason in every.items() if name in METRICS}
    # The files first, and the longest last: a reader that has seen enough ends the command.
    if json_file is not None:
        content = {system: scores_as_json(entries) for system, entries in scores.items()}
        for (method, metric), results in differences.items():
            baseline = next(iter(results))
            for system, result in results.items():
                if (entry := as_json(result, baseline)) is not None:
                    content[system][metric].setdefault("paired", {})[method] = entry
        write_json(json_file, content)
    if sentences is not None:
        _write_sentences(sentences, texts, line_scores)
    print_scores(scores, missing, of="system")
    if differences:
        print_differences(differences)


def _add_comet(
    texts: Texts, comet: Comet, scores: dict[str, dict[str, Score]], line_scores: dict[str, list[dict[str, float]]]
) -> None:
    # `score` refuses --comet without --source or --test-set.
    assert texts.sources is not None
    if len(texts.references) > 1:
        console.log.warning("COMET uses only the first of %d references", len(texts.references))
    for system, lines in texts.systems.items():
        scores[system]["comet"], comet_scores = comet.score(texts.sources, lines, texts.references[0])
        for entry, score in zip(line_scores.get(system, []), comet_scores, strict=False):
            entry["comet"] = score


def _write_sentences(path: Path, texts: Texts, line_scores: dict[str, list[dict[str, float]]]) -> None:
    """Write a line of JSON for each line of each system, with its texts and scores.

    Where neither system nor references have text, as between documents, the scores are null; ROUGE counts such lines.
    """
    with write_atomically(path) as file:
        for system, lines in texts.systems.items():
            for number, (hypothesis, found) in enumerate(zip(lines, line_scores[system], strict=True)):
                entry: dict[str, Any] = {"system": system, "line": number + 1}
                scores: dict[str, float | None] = dict(found)
                if texts.sources is not None:
                    entry["source"] = texts.sources[number]
                entry["hypothesis"] = hypothesis
                entry["references"] = [reference[number] for reference in texts.references]
                if not any_text(hypothesis, *entry["references"]):
                    scores |= dict.fromkeys(found.keys() - ROUGE_METRICS.keys())
                file.write(f"{json_line({**entry, 'scores': scores})}\n")


def print_scores(scores: dict[str, dict[str, Score]], missing: dict[str, str], *, of: str = "test") -> None:
    """Print a table of scores, then signatures with advice on comparisons, and the metrics left out.

    Args:
        of: title of the first column, for the keys of ``scores``.
    """

    def interval(metric: str, score: Score) -> str:
        if score.interval is None:
            return ""
        return f"{shown_score(metric, score.interval.mean)} ± {shown_score(metric, score.interval.half_width)}"

    short = _short_names(scores)
    all_scores = [(short[name], metric, score) for name, entries in scores.items() for metric, score in entries.items()]
    rows = [
        [name, metric, shown_score(metric, score.score), interval(metric, score)] for name, metric, score in all_scores
    ]
    signatures = dict.fromkeys((metric, score.signature) for _, metric, score in all_scores)
    # Not as a column, which would be too wide for 80 characters.
    notes = [f"  {name}  {metric}  {score.details}" for name, metric, score in all_scores if score.details]
    notes = ["Precisions and lengths:", *notes, ""] if notes else []
    notes.append("Signature of each metric, and what it may be compared to:")
    notes += [f"  {metric}  {signature}\n      {comparable_to(metric)}" for metric, signature in signatures]
    intervals = [score.interval for _, _, score in all_scores if score.interval is not None]
    if intervals:
        first = intervals[0]
        notes.append(f"Intervals: 95 %, of {first.resamples} bootstrap resamples of the lines, seed {first.seed}.")
    notes += [f"  {metric}  left out: {reason}" for metric, reason in missing.items()]
    console.print_table("Scores", [of, "metric", "score", "95 % interval"], rows, notes=notes)


def print_differences(differences: Differences) -> None:
    """Print the differences of the systems from the first one for each metric, with a p-value per test."""
    methods = list(dict.fromkeys(method for method, _ in differences))
    metrics = list(dict.fromkeys(metric for _, metric in differences))
    baseline, *others = systems = next(iter(differences.values()))
    short = _short_names(systems)
    rows = []
    for system in others:
        for metric in metrics:
            results = {m: differences[m, metric][system] for m in methods if (m, metric) in differences}
            p_values = {m: f"{found.p_value:.4f}{'*' if found.is_significant else ''}" for m, found in results.items()}
            first = next(iter(results.values()))
            cells = [p_values.get(method, "") for method in methods]
            rows.append([short[system], metric, f"{first.score:.2f}", f"{first.difference:+.2f}", *cells])
    notes = [f"* p < {SIGNIFICANT_BELOW}: chance alone would hardly make so large a difference on these lines."]
    notes += [
        f"  {method}, {metric}  {next(iter(results.values())).signature}"
        for (method, metric), results in differences.items()
    ]
    columns = ["system", "metric", "score", "difference", *(f"p, {method}" for method in methods)]
    console.print_table(f"Differences from {short[baseline]}", columns, rows, notes=notes)


def _short_names(names: Iterable[str]) -> dict[str, str]:
    """Return the file names of paths, or the paths themselves if two file names are the same."""
    files = {name: Path(name).name for name in names}
    return files if len(set(files.values())) == len(files) else {name: name for name in files}
