"""COMET, a learned metric: a neural network estimates the quality of a translation from source and reference.

The library is large and optional (`pip install 'nmtkit[comet]'`), and it downloads its models, which are larger still;
so it is used only where a model is named. This is the only module that imports it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmtkit.console import is_telling
from nmtkit.errors import DataError, in_one_line
from nmtkit.evaluation.scores import Score
from nmtkit.versions import release

if TYPE_CHECKING:
    import torch

BATCH_LINES = 16


class Comet:
    """A model of COMET, loaded once for all systems."""

    def __init__(self, model: str, device: "torch.device") -> None:
        """Args:
        model: its name, such as ``Unbabel/wmt22-comet-da``, or a checkpoint file on disk.

        Raises:
            DataError: unbabel-comet is not installed, or the model cannot be loaded.
        """
        try:
            from comet import download_model, load_from_checkpoint
        except ImportError as error:  # also of a package that COMET needs in an older version, such as numpy
            is_missing = isinstance(error, ModuleNotFoundError) and error.name == "comet"
            fault = "is not installed" if is_missing else f"cannot be imported ({error})"
            raise DataError(f"COMET {fault}; run `pip install 'nmtkit[comet]'`, or score without --comet") from None
        try:
            path = model if Path(model).is_file() else download_model(model)
            self._model: Any = load_from_checkpoint(path)
        except Exception as error:  # the library raises bare Exceptions, and those of every library below it
            reason = in_one_line(error)
            raise DataError(
                f"the COMET model {model} cannot be read ({reason}); see the name, the network, and whether its "
                "licence has to be accepted first"
            ) from None
        self._name = Path(model).name if Path(model).is_file() else model
        self._gpus = int(device.type == "cuda")

    def score(
        self, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
    ) -> tuple[Score, list[float]]:
        """Return the score of a system, and of each of its lines, from as many lines of each side, in plain text."""
        samples = [
            {"src": source, "mt": hypothesis, "ref": reference}
            for source, hypothesis, reference in zip(sources, hypotheses, references, strict=True)
        ]
        found = self._model.predict(samples, batch_size=BATCH_LINES, gpus=self._gpus, progress_bar=is_telling())
        signature = f"nrefs:1|model:{self._name}|unbabel-comet:{release('unbabel-comet')}"
        score = Score(float(found.system_score), signature)
        return score, [float(score) for score in found.scores]
