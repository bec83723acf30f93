import pytest

from nmtkit.text.tokenizer import Tokenizer
from tests.decoding.models import TEXT, data_config


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.learn(data_config(), lambda: TEXT)
