"""`nmtkit score --hypothesis`: files of one or more systems, looked over, scored and compared.

files, or a test set by name --read_texts--> Texts --score_files--> warnings, then tables and JSON
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmtkit.cli.score_tables import print_differences, print_scores
from nmtkit.console import counted

if TYPE_CHECKING:
    from nmtkit.cli.score_tables import Differences
    from nmtkit.evaluation.comet import Comet
    from nmtkit.evaluation.metrics import Score, Scorer
    from nmtkit.evaluation.significance import Method


@dataclass(frozen=True)
class Texts:
    """All lines that belong to a scoring.

    Attributes:
        systems: the lines of each system, by the name of its file; the first is the baseline of comparisons.
        references: one or more sets.
        sources: None where no source was given.
        test_set: name and language pair as sacreBLEU states them, where the references are a test set of its.
    """

    systems: dict[str, list[str]]
    references: list[list[str]]
    sources: list[str] | None
    test_set: tuple[str, str] | None = None


@dataclass(frozen=True)
class ScoreRequest:
    """What is to be computed.

    Attributes:
        metrics: None: all that are possible.
        resamples: for the intervals; None: as many as the length of the text allows.
        paired: the tests of the systems' differences.
        trials: of these; None: sacreBLEU's numbers.
    """

    text: str
    target_language: str | None
    metrics: list[str] | None
    resamples: int | None
    paired: "list[Method]"
    trials: int | None


def read_texts(
    hypotheses: list[Path],
    references: list[Path],
    source: Path | None,
    test_set: str | None,
    languages: tuple[str | None, str | None],
    mirror: Path | None,
) -> Texts:
    """Reads all files, or fetches the test set.

    Args:
        references: none where there is a test set.
        languages: of the source and the target of the test set.

    Raises:
        DataError: one cannot be read, there are no lines, or not equally many of all.
    """
    from nmtkit.errors import DataError
    from nmtkit.files import as_text

    for option, paths in (("--hypothesis", hypotheses), ("--reference", references)):
        if len(set(paths)) < len(paths):
            raise DataError(f"the same file is given twice as {option}; give each once")
    systems = {as_text(path): _lines(path) for path in hypotheses}
    sources: list[str] | None
    stated = None
    if test_set is not None:
        sources, reference, stated = _test_set(test_set, str(languages[0]), str(languages[1]), mirror)
        named = {f"the reference of {test_set}": reference}
    else:
        sources = None if source is None else _lines(source)
        named = {str(path): _lines(path) for path in references}
    compared = named if sources is None else {**named, str(source or f"the source of {test_set}"): sources}
    for system, lines in systems.items():
        for name, others in compared.items():
            if len(others) != len(lines):
                raise DataError(
                    f"{system} has {counted(len(lines), 'line')}, but {name} has {len(others)}; "
                    "line n of one must belong to line n of the other"
                )
        if not lines:
            raise DataError(f"{system} and {next(iter(named))} are empty: there is nothing to score")
    return Texts(systems, list(named.values()), sources, stated)


def score_files(
    texts: Texts, asked: ScoreRequest, comet: "Comet | None", *, sentences: Path | None, json_file: Path | None
) -> None:
    """Warns of what is odd, then scores, prints tables and writes what was asked for.

    Raises:
        DataError: a metric is unknown or cannot be computed.
    """
    from nmtkit import console
    from nmtkit.evaluation.checks import text_faults
    from nmtkit.evaluation.metrics import METRICS, Scorer, left_out, resamples_for, scores_as_json
    from nmtkit.files import write_json

    scorer = Scorer(texts.references, target_language=asked.target_language, text=asked.text, test_set=texts.test_set)
    metrics = scorer.possible(asked.metrics)
    for system, lines in texts.systems.items():
        for fault in text_faults(
            lines,
            texts.references,
            sources=texts.sources,
            target_language=asked.target_language,
            text=asked.text,
            metrics=metrics,
        ):
            console.log.warning("%s: %s", system, fault)
    resamples = resamples_for(len(texts.references[0]), asked.resamples)
    scores = {system: scorer.score(lines, metrics, resamples=resamples) for system, lines in texts.systems.items()}
    of_lines = {}
    if sentences is not None:
        of_lines = {system: scorer.sentence_scores(lines, metrics) for system, lines in texts.systems.items()}
    if comet is not None:
        _add_comet(texts, comet, scores, of_lines)
    differences = _differences(texts, scorer, asked, metrics)
    missing = {}
    if asked.metrics is None:
        every = left_out(target_language=asked.target_language, text=asked.text)
        missing = {name: reason for name, reason in every.items() if name in METRICS}
    print_scores(scores, missing, of="system")
    if differences:
        print_differences(differences)
    if sentences is not None:
        _write_sentences(sentences, texts, of_lines)
    if json_file is not None:
        content = {system: scores_as_json(of_system) for system, of_system in scores.items()}
        _add_differences(content, differences)
        write_json(json_file, content)


def _lines(path: Path) -> list[str]:
    from nmtkit.corpora.corpus import local_text

    return list(local_text(path).open())


def _test_set(
    name: str, source_language: str, target_language: str, mirror: Path | None
) -> tuple[list[str], list[str], tuple[str, str] | None]:
    """Source and reference of a public set, and how sacreBLEU's signature names it, if it is one of its sets."""
    from nmtkit import console
    from nmtkit.corpora.corpus import open_corpus
    from nmtkit.corpora.download import Downloader
    from nmtkit.corpora.sacrebleu_sets import PREFIX

    with console.transfers() as report:
        corpus = open_corpus(name, source_language, target_language, Downloader(mirror, progress=report))
        sources, reference = list(corpus.source.open()), list(corpus.target.open())
    stated = (name.removeprefix(PREFIX), f"{source_language}-{target_language}") if name.startswith(PREFIX) else None
    return sources, reference, stated


def _add_comet(
    texts: Texts,
    comet: "Comet",
    scores: "dict[str, dict[str, Score]]",
    of_lines: dict[str, list[dict[str, float]]],
) -> None:
    from nmtkit import console

    assert texts.sources is not None
    if len(texts.references) > 1:
        console.log.warning("COMET uses only the first of %d references", len(texts.references))
    for system, lines in texts.systems.items():
        scores[system]["comet"], of_system = comet.score(texts.sources, lines, texts.references[0])
        for of_line, score in zip(of_lines.get(system, []), of_system, strict=False):
            of_line["comet"] = score


def _differences(texts: Texts, scorer: "Scorer", asked: ScoreRequest, metrics: list[str]) -> "Differences":
    from nmtkit import console
    from nmtkit.evaluation.metrics import single_scores
    from nmtkit.evaluation.significance import paired_test

    tests = [(method, metric) for method in asked.paired for metric in single_scores(metrics)]
    found: Differences = {}
    with console.progress("comparing", len(tests)) as advance:
        for done, (method, metric) in enumerate(tests):
            advance(done, note=f"{method}, {metric}")
            found[method, metric] = paired_test(scorer, texts.systems, metric, method, trials=asked.trials)
    return found


def _add_differences(content: dict[str, Any], differences: "Differences") -> None:
    from nmtkit.evaluation.significance import as_json

    for (method, metric), of_systems in differences.items():
        baseline = next(iter(of_systems))
        for system, result in of_systems.items():
            if (stated := as_json(result, baseline)) is not None:
                content[system][metric].setdefault("paired", {})[method] = stated


def _write_sentences(path: Path, texts: Texts, of_lines: dict[str, list[dict[str, float]]]) -> None:
    """A line of JSON for each line of each system, with the texts that its scores compare."""
    from nmtkit.files import json_line, write_atomically

    with write_atomically(path) as file:
        for system, lines in texts.systems.items():
            for number, (hypothesis, scores) in enumerate(zip(lines, of_lines[system], strict=True)):
                entry: dict[str, Any] = {"system": system, "line": number + 1}
                if texts.sources is not None:
                    entry["source"] = texts.sources[number]
                entry["hypothesis"] = hypothesis
                entry["references"] = [of_set[number] for of_set in texts.references]
                file.write(json_line({**entry, "scores": scores}))
