"""The documentation names every command, every key and every recipe, and its links lead somewhere."""

import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from nmtkit.cli.main import COMMANDS
from nmtkit.config.corpus_entries import GeneratedCorpus, Noise
from nmtkit.config.recipe import builtin_recipes, load_recipe, to_toml
from nmtkit.config.schema import SECTIONS

ROOT = Path(__file__).parent.parent
KEYS_PAGE = ROOT / "docs" / "recipe-keys.toml"
KEYS = [(section, key) for section, model in SECTIONS.items() for key in model.model_fields]


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@cache
def text_of(*paths: Path) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def links(path: Path) -> list[str]:
    """The targets of a page's links and pictures, as they stand."""
    prose = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    inline = re.findall(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)", prose)
    references = re.findall(r"^\s*\[[^\]]+\]:\s*(\S+)", prose, flags=re.MULTILINE)
    tags = re.findall(r"<(?:img|a|source)\b[^>]*?\b(?:src|href|srcset)=[\"']([^\"']+)[\"']", prose)
    return [*inline, *references, *tags]


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#{1,6}\s+(.+?)\s*$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_shown_in_the_documentation(command: str) -> None:
    assert f"nmtkit {command}" in text_of(*pages())


@pytest.mark.parametrize(("section", "key"), KEYS)
def test_every_key_of_a_recipe_is_explained(section: str, key: str) -> None:
    (lines,) = re.findall(rf"^\[{section}\]\n(.*?)(?=^\[|\Z)", text_of(KEYS_PAGE), flags=re.DOTALL | re.MULTILINE)
    assert re.search(rf"^# .+\n(# )?{re.escape(key)} =", lines, flags=re.MULTILINE)


def test_the_page_of_keys_has_the_defaults_of_the_code() -> None:
    stated = tomllib.loads(text_of(KEYS_PAGE))
    defaults = {
        name: {
            key: list(field.default) if isinstance(field.default, tuple) else field.default
            for key, field in section.model_fields.items()
            if not field.is_required() and field.default is not None
        }
        for name, section in SECTIONS.items()
    }
    assert stated == defaults


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_of_a_recipe_is_explained(section: str) -> None:
    assert f"[{section}]" in text_of(ROOT / "docs" / "recipes.md")


@pytest.mark.parametrize("name", builtin_recipes())
def test_every_built_in_recipe_is_listed(name: str) -> None:
    assert f"`{name}`" in text_of(ROOT / "docs" / "recipes.md")


def test_every_recipe_that_the_documentation_runs_exists() -> None:
    named = re.findall(r"nmtkit (?:run|prepare|train|recipes) ([a-z0-9][\w-]*)(?![\w.-]*\.toml)", text_of(*pages()))
    assert named
    assert sorted(set(named) - set(builtin_recipes())) == []


@pytest.mark.parametrize("page", ["classification", "decisions", "language-models", "summaries"])
def test_the_first_recipe_of_a_page_is_small(page: str, tmp_path: Path) -> None:
    own = re.findall(r"```toml\n(.*?)```", text_of(ROOT / "docs" / f"{page}.md"), flags=re.DOTALL)[0]
    (tmp_path / "mine.toml").write_text(own, encoding="utf-8")
    recipe = load_recipe(str(tmp_path / "mine.toml"))
    assert recipe.model.d_model <= 256 and recipe.training.max_steps and recipe.training.max_steps <= 2000


def test_the_recipe_of_labels_goes_on_from_that_of_a_language_model(tmp_path: Path) -> None:
    own = re.findall(r"```toml\n(.*?)```", text_of(ROOT / "docs" / "classification.md"), flags=re.DOTALL)[1]
    (tmp_path / "runs" / "lm").mkdir(parents=True)
    (tmp_path / "runs" / "lm" / "recipe.toml").write_text('base = "shakespeare"\n', encoding="utf-8")
    (tmp_path / "mine.toml").write_text(own, encoding="utf-8")
    recipe = load_recipe(str(tmp_path / "mine.toml"))
    assert recipe.data.has_labels and recipe.model.d_model == load_recipe("shakespeare").model.d_model
    assert recipe.training.max_steps == 100


def test_every_relative_link_leads_to_a_file_and_a_heading() -> None:
    broken = []
    checked = 0
    for page in pages():
        for link in links(page):
            if re.match(r"[a-z]+:", link):
                continue
            place, _, anchor = link.partition("#")
            target = (page.parent / place).resolve() if place else page
            checked += 1
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert broken == []
    assert checked > 0


def test_broken_links_and_headings_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '# A heading: `x`, y\n[a](b.md) ![p](<c.svg> "title") [d](#e)\n[r]: f.md\n'
        '```\n[no](no.md)\n```\n<img src="g.png">'
    )
    assert links(page) == ["b.md", "c.svg", "#e", "f.md", "g.png"]
    assert anchors(page) == {"a-heading-x-y"}


def test_the_recipes_of_the_readme_load_and_fine_tuning_is_short_and_gentle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, tuned = re.findall(r"```toml\n(.*?)```", text_of(ROOT / "README.md"), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(own, encoding="utf-8")
    Path("tuned.toml").write_text(tuned, encoding="utf-8")
    first = load_recipe("mine.toml")
    Path("runs/mine").mkdir(parents=True)
    Path("runs/mine/recipe.toml").write_text(to_toml(first), encoding="utf-8")
    second = load_recipe("tuned.toml")
    assert first.data.test, "the README promises a score"
    assert first.training.max_steps is not None
    assert second.training.max_steps is not None
    assert second.training.max_steps <= first.training.max_steps / 10
    assert second.training.peak_learning_rate <= first.training.peak_learning_rate / 10
    assert second.training.init == second.data.tokenizer == tmp_path / "runs" / "mine"


@pytest.mark.parametrize(
    ("page", "recipe", "side"), [("back-translation", "en-de", "source"), ("distillation", "student", "target")]
)
def test_the_recipes_of_generated_corpora_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, recipe: str, side: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for text in re.findall(r"```toml\n(.*?)```", text_of(ROOT / "docs" / f"{page}.md"), flags=re.DOTALL):
        name = re.match(r"# (\S+\.toml)\n", text)
        assert name is not None
        Path(name[1]).write_text(text, encoding="utf-8")
        load_recipe(name[1])
    [generated] = [entry for entry in load_recipe(f"{recipe}.toml").data.train if isinstance(entry, GeneratedCorpus)]
    assert generated.side == side


def test_the_keys_of_generated_corpora_are_explained() -> None:
    page = text_of(ROOT / "docs" / "back-translation.md")
    keys = {{"side": "as", "from_": "from"}.get(key, key) for key in GeneratedCorpus.model_fields} - {"source_prefix"}
    explained = re.findall(r"^\| (`.*?) \|", page, flags=re.MULTILINE)
    assert {key for row in explained for key in re.findall(r"`(\w+)`", row)} == {*keys, "prefix"}
    assert all(f"`{key}`:" in page for key in Noise.model_fields)


def test_the_readme_is_in_the_order_of_a_newcomers_questions_and_its_bullets_are_short() -> None:
    readme = text_of(ROOT / "README.md")
    headings = re.findall(r"^## (.+)$", readme, flags=re.MULTILINE)
    assert headings == ["A sample", "The two commands", "Your own text", "Results", "The commands", "Where to go on"]
    assert "echo '" not in readme
    bullets = re.findall(r"^- (.+(?:\n  .+)*)", readme, flags=re.MULTILINE)
    assert bullets
    assert max(len(bullet.split()) for bullet in bullets) < 60


def test_every_install_hint_has_one_spelling_and_names_an_extra() -> None:
    extras = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]
    for page in [*pages(), *sorted((ROOT / "nmtkit").rglob("*.py"))]:
        text = text_of(page)
        hints = re.findall(r"pip\s+install\s+'nmtkit\[([\w{}]+)\]'", text)
        assert len(hints) == text.count("nmtkit["), f"{page}: write pip install 'nmtkit[NAME]'"
        assert set(hints) <= {*extras, "{name}", "{language}", "{extra}"}, page


def test_the_page_of_keys_is_that_of_the_code() -> None:
    checked = subprocess.run([sys.executable, ROOT / "docs" / "make_recipe_tables.py", "--check"], check=False)
    assert checked.returncode == 0, "run `python docs/make_recipe_tables.py`"


def named_tests(page: Path) -> list[tuple[str, str]]:
    """The `file::test` of a page."""
    return re.findall(r"`([\w/]+\.py)::(\w+)`", page.read_text(encoding="utf-8"))


def test_every_test_that_the_page_about_the_paper_names_exists() -> None:
    page = ROOT / "docs" / "paper.md"
    named = named_tests(page)
    assert len(named) > 20
    missing = [f"{file}::{name}" for file, name in named if f"def {name}(" not in text_of(ROOT / "tests" / file)]
    assert missing == []


def test_every_module_that_the_page_about_the_paper_names_exists() -> None:
    rooms = "model|text|data|training|decoding|evaluation|corpora|experiments"
    cells = re.findall(rf"`((?:{rooms})/[\w./]*)`", text_of(ROOT / "docs" / "paper.md"))
    assert len(cells) > 15
    assert [name for name in cells if not (ROOT / "nmtkit" / name).exists()] == []


def test_the_example_of_the_page_about_labels_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from nmtkit.pipeline import run
    from tests.tasks.test_classification import write_project

    recipe = load_recipe(write_project(tmp_path, steps=40))
    run(recipe, tmp_path / "run", mirror=None, device="cpu", threads=1)
    (example,) = re.findall(r"```python\n(.*?)```", text_of(ROOT / "docs" / "classification.md"), flags=re.DOTALL)
    capsys.readouterr()
    exec(compile(example.replace("runs/trec", str(tmp_path / "run")), "classification.md", "exec"), {})
    assert re.fullmatch(r"(yes|no) \{'no': 0\.\d+, 'yes': 0\.\d+\}\n", capsys.readouterr().out)


def test_the_example_of_the_page_about_evaluation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", text_of(ROOT / "docs" / "evaluation.md"), flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(example, "evaluation.md", "exec"), names)
    assert names["scores"].keys() == {"sacrebleu", "chrf2"}
    score, signature = capsys.readouterr().out.split(" nrefs:1|")
    assert float(score.split(" ± ")[0]) == round(names["bleu"].score, 2)
    assert "tok:13a" in signature
    assert [list(line) for line in names["lines"]] == [["chrf2++"]] * 2
    assert all(0 < line["chrf2++"] < 100 for line in names["lines"])
