"""`nmtkit play`."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, BadParameter, Option

from nmtkit.cli import options


def command(
    *,
    models: Annotated[list[Path], Argument(metavar="MODEL...", help="Model or run folders, played in turn.")],
    episodes: Annotated[int, Option(min=1, help="Number of episodes.")] = 100,
    target_return: Annotated[
        str | None,
        Option(
            metavar="best|predicted|NUMBER",
            help="Return to aim at: the best of the training episodes, what the model predicts at each step, or a "
            "number.  [default: predicted if the model predicts returns, else best]",
        ),
    ] = None,
    prior: Annotated[
        float | None,
        Option(
            min=0,
            help="With --target-return predicted: exponent of a prior that favours high returns; 0: none.  "
            "[default: 10]",
        ),
    ] = None,
    min_probability: Annotated[
        float | None,
        Option(
            min=0,
            max=1,
            help="With --target-return predicted: ignore returns that are less probable; 0: none.  [default: 0.002]",
        ),
    ] = None,
    sample: Annotated[
        bool, Option("--sample/--greedy", help="Sample actions at temperature 1, or take the most probable.")
    ] = True,
    environment: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="graph, key-to-door, key-to-door-random or MODULE:FUNCTION.  [default: that of the training, unless "
            "it is MODULE:FUNCTION]",
        ),
    ] = None,
    random: Annotated[
        bool, Option(help="Play episodes of random actions as well, in the environment of each model.")
    ] = False,
    max_steps: Annotated[
        int | None, Option(min=1, help="End episodes after N steps; without it, endless ones are errors.")
    ] = None,
    seed: Annotated[int, Option(min=0, help="Seed of episodes and actions.")] = 1,
    json_: Annotated[
        Path | None, Option(help="File for all figures and rewards as JSON; the first model's are at its top level.")
    ] = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
) -> None:
    """Play episodes with Decision Transformers; print success rate, mean return and lengths with 95 % intervals.

    The same seed gives the same episodes to every model.

    Example: nmtkit play runs/key-to-door --episodes 1000 --random
    """
    from nmtkit import console
    from nmtkit.data.episodes import Facts
    from nmtkit.decoding.play import Played, PlayRequest, outcome_of, play, play_at_random, target_of
    from nmtkit.errors import DataError
    from nmtkit.json_toml import write_json
    from nmtkit.model_folder import load_model
    from nmtkit.run import find_model

    target: float | str | None = target_return
    if target_return is not None and target_return not in ("best", "predicted"):
        try:
            target = float(target_return)
        except ValueError:
            target = math.nan
        if not abs(target) <= 1e30:  # False for NaN, too
            raise BadParameter("give best, predicted or a number (at most 1e30)", param_hint="--target-return")
    options.check_files([("--json", json_)], [])
    limits = {"prior": prior, "min_probability": min_probability}
    request = PlayRequest(
        episodes=episodes, target=target, is_greedy=not sample, environment=environment, seed=seed,
        max_steps=max_steps, **{name: value for name, value in limits.items() if value is not None},
    )  # fmt: skip
    torch_device = options.start_device(device, threads)
    played: dict[str, list[Played]] = {}
    places: dict[tuple[str | None, int], tuple[str, Facts, int]] = {}
    for model in models:
        loaded = load_model(find_model(model), torch_device)
        aim = target_of(loaded.model.config, request)
        if target is not None and aim == "none":
            raise DataError(f"{model}: reads no returns (model.returns = false); leave out --target-return")
        if aim != "predicted" and not (prior is None and min_probability is None):
            raise DataError(f"{model}: aims at no predicted return; leave out --prior and --min-probability")
        played[str(model)] = play(loaded, request)
        facts = Facts.of(loaded.tokenizer)
        place = request.environment or facts.environment, facts.environment_seed
        places.setdefault(place, (str(model), facts, loaded.model.config.max_positions))
        if facts.environment not in (None, place[0]):
            console.log.warning("%s: learned in %s, and plays in %s", model, facts.environment, place[0])
    if len(places) > 1:
        console.log.warning(
            "the models play in different environments, so do not compare their figures: %s",
            ", ".join(f"{name} in {place} of seed {seed}" for (place, seed), (name, *_) in places.items()),
        )
    for name, facts, positions in places.values() if random else ():
        where = f" where {name} played" if len(places) > 1 else ""
        played[f"random actions{where}"] = play_at_random(facts, request, positions)
    bars = {name: each[0].bar for name, each in played.items() if each[0].bar is not None}
    if len(set(bars.values())) > 1:
        console.log.warning(
            "the environment does not say what is a success, so each model is measured by the best return of its own "
            "training episodes (%s): compare the mean returns, not the success rates",
            ", ".join(f"{name}: {bar:g}" for name, bar in bars.items()),
        )
    found = {name: outcome_of(each) for name, each in played.items()}
    rows = []
    for name, entry in found.items():
        interval, half = entry["mean_return_interval"], entry["mean_length_half_width"]
        half_return = f" ± {(interval[1] - interval[0]) / 2:.2g}" if interval else ""  # one episode has no spread
        half_length = "" if half is None else f" ± {half:.1f}"
        rows.append([
            name,
            _rate(entry, "success_rate"),
            f"{entry['mean_return']:.3g}{half_return}",
            "" if entry["mean_length"] is None else f"{entry['mean_length']:.1f}{half_length}",
            _rate(entry, "shortest_rate") if "shortest_rate" in entry else "",
        ])  # fmt: skip
    columns = ["model", "success rate (95 %)", "mean return", "steps to success", "by a shortest path"]
    shown = 5 if any(row[4] for row in rows) else 4
    if json_ is not None:  # before a reader of stdout that has seen enough ends the command
        for name, entry in found.items():
            entry["rewards"] = [episode.rewards for episode in played[name]]
        first = found[str(models[0])]
        write_json(json_, {**first, "request": asdict(request), "models": {**found}})
    console.print_table(console.counted(episodes, "episode"), columns[:shown], [row[:shown] for row in rows])


def _rate(entry: dict[str, Any], key: str) -> str:
    low, high = entry[f"{key}_interval"]
    return f"{100 * entry[key]:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
