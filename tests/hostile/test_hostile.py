"""Hostile input, faults and surroundings: a sample of the cases with the other tests, all of them with the slow ones.

docs/robustness.md says what is promised. `NMTKIT_HOSTILE_SEED` takes another sample, `NMTKIT_HOSTILE` only cases whose
name has that in it.
"""

import faulthandler
import json
import os
import random
import re
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import cases
import harness
from harness import Case

SEED = int(os.environ.get("NMTKIT_HOSTILE_SEED", "19"))
SAMPLE = {"file": 40, "field": 70, "option": 40, "text": 25, "around": 15}
ROWS = 'title = "Dropout"\n[[rows]]\nname = "base"\n[[rows]]\nname = "less"\nmodel = { dropout = 0.0 }\n'


@dataclass(frozen=True)
class Project:
    """A project that commands do well in.

    Attributes:
        opened: by file the commands that read it.
    """

    folder: Path
    opened: dict[str, list[str]]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A small project: corpora, a recipe, and a run that is prepared, trained, averaged, scored and exported."""
    from tests.conftest import TINY_MODEL, write_project
    from tests.export.foreign_folders import write_marian
    from tests.export.test_openai_gpt import write_theirs

    folder = tmp_path_factory.mktemp("hostile") / "base"
    folder.mkdir()
    write_project(
        folder,
        f"{TINY_MODEL}[training]\ntokens_per_update = 450\ntokens_per_pass = 150\nwarmup_steps = 10\nmax_steps = 12\n"
        "report_every_steps = 3\nvalidate_every_steps = 5\ncheckpoint_every_steps = 4\nkeep_last = 2\n"
        "[decoding]\naverage_last = 2\nbeam = 2\nmax_length = 30\n",
        "tiny.toml",
        train=120,
        valid=12,
        test=10,
    )
    decoder = (
        "[training]\nmax_steps = 2\nsequences_per_update = 8\nvalidate_bleu = false\n[decoding]\naverage_last = 1\n"
        '[model]\narchitecture = "decoder"\ndecoder_layers = 1\nd_model = 8\nd_ff = 8\nnum_heads = 1\n'
    )
    (folder / "text.toml").write_text(
        '[data]\ntask = "language-model"\ntarget_language = "en"\ntrain = [{ text = "train.en" }]\n'
        'valid = [{ text = "valid.en" }]\nsubwords = "characters"\nsequence_length = 8\n'
        + decoder.replace("sequences_per_update = 8\n", ""),
        encoding="utf-8",
    )
    for part in ("train", "valid", "test"):
        lines = (folder / f"{part}.en").read_text(encoding="utf-8").splitlines()
        (folder / f"{part}.label").write_text("".join("xy"[len(line) % 2] + "\n" for line in lines), encoding="utf-8")
    (folder / "label.toml").write_text(
        '[data]\ntask = "label"\nsource_language = "en"\ntrain = [{ source = "train.en", target = "train.label" }]\n'
        'valid = [{ source = "valid.en", target = "valid.label" }]\nsubwords = "characters"\nsequence_length = 16\n'
        + decoder,
        encoding="utf-8",
    )
    actions = decoder + 'positions = "learned"\nmax_positions = 10\n'
    (folder / "play.toml").write_text(
        '[data]\ntask = "trajectories"\nenvironment = "graph"\nepisodes = 60\nsequence_length = 10\n' + actions,
        encoding="utf-8",
    )
    (folder / "episodes.toml").write_text(
        '[data]\ntask = "trajectories"\ntrain = [{ text = "episodes.jsonl" }]\nvalid = 5\nsequence_length = 4\n'
        + actions,
        encoding="utf-8",
    )
    episode = {"states": [0, 1, 2], "actions": ["a", "b", "a"], "rewards": [0, 0, 1.5]}
    (folder / "episodes.jsonl").write_text((json.dumps(episode) + "\n") * 30, encoding="utf-8")
    write_theirs(folder / "gpt")
    write_marian(folder / "marian")
    shutil.copy(folder / "test.de", folder / "hypothesis.de")
    (folder / "rows.toml").write_text(ROWS, encoding="utf-8")
    sources = (folder / "test.en").read_text().splitlines()
    lists = [{"source": line, "hypotheses": [{"text": line, "score": -1.0}, {"text": "AB"}]} for line in sources]
    (folder / "lists.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lists))
    examples = [{"title": line, "paragraphs": sources[:5], "target": line, "id": 1} for line in sources]
    (folder / "examples.jsonl").write_text("".join(json.dumps(one) + "\n" for one in examples))
    (folder / "lists.txt").write_text("".join(f"{index} ||| AB ||| -1.0\n" for index in range(len(sources))))
    found = list(harness.run_cases([*cases.made_first(), *cases.undamaged()], folder, folder.parent / "made"))
    assert [result for result in found if result["code"] or result["faults"]] == []
    opened: dict[str, list[str]] = {}
    for result in found:
        for file in result["opened"]:
            opened.setdefault(file, []).append(result["name"])
    return Project(folder, opened)


def groups_of(project: Project) -> dict[str, list[Case]]:
    """All cases, by what is hostile in them."""
    of_files = list(cases.file_cases(project.folder, project.opened))
    groups = {
        "file": [case for case in of_files if case.name.startswith("file: ")],
        "field": [case for case in of_files if case.name.startswith("field: ")],
        "option": list(cases.option_cases(cases.options_of_commands())),
        "text": list(cases.text_cases()),
        "around": list(cases.surrounding_cases()),
    }
    wanted = re.compile(os.environ.get("NMTKIT_HOSTILE", ""))
    return {name: [case for case in group if wanted.search(case.name)] for name, group in groups.items()}


def failures(chosen: list[Case], project: Project, folder: Path) -> str:
    """What is wrong, a case each line; "" if nothing is."""
    results = list(harness.run_cases(chosen, project.folder, folder))
    assert len(results) == len(chosen)
    if (path := os.environ.get("NMTKIT_HOSTILE_RESULTS")) is not None:
        with Path(path).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(result) + "\n" for result in results)
    return "\n".join(f"{result['name']}: {'; '.join(result['faults'])}" for result in results if result["faults"])


def test_a_sample_of_hostile_cases_keeps_the_promises(project: Project, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    groups = groups_of(project)
    chosen = [case for name, group in groups.items() for case in rng.sample(group, min(SAMPLE[name], len(group)))]
    found = failures(chosen, project, tmp_path)
    assert not found, f"of the sample with NMTKIT_HOSTILE_SEED={SEED}:\n{found}"


@pytest.mark.slow
@pytest.mark.parametrize("group", SAMPLE)
def test_every_hostile_case_keeps_the_promises(project: Project, tmp_path: Path, group: str) -> None:
    found = failures(groups_of(project)[group], project, tmp_path)
    assert not found, f"{len(found.splitlines())} cases:\n{found}"


def test_the_promises_are_noticed_when_broken(tmp_path: Path) -> None:
    """The harness itself: a traceback, two errors, a wrong exit code, a leftover and a changed file are all faults."""
    case = Case("x", ["translate"])
    unchanged = {"a": "1"}
    for code, err, after in (
        (1, "Traceback (most recent call last)\nValueError: x\nerror: x\n", unchanged),
        (1, "error: x\nerror: y\n", unchanged),
        (1, "error: a\x1b[2J\n", unchanged),
        (3, "", unchanged),
        (-11, "", unchanged),
        (None, "", unchanged),
        (0, "", {**unchanged, ".a.nmtkit-tmp-1": "2"}),
        (1, "error: x\n", {"a": "2"}),
        (1, "error: x\n", {**unchanged, "out.txt": "2"}),
        (1, "error: x\n", {}),
    ):
        assert harness.faults(case, code, "", err, unchanged, after), (code, err, after)
    assert harness.faults(case, 1, "", "warning: y\nerror: x\n", unchanged, unchanged) == []
    assert harness.faults(case, 0, "\x1b", "", unchanged, {"a": "2"}) == []


def test_a_copy_is_the_same_as_the_project_again_whatever_became_of_it(tmp_path: Path) -> None:
    base, copy = tmp_path / "base", tmp_path / "copy"
    for name in ("a", "b", "c", "d/e", "d/f/g", "h/i", "l/m"):
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text(name)
    (base / "link").symlink_to("a")
    (base / "other").symlink_to("d")
    wanted = harness.state(base)
    harness.renew(copy, base, wanted)
    assert harness.state(copy) == wanted
    (copy / "a").write_text("A")
    os.utime(copy / "a", ns=(0, (base / "a").stat().st_mtime_ns))  # of the same size and time
    (copy / "b").chmod(0o600)
    (copy / "c").rename(copy / "new")
    shutil.rmtree(copy / "d")
    (copy / "d").write_text("now a file")
    (copy / "h" / "i").unlink()
    (copy / "h" / "i" / "new").mkdir(parents=True)
    os.mkfifo(copy / "l" / "pipe")
    (copy / "link").unlink()
    (copy / "link").symlink_to("b")
    (copy / "other").unlink()
    (copy / "other").mkdir()
    harness.renew(copy, base, wanted)
    assert harness.state(copy) == wanted


def test_a_case_that_hangs_or_kills_itself_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(case: Case) -> int:
        while True:
            sum(range(1000))
            if time.process_time() > 1:
                return 0

    def abort(case: Case) -> int:
        faulthandler.disable()  # of pytest, which would print where
        os.abort()

    def sleep(case: Case) -> int:
        time.sleep(600)
        return 0

    cases = ((sleep, 20, 0.2, None), (work, 0.5, 300, None), (abort, 20, 300, -6))
    for number, (run, seconds, waiting_seconds, code) in enumerate(cases):
        monkeypatch.setattr(harness, "SECONDS", seconds)
        monkeypatch.setattr(harness, "WAITING_SECONDS", waiting_seconds)
        process = harness.forked(Case("x", []), tmp_path, tmp_path / f"out{number}", tmp_path / f"err{number}", run)
        assert harness.wait(process) == code
