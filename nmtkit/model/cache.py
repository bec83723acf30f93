"""What decoding one token at a time remembers: keys and values of earlier positions and of the source."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass
class LayerCache:
    """Keys and values of one decoder layer.

    Those of the source are kept once per sentence; its hypotheses share them.
    """

    source_keys: Float[Tensor, "batch heads source d_k"]
    source_values: Float[Tensor, "batch heads source d_v"]
    keys: Float[Tensor, "rows heads length d_k"] | None = None
    values: Float[Tensor, "rows heads length d_v"] | None = None

    def append(
        self, keys: Float[Tensor, "rows heads new d_k"], values: Float[Tensor, "rows heads new d_v"]
    ) -> tuple[Tensor, Tensor]:
        """Adds new positions and returns the keys and values of all so far."""
        if self.keys is None or self.values is None:
            self.keys, self.values = keys, values
        else:
            self.keys, self.values = torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2)
        return self.keys, self.values


@dataclass
class DecoderCache:
    """The caches of all decoder layers.

    Attributes:
        source_mask: True for real source tokens; None when there is no padding.
        length: positions decoded so far.
    """

    layers: list[LayerCache]
    source_mask: Bool[Tensor, "batch 1 1 source"] | None
    length: int = 0

    def select(self, rows: Int[Tensor, "sentences beam"]) -> None:
        """Keeps, drops or repeats hypotheses: row i of the result is what row ``rows.flatten()[i]`` was.

        Each line of ``rows`` holds rows of one and the same sentence; the lines are in the order of the sentences, and
        sentences without a line are dropped.
        """
        first = self.layers[0]
        assert first.keys is not None
        per_sentence = first.keys.size(0) // first.source_keys.size(0)
        sentences = rows[:, 0] // per_sentence
        all_stay = len(sentences) == first.source_keys.size(0)
        flat = rows.flatten()
        for layer in self.layers:
            assert layer.keys is not None
            assert layer.values is not None
            layer.keys, layer.values = layer.keys.index_select(0, flat), layer.values.index_select(0, flat)
            if not all_stay:
                layer.source_keys = layer.source_keys.index_select(0, sentences)
                layer.source_values = layer.source_values.index_select(0, sentences)
        if self.source_mask is not None and not all_stay:
            self.source_mask = self.source_mask.index_select(0, sentences)
