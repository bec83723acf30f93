"""`nmtkit export`: convert a model to a folder for another library, after a check that both translate identically.

    model folder --convert--> temporary folder --parity.py--> manifest.json --> renamed to the output folder
                                               --> refused

A refused export leaves no files.
"""

import importlib.metadata
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.console import counted, log
from nmtkit.decoding import ctranslate2_engine
from nmtkit.decoding.ctranslate2_engine import FORMAT, Export
from nmtkit.decoding.lengths import source_limit
from nmtkit.decoding.request import Batching
from nmtkit.decoding.running_text import token_ids
from nmtkit.errors import DataError, ModelError
from nmtkit.export import ctranslate2, huggingface
from nmtkit.export.parity import Ids, ParitySample, check_greedy, compare, sample_lines, search, take_sample
from nmtkit.files import follow_umask, sha256_of_files, write_folder_atomically
from nmtkit.json_toml import read_json, write_json
from nmtkit.model_folder import LoadedModel, load_model
from nmtkit.run import Run, find_model
from nmtkit.tasks.known import task_of
from nmtkit.text.normalization import FIELD_MARK
from nmtkit.text.vocabulary import BLANK_SIGN, TAG_SIGN
from nmtkit.versions import versions

_PLAIN: dict[str, object] = {
    "min_length": 0, "no_repeat_ngram": 0, "coverage_penalty": 0.0, DecodingConfig.WELL_FORMED: False,
}  # fmt: skip
"""Decoding settings of the check: it compares models, so constraints and the coverage penalty are off."""
_SAMPLE_SEQUENCES = 4
"""Maximum number of sequences of a language model whose logits are compared."""
_SAMPLE_LINES = 1000
"""Maximum number of lines that they are taken from, which both tokenizers split."""
_MOST_DIFFERENCE = 1e-5
"""Maximum difference of logits in float64."""
_TEXT_KEYS = ("source_language", "target_language", "text", "subwords", "normalize", "segment_mark")


def export(
    path: Path,
    to: Literal["ctranslate2", "huggingface"],
    *,
    quantization: str = "float32",
    output: Path | None = None,
    sample_file: Path | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Write a model for another library; the folder appears only if the check passes.

    The check compares translations, and for a language model logits.

    Args:
        path: a model folder, a run folder or a checkpoint.
        quantization: one of ctranslate2.QUANTIZATIONS; only for ctranslate2.
        output: folder to write; by default export/<format>[-<quantization>] in ``path``.
        sample_file: text for the check, by default the validation source of the run.

    Returns:
        The folder, and the content of its manifest.

    Raises:
        ModelError: the library is not installed, does not support the model, or translates differently.
        DataError: the sample cannot be used, or the folder holds something else.
    """
    by_ctranslate2 = to == "ctranslate2"
    library = "ctranslate2" if by_ctranslate2 else "transformers"
    (ctranslate2_engine if by_ctranslate2 else huggingface).check_installed()
    model_folder = find_model(path)
    loaded = load_model(model_folder)
    targets, sources = loaded.tokenizer.target_languages, loaded.tokenizer.source_languages
    # The check translates in one direction. Where both sides have the same languages, these two differ.
    loaded = replace(loaded, tokenizer=loaded.tokenizer.in_direction(targets[0], sources[-1]))
    if loaded.tokenizer.context:
        raise ModelError("not exported: no other library reads the sentences before a line (data.context)")
    is_language_model = not by_ctranslate2 and not task_of(loaded.tokenizer).has_source
    if is_language_model:
        huggingface.check_language_model(loaded)
    else:
        (ctranslate2 if by_ctranslate2 else huggingface).check(loaded)
    name = to if quantization == "float32" else f"{to}-{quantization}"
    folder = output if output is not None else path / "export" / name
    _check_output(folder)
    # Candidates for the run folder: RUN/averaged is one level below it, RUN/checkpoints/step-* two.
    runs = (path, *model_folder.resolve().parents[:2])
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "to": to,
        "quantization": quantization,
        "model": str(model_folder),
        "model_sha256": loaded.provenance["files"]["model.safetensors"],
        "tokenizer_sha256": loaded.tokenizer.fingerprint(),
        "decoding": loaded.decoding.model_dump(mode="json"),
        "training_lengths": loaded.lengths and loaded.lengths.model_dump(),
        "text": {key: loaded.tokenizer.settings[key] for key in _TEXT_KEYS} | {"target_languages": list(targets)},
    }
    for key in ("source_tags", "target_tags", "target_starts"):
        # The vocabulary for transformers has them without the sign.
        manifest[key] = {
            code: tag.removeprefix(TAG_SIGN) if to == "huggingface" else tag
            for code, tag in loaded.tokenizer.settings.get(key, {}).items()
        }
    manifest["versions"] = {**versions(), library: importlib.metadata.version(library)}
    if is_language_model:
        with write_folder_atomically(folder) as temporary:
            _write_language_model(temporary, loaded, runs, sample_file, manifest)
            _finish(temporary, manifest, _readme_of_language_model(manifest))
        return folder, manifest
    sample = take_sample(loaded, runs, sample_file)
    log.info("translating %s of %s with nmtkit, for comparison", counted(len(sample.lines), "line"), sample.origin)
    # Greedy search always, as only its translations have to be identical.
    ours = {
        beam: search(loaded, sample, loaded.decoding.model_copy(update={"beam": beam, **_PLAIN}))
        for beam in sorted({1, loaded.decoding.beam})
    }
    with write_folder_atomically(folder) as temporary:
        write = _write_ctranslate2 if by_ctranslate2 else _write_huggingface
        manifest["parity"] = parity = {"sample": sample.origin, **write(temporary, loaded, sample, ours, manifest)}
        greedy, ties = parity["greedy"], counted(len(parity["greedy"]["near_ties"]), "near tie")
        log.info("greedy translations of %s (%s) agree, %s", counted(greedy["lines"], "line"), sample.origin, ties)
        for name, facts in parity.items():
            if isinstance(facts, dict) and "bleu" in facts:
                log.info("%s: %.0f %% of lines identical, BLEU %.1f", name, 100 * facts["identical"], facts["bleu"])
        _finish(temporary, manifest, _readme(manifest, loaded))
    return folder, manifest


def _finish(folder: Path, manifest: dict[str, Any], readme: str) -> None:
    """Write README.md and manifest.json, the last files of an export."""
    (folder / "README.md").write_text(readme, encoding="utf-8")
    # Some libraries make files that only their owner can read.
    for file in (path for path in folder.rglob("*") if path.is_file()):
        follow_umask(file)
    manifest["files"] = sha256_of_files(folder)
    write_json(folder / "manifest.json", manifest)


def _check_output(folder: Path) -> None:
    """Raise DataError if the folder, which would be replaced, holds anything but an export."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise DataError(f"{folder}: this is a file; name a folder with --output")
    try:
        manifest = read_json(folder / "manifest.json", {"to": str, "files": {str: str}})
        exported = {"manifest.json", *manifest["files"]}
    except DataError:  # then no file is known to be part of an export
        exported = set()
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    own = (*exported, ".DS_Store")  # macOS puts the latter into any folder
    if other := next((name for name in files if name not in own), None):
        raise DataError(f"{folder}: contains more than an export ({other}); name another folder with --output")


def _write_ctranslate2(
    folder: Path, loaded: LoadedModel, sample: ParitySample, ours: dict[int, list[Ids]], manifest: dict[str, Any]
) -> dict[str, Any]:
    """Write float32 first, which must pass the check, then the requested format; return the results of the check."""
    manifest["max_positions"] = ctranslate2.num_positions(loaded)
    manifest["has_learned_positions"] = loaded.model.config.positions == "learned"
    parity: dict[str, Any] = {}
    for kind in dict.fromkeys(("float32", manifest["quantization"])):
        log.info("converting to %s for CTranslate2 and translating the same lines with it", kind)
        if any(folder.iterdir()):  # the float32 model, which has passed the check
            shutil.rmtree(folder)
            folder.mkdir()
        ctranslate2.write(folder, loaded, kind)
        loaded.tokenizer.save(folder / "tokenizer")
        written = Export(folder, {**manifest, "files": sha256_of_files(folder)})
        suffix = "" if kind == "float32" else f"_{kind}"
        for beam in ours:
            engine = ctranslate2_engine.CTranslate2Translator.load(
                written, {"beam": beam, **_PLAIN}, "cpu", torch.get_num_threads()
            )
            # In the direction of the check, while a saved tokenizer has no direction.
            engine.tokenizer = loaded.tokenizer
            theirs = engine.search(sample.sources, Batching())
            if beam > 1:
                parity[f"beam{suffix}"] = {"beam": beam, **compare(loaded, ours[beam], theirs)}
            elif kind == "float32":
                parity["greedy"] = check_greedy(loaded, sample, ours[beam], theirs, "ctranslate2")
            else:
                parity[f"greedy{suffix}"] = compare(loaded, ours[beam], theirs)
    return parity


def _write_huggingface(
    folder: Path, loaded: LoadedModel, sample: ParitySample, ours: dict[int, list[Ids]], manifest: dict[str, Any]
) -> dict[str, Any]:
    """Write the model and its tokenizer; return the results of the check."""
    log.info("converting for transformers and translating the same lines with it")
    huggingface.write(folder, loaded)
    model, tokenizer = huggingface.load(folder)
    huggingface.check_tokenizer(tokenizer, loaded, sample.lines)
    parity: dict[str, Any] = {}
    for beam in ours:
        decoding = loaded.decoding.model_copy(update={"beam": beam, **_PLAIN})
        theirs = huggingface.search(model, loaded, sample.sources, decoding)
        if beam == 1:
            parity["greedy"] = check_greedy(loaded, sample, ours[1], theirs, "transformers")
        else:
            parity["beam"] = {"beam": beam, **compare(loaded, ours[beam], theirs)}
    return parity


def _write_language_model(
    folder: Path, loaded: LoadedModel, runs: Sequence[Path], sample_file: Path | None, manifest: dict[str, Any]
) -> None:
    """Write a language model, and compare its logits with nmtkit's on the beginning of a text.

    Raises:
        ModelError: they differ, or the tokenizers do.
    """
    origin, lines = sample_lines([Run(run).valid_text.reference for run in runs], sample_file)
    length, lines = loaded.model.config.max_positions, lines[:_SAMPLE_LINES]
    ids = token_ids(loaded, lines).tolist()[: _SAMPLE_SEQUENCES * length]
    if not ids:
        raise DataError(f"{origin}: there is no text to check the export on; give another file with --sample")
    log.info("converting for transformers and comparing logits")
    huggingface.write_language_model(folder, loaded)
    sequences = [ids[first : first + length] for first in range(0, len(ids), length)]
    difference = huggingface.largest_difference(folder, loaded, sequences)
    if not difference <= _MOST_DIFFERENCE:
        raise ModelError(f"not exported: logits for text of {origin} differ by {difference:g} in transformers")
    manifest["parity"] = {"sample": origin, "tokens": len(ids), "largest_difference_of_logits": difference}
    log.info("logits of %s (%s) agree to %.1e", counted(len(ids), "token"), origin, difference)
    if loaded.tokenizer.gpt_bpe is not None:
        huggingface.check_gpt_tokenizer(folder, loaded, lines)
    else:
        log.warning(
            "transformers has no tokenizer for subwords = %s: tokenizer/ has nmtkit's, which it does not read",
            loaded.tokenizer.settings["subwords"],
        )


def _readme_of_language_model(manifest: dict[str, Any]) -> str:
    text, parity = manifest["text"], manifest["parity"]
    if text["subwords"] == "gpt-bpe":
        tokenizer = "Its tokenizer is OpenAIGPTTokenizer; it reads <unk> in a text as the unknown token, nmtkit as text"
    else:
        tokenizer = (
            "transformers has no tokenizer for it: give it ids of nmtkit's, which is in tokenizer/\n"
            f"- To be done to each line before: {', '.join(text['normalize']) or 'nothing'}"
        )
    return (
        f"# A language model ({text['target_language']}), exported by nmtkit for transformers\n\n"
        "AutoModelForCausalLM loads it. `manifest.json` records what it was made from.\n\n"
        f"- {tokenizer}\n"
        f"- Logits of {parity['tokens']:,} tokens differ by at most {parity['largest_difference_of_logits']:.1e} from "
        "nmtkit's (float64)\n"
    )


_LANGUAGE_TOKENS = {
    "ctranslate2": [
        "- Before a source, give the token of its language, and as target_prefix that of the translation",
        "  (`source_tags` and `target_starts` in manifest.json); drop the first token of the result",
    ],
    "huggingface": [
        "- Set `tokenizer.src_lang` to the language of the source, and give generate the id of that of the translation",
        "  as `forced_bos_token_id` (`target_starts` in manifest.json)",
    ],
}
"""Lines of README.md for models whose translations begin with a language, by library."""


def _readme(manifest: dict[str, Any], loaded: LoadedModel) -> str:
    text, decoding = manifest["text"], manifest["decoding"]
    task, after = task_of(loaded.tokenizer), list[str]()
    targets, tags = ", ".join(text["target_languages"]), manifest["target_tags"]
    before = ", ".join(text["normalize"]) or "nothing"
    if "blanks" in text["normalize"]:
        before += " (runs of blanks and tabs become one blank, those at the ends go)"
    if text["subwords"] == "none" and text["segment_mark"] == BLANK_SIGN:
        after.append(f"pieces are joined without blanks, then each {BLANK_SIGN} becomes one")
    elif text["subwords"] == "none" and text["segment_mark"]:
        after.append(f"a piece that ends in {text['segment_mark']} is joined with the next one, without the mark")
    if "moses-tokenize" in text["normalize"]:
        after.append(f"Moses' detokenizer for {targets} (sacremoses)")
    if FIELD_MARK in task.model_source("title\ttext"):
        before = f"each tab becomes a word of its own, U+FDD4; then {before}"
        after.append("U+FDD4 becomes a tab, without the blanks around it")
    is_cut = not task.splits_sources or (loaded.lengths is not None and loaded.lengths.max_source_tokens is not None)
    limits = ("max_length", "min_length", "no_repeat_ngram", "coverage_penalty")
    stated = "".join(f", {key} {decoding[key]}" for key in limits if decoding[key])
    lines = [
        f"# {text['source_language']} to {targets}, exported by nmtkit for {manifest['to']}",
        "",
        "How to use it from Python: docs/export.md of nmtkit. `manifest.json` records its origin and how its",
        "translations compared with nmtkit's.",
        "",
        f"- Text: {task.description}",
        f"- To be done to each line before: {before}",
        *(f"- First token of the source for a translation to {code}: {tag}" for code, tag in tags.items()),
        *(_LANGUAGE_TOKENS[manifest["to"]] if manifest["target_starts"] else []),
        *([f"- Only the first {source_limit(None, loaded.lengths)} tokens of a source are read"] if is_cut else []),
        *([f"- To be done to each translation after: {'; '.join(after)}"] if after else []),
        f"- Search it was made for: beam {decoding['beam']}, length penalty {decoding['length_penalty']}, alpha "
        f"{decoding['alpha']}, at most {decoding['max_length_ratio']:g} x the source's tokens + "
        f"{decoding['max_length_offset']}{stated}",
    ]
    if decoding["length_penalty"] == "wu":
        lines.append("- The library itself has n^alpha only, not this penalty, ((5 + n) / 6)^alpha")
    if manifest["to"] == "ctranslate2":
        lines.append(
            "- The library's own defaults cut sources at 1,024 tokens and translations at 256: give\n"
            "  max_input_length=0 and max_decoding_length"
        )
    if manifest["to"] == "huggingface":
        lines += [
            "- Its search never produces <pad>, <s>, <unk>, tags and unused entries (generation_config.json),\n"
            "  as nmtkit's",
            "- Its tokenizer reads </s>, <pad> and <unk> in a text as special tokens, a leading >>xx<< as a language",
            "  code, and U+2581 as a blank; nmtkit reads them as text",
        ]
    return "\n".join(lines) + "\n"
