"""The rows of the paper's Table 3, and how rows become recipes."""

from pathlib import Path

import pytest

from nmtkit.config.recipe import load_recipe
from nmtkit.config.schema import Recipe
from nmtkit.errors import RecipeError
from nmtkit.experiments.rows import TABLE3, PlannedRun, choose_rows, plan, read_sweep
from nmtkit.model.decoder_only import count_parameters
from tests.conftest import message_of

# N, d_model, d_ff, h, d_k, d_v, P_drop, eps_ls, thousands of updates; perplexity, BLEU, millions of parameters
PAPER = """
base            6  512 2048  8  64  64 0.1 0.1 100  4.92 25.8  65
A-h1            6  512 2048  1 512 512 0.1 0.1 100  5.29 24.9   -
A-h4            6  512 2048  4 128 128 0.1 0.1 100  5.00 25.5   -
A-h16           6  512 2048 16  32  32 0.1 0.1 100  4.91 25.8   -
A-h32           6  512 2048 32  16  16 0.1 0.1 100  5.01 25.4   -
B-dk16          6  512 2048  8  16  64 0.1 0.1 100  5.16 25.1  58
B-dk32          6  512 2048  8  32  64 0.1 0.1 100  5.01 25.4  60
C-N2            2  512 2048  8  64  64 0.1 0.1 100  6.11 23.7  36
C-N4            4  512 2048  8  64  64 0.1 0.1 100  5.19 25.3  50
C-N8            8  512 2048  8  64  64 0.1 0.1 100  4.88 25.5  80
C-d256          6  256 2048  8  32  32 0.1 0.1 100  5.75 24.5  28
C-d1024         6 1024 2048  8 128 128 0.1 0.1 100  4.66 26.0 168
C-ff1024        6  512 1024  8  64  64 0.1 0.1 100  5.12 25.4  53
C-ff4096        6  512 4096  8  64  64 0.1 0.1 100  4.75 26.2  90
D-dropout0.0    6  512 2048  8  64  64 0.0 0.1 100  5.77 24.6   -
D-dropout0.2    6  512 2048  8  64  64 0.2 0.1 100  4.95 25.5   -
D-smoothing0.0  6  512 2048  8  64  64 0.1 0.0 100  4.67 25.3   -
D-smoothing0.2  6  512 2048  8  64  64 0.1 0.2 100  5.47 25.7   -
E               6  512 2048  8  64  64 0.1 0.1 100  4.92 25.7   -
big             6 1024 4096 16  64  64 0.3 0.1 300  4.33 26.4 213
"""


def table3(recipe: str, *overrides: str, rows: str = "", seeds: int = 1, scale: bool = False) -> list[PlannedRun]:
    sweep = read_sweep(TABLE3)
    chosen = choose_rows(sweep, rows.split(",") if rows else [])
    return plan(load_recipe(recipe, overrides), sweep, chosen, seeds=seeds, scale=scale)


def sizes(recipe: Recipe) -> tuple[float, ...]:
    model, training = recipe.model, recipe.training
    assert model.encoder_layers == model.decoder_layers
    assert training.max_steps is not None
    return (
        model.encoder_layers, model.d_model, model.d_ff, model.num_heads, model.key_width, model.value_width,
        model.dropout, training.label_smoothing, training.max_steps / 1000,
    )  # fmt: skip


def test_the_rows_on_the_base_recipe_are_table_3() -> None:
    lines = [line.split() for line in PAPER.strip().split("\n")]
    runs = table3("wmt14-en-de-base")
    assert [run.row.name for run in runs] == [line[0] for line in lines]
    for run, (name, *numbers) in zip(runs, lines, strict=True):
        assert run.name == f"{name}-seed1"
        assert sizes(run.recipe) == tuple(map(float, numbers[:9])), name
        assert (run.recipe.model.positions == "learned") == (name == "E")
        paper = run.row.paper
        assert [paper.perplexity, paper.bleu] == list(map(float, numbers[9:11])), name
        assert paper.parameters == (None if numbers[11] == "-" else float(numbers[11]))


def test_the_rows_have_the_parameters_that_the_paper_counts() -> None:
    """They fit a vocabulary of 41,000 entries where the text says "about 37000"; only the big model's fits 37,000."""
    runs = table3("wmt14-en-de-base")
    counted = {
        run.row.name: count_parameters(run.recipe.model, vocab, vocab) / 1e6
        for run in runs
        for vocab in (37_000 if run.row.name == "big" else 41_000,)
    }
    for run in runs:
        if run.row.paper.parameters is not None:
            assert abs(counted[run.row.name] - run.row.paper.parameters) < (1.3 if run.row.name == "big" else 0.6)
    for name in ("A-h1", "A-h4", "A-h16", "A-h32"):
        assert counted[name] == counted["base"], "row A keeps the amount of computation"


def test_rows_change_nothing_else() -> None:
    base = load_recipe("wmt14-en-de-base")
    for run in table3("wmt14-en-de-base"):
        for section in ("data", "cleaning", "decoding"):
            assert getattr(run.recipe, section) == getattr(base, section)


def test_scaled_rows_keep_their_ratios_to_the_recipe() -> None:
    runs = {run.row.name: sizes(run.recipe) for run in table3("multi30k-en-de-tiny", scale=True)}
    assert runs["base"] == (4, 128, 256, 4, 32, 32, 0.3, 0.1, 8)
    assert runs["A-h1"][3:6] == (1, 128, 128)
    assert runs["A-h16"][3:6] == (8, 16, 16)
    assert runs["B-dk16"][3:6] == (4, 8, 32)
    assert runs["C-N2"][0] == 1 and runs["C-N4"][0] == 3
    assert runs["C-d256"][1:6] == (64, 256, 4, 16, 16)
    assert runs["C-ff4096"][1:3] == (128, 512)
    assert runs["D-dropout0.2"][6] == 0.2
    assert runs["big"] == (4, 256, 512, 8, 32, 32, 0.3, 0.1, 24)


def test_a_recipe_without_a_limit_of_updates_scales_all_but_that() -> None:
    big = table3("multi30k-en-de-tiny", "training.max_epochs=3", rows="big", scale=True)[0].recipe
    assert big.training.max_steps == 24000  # both limits stand together
    base = load_recipe("multi30k-en-de-tiny")
    only_epochs = base.model_copy(
        update={"training": base.training.model_copy(update={"max_steps": None, "max_epochs": 3})}
    )
    sweep = read_sweep(TABLE3)
    run = plan(only_epochs, sweep, choose_rows(sweep, ["big"]), seeds=1, scale=True)[0]
    assert (run.recipe.training.max_steps, run.recipe.training.max_epochs) == (None, 3)


def test_another_base_than_the_papers_wants_scale() -> None:
    with pytest.raises(RecipeError, match=r"quickstart: the rows are made for model.encoder_layers = 6, .* --scale"):
        table3("quickstart")
    with pytest.raises(RecipeError, match=r"training.max_steps = 100000, but the recipe has 1000; use --scale"):
        table3("wmt14-en-de-base", "training.max_steps=1000")
    shorter = table3("wmt14-en-de-base", "training.max_steps=1000", rows="big", scale=True)
    assert sizes(shorter[0].recipe) == (6, 1024, 4096, 16, 64, 64, 0.3, 0.1, 3)


def test_rows_are_chosen_by_name_and_group() -> None:
    names = [run.name for run in table3("quickstart", rows="A-h1,base,E", scale=True, seeds=2)]
    assert names == ["base-seed1", "A-h1-seed1", "E-seed1", "base-seed2", "A-h1-seed2", "E-seed2"]
    assert {run.row.name for run in table3("quickstart", rows="B", scale=True)} == {"B-dk16", "B-dk32"}
    with pytest.raises(RecipeError, match=r"--rows: there is no row or group 'F'; .* A, A-h1, "):
        table3("quickstart", rows="base,F", scale=True)


def test_seeds_count_from_the_recipes_own() -> None:
    runs = table3("quickstart", "training.seed=7", rows="base", seeds=3, scale=True)
    assert [run.recipe.training.seed for run in runs] == [7, 8, 9]


def test_rows_that_come_to_the_same_are_told(caplog: pytest.LogCaptureFixture) -> None:
    table3("quickstart", rows="C", scale=True)
    assert "the rows C-N2 and C-N4 are the same with this recipe" in caplog.text


GOOD = 'title = "mine"\n[[rows]]\nname = "one"\n'


def own(tmp_path: Path, text: str, *, scale: bool = False) -> list[PlannedRun]:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    sweep = read_sweep(path)
    return plan(load_recipe("quickstart"), sweep, sweep.rows, seeds=1, scale=scale)


def test_rows_of_ones_own_need_no_base_and_may_vary_any_key_of_three_sections(tmp_path: Path) -> None:
    text = GOOD + 'model = { norm = "pre" }\ntraining = { validate_every_epochs = 2 }\ndecoding = { beam = 1 }\n'
    recipe = own(tmp_path, text)[0].recipe
    assert (recipe.model.norm, recipe.decoding.beam) == ("pre", 1)
    assert (recipe.training.validate_every_epochs, recipe.training.validate_every_steps) == (2, None)
    assert recipe.model.d_model == 128


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('title = "t"\nrows = []', "mine.toml: rows: "),
        (GOOD + 'name = "two"', "mine.toml: not valid TOML: "),
        (
            GOOD + "data = { vocab_size = 5 }",
            "mine.toml: rows.1.data: unknown key; there are model, training, ",
        ),
        (GOOD + "paper = { blue = 5 }", "rows.1.paper.blue: unknown key; there are perplexity, bleu, parameters; "),
        ("seeds = 3\n" + GOOD, "mine.toml: seeds: unknown key; there are title, base, rows, findings; "),
        (GOOD + '[[rows]]\nname = "one"', "mine.toml: two rows are named 'one'"),
        (GOOD + '[[rows]]\nname = "a/b"', "mine.toml: rows.2.name: letters, figures, "),
        (GOOD + "model = { d_modle = 5 }", "row one: unknown key model.d_modle; did you mean d_model?"),
        (GOOD + "model = { dropout = 2 }", "row one: model.dropout = 2: "),
        (
            GOOD + 'model = { num_heads = 3, d_k = "d_model / num_heads" }',
            "row one: d_model = 128 is not a multiple of",
        ),
        (GOOD + 'model = { num_heads = 0, d_k = "d_model / num_heads" }', "128 is not a multiple of num_heads = 0"),
        (GOOD + 'model = { num_heads = "8", d_v = "d_model / num_heads" }', "128 is not a multiple of num_heads = '8'"),
        (GOOD + "training = { seed = 7 }", "row one: rows cannot set training.seed; use --seeds"),
        (GOOD + "[base]\nmodel = { d_modell = 5 }", "[base] of the rows: unknown key model.d_modell"),
        (
            GOOD + '[[findings]]\ntext = "f"\nmetric = "bleu"\nbetter = "one"\nother = "two"',
            "mine.toml: a finding names the row 'two', which does not exist",
        ),
    ],
)
def test_a_faulty_file_of_rows_gets_one_line_that_says_where(tmp_path: Path, text: str, message: str) -> None:
    assert message in message_of(lambda: own(tmp_path, text), RecipeError)


def test_what_is_no_whole_number_is_not_scaled(tmp_path: Path) -> None:
    base = '[base]\nmodel = { d_model = 512, dropout = 0.1, norm = "post" }\n'
    (run,) = own(tmp_path, GOOD + 'model = { d_model = 256, dropout = 0.3, norm = "pre" }\n' + base, scale=True)
    assert (run.recipe.model.d_model, run.recipe.model.dropout, run.recipe.model.norm) == (64, 0.3, "pre")
    with pytest.raises(RecipeError, match=r"row one: model\.d_model = 'big'"):
        own(tmp_path, GOOD + 'model = { d_model = "big" }\n' + base, scale=True)
    with pytest.raises(RecipeError, match=r"row one: model\.d_model = 25000"):
        own(tmp_path, GOOD + f"model = {{ d_model = 1{'0' * 400} }}\n" + base, scale=True)
    with pytest.raises(RecipeError, match=r"row one: model\.d_model cannot be scaled, because \[base\] has 0"):
        own(tmp_path, GOOD + "model = { d_model = 256 }\n[base]\nmodel = { d_model = 0 }\n", scale=True)


def test_a_recipe_without_validation_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"state \[data\] valid"):
        table3("quickstart", "data.valid=[]", scale=True)


@pytest.mark.parametrize("name", ["treebank-parsing", "trec"])
def test_a_recipe_of_trees_or_labels_is_refused(name: str) -> None:
    with pytest.raises(RecipeError, match=f"{name}: rows are compared by BLEU.* (trees|does not have)"):
        table3(name, scale=True)


def test_a_file_without_a_base_cannot_be_scaled(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"--scale: this file of rows has no \[base\]"):
        own(tmp_path, GOOD, scale=True)
