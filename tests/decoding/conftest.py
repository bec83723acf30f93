import pytest

from nmtkit.text.new_tokenizers import learn_tokenizer
from nmtkit.text.tokenizer import Tokenizer
from tests.decoding.models import TEXT, data_config


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return learn_tokenizer(data_config(), lambda: TEXT)
