"""ROUGE of extractive baselines on the test sets of SciTLDR-A and QMSum: the table of docs/results/summaries.

    python benchmarks/extraction.py --mirror DIR --json out.json

The sets are found in the mirror or downloaded. SciTLDR-A has an abstract, a title and several summaries of one
sentence: a baseline is one sentence, and its scores are those by the reference with the best ROUGE-1. QMSum has the
transcript of a meeting, a query and an answer: turns of at least six words are the paragraphs, without the names of the
speakers, and they are cut to the length of the answer. Scores are 100 x F1 with the stemmer, means over the examples.

With --examples DIR, the examples are also written as `nmtkit extract` and `nmtkit score` read them.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from nmtkit.corpora.download import Downloader
from nmtkit.corpora.http_transfer import RemoteFile
from nmtkit.evaluation.rouge import ROUGE_METRICS, Rouge
from nmtkit.json_toml import write_json, write_json_lines
from nmtkit.lines import LineReader
from nmtkit.text.extraction import Example, Method, cut, rank

_SITE = "https://raw.githubusercontent.com"
SCITLDR = RemoteFile(
    f"{_SITE}/allenai/scitldr/5ccad9c00a60ad75c9e04abf7f27d0f53f983b20/SciTLDR-Data/SciTLDR-A/test.jsonl",
    num_bytes=1_204_107,
    sha256="fb42dd6cd4f4a1928ae8a01a189456fbfe994a07e938bd49f68653933f6503c9",
)
QMSUM = RemoteFile(
    f"{_SITE}/Yale-LILY/QMSum/83d7768c1f2b4dfeb091385d3dc7e239b8e5bb7e/data/ALL/jsonl/test.jsonl",
    num_bytes=2_746_108,
    sha256="6bcd428211260ad2efae3af76cbaf6a7f5ae4bb5e1e59c45a4b8e89539cb9208",
)
SHORTEST_TURN = 6
ROUGE = Rouge(stemmer=True)
Scores = dict[str, float]


def one_line(text: str) -> str:
    return " ".join(text.split())


def scitldr_examples(path: Path) -> Iterator[Example]:
    """Yield the examples with all their references, divided by tabs, as target."""
    for number, line in enumerate(LineReader(path), start=1):
        entry = json.loads(line)
        fields = {
            "title": entry["title"],
            "paragraphs": list(map(one_line, entry["source"])),
            "target": "\t".join(map(one_line, entry["target"])),
        }
        yield Example(f"SciTLDR {number}", fields["title"], tuple(fields["paragraphs"]), fields["target"], fields)


def qmsum_examples(path: Path) -> Iterator[Example]:
    """Yield an example for each query, the general ones of a meeting before the specific ones."""
    for line in LineReader(path):
        meeting = json.loads(line)
        turns = [one_line(turn["content"]) for turn in meeting["meeting_transcripts"]]
        for entry in [*meeting["general_query_list"], *meeting["specific_query_list"]]:
            fields = {"query": entry["query"], "paragraphs": turns, "target": one_line(entry["answer"])}
            yield Example(f"QMSum, {entry['query']}", entry["query"], tuple(turns), fields["target"], fields)


def scores_by_best_reference(hypothesis: str, references: list[str]) -> Scores:
    """Return the scores by the reference with the best ROUGE-1."""
    reference = max(references, key=lambda reference: ROUGE.f1("rouge1", reference, hypothesis))
    return {metric: 100 * ROUGE.f1(metric, reference, hypothesis) for metric in ROUGE_METRICS}


def oracle(example: Example) -> str:
    """Return the sentence with the best ROUGE-1 by any reference."""
    references = example.target.split("\t")
    return max(
        example.paragraphs,
        key=lambda sentence: max(ROUGE.f1("rouge1", reference, sentence) for reference in references),
    )


def first_ranked(method: Method) -> Callable[[Example], str]:
    return lambda example: next(rank(example, method), "")


def cut_to_target(method: Method) -> Callable[[Example], str]:
    return lambda example: "\t".join(cut(rank(example, method, SHORTEST_TURN), length=len(example.target.split())))


SCITLDR_ROWS: dict[str, Callable[[Example], str]] = {
    "first sentence": first_ranked("identity"),
    "SumBasic, one sentence": first_ranked("sumbasic"),
    "TextRank, one sentence": first_ranked("textrank"),
    "tf-idf on the title, one sentence": first_ranked("tf-idf"),
    "the title itself": lambda example: example.query,
    "oracle sentence": oracle,
}
QMSUM_ROWS: dict[str, Callable[[Example], str]] = {
    "identity (first words)": cut_to_target("identity"),
    "SumBasic": cut_to_target("sumbasic"),
    "TextRank": cut_to_target("textrank"),
    "tf-idf on the query": cut_to_target("tf-idf"),
    "cheating (bigrams of the answer)": cut_to_target("cheating"),
}


def mean_scores(examples: list[Example], summarize: Callable[[Example], str], *, separator: str | None) -> Scores:
    """Return the mean scores of a baseline.

    Args:
        separator: between the references of an example; None: it has one.
    """
    of_examples = [
        scores_by_best_reference(summarize(one), [one.target] if separator is None else one.target.split(separator))
        for one in examples
    ]
    return {metric: sum(scores[metric] for scores in of_examples) / len(of_examples) for metric in ROUGE_METRICS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mirror", type=Path, help="folder laid out as <host>/<path>")
    parser.add_argument("--examples", type=Path, metavar="DIR", help="folder for the examples as JSON lines")
    parser.add_argument("--json", type=Path, help="file for the scores")
    arguments = parser.parse_args()
    downloader = Downloader(arguments.mirror)
    sets = {
        "SciTLDR-A test": (list(scitldr_examples(downloader.fetch(SCITLDR).path)), SCITLDR_ROWS, "\t"),
        "QMSum test": (list(qmsum_examples(downloader.fetch(QMSUM).path)), QMSUM_ROWS, None),
    }
    results: dict[str, dict[str, Scores]] = {}
    print(f"| {'':50} | {' | '.join(ROUGE_METRICS)} |\n|---|---|---|---|---|")
    for name, (examples, rows, separator) in sets.items():
        if arguments.examples is not None:
            write_json_lines(arguments.examples / f"{name.split()[0].lower()}.jsonl", [one.fields for one in examples])
        results[name] = {}
        for row, summarize in rows.items():
            scores = results[name][row] = mean_scores(examples, summarize, separator=separator)
            print(f"| {f'{name}, {row}':50} | {' | '.join(f'{score:.2f}' for score in scores.values())} |", flush=True)
    if arguments.json is not None:
        write_json(arguments.json, results)


if __name__ == "__main__":
    main()
