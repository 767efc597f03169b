from __future__ import annotations

from tests.support.tokenizer import BOS, BOS_ID, EOS, EOS_ID, tokens


def test_tokens_occur_once() -> None:
    assert len(set(tokens())) == len(tokens())


def test_every_byte_has_a_token_of_its_own() -> None:
    symbols = [name for name in tokens() if len(name) == 1]
    assert len(symbols) == 256


def test_special_ids() -> None:
    assert tokens()[BOS_ID] == BOS
    assert tokens()[EOS_ID] == EOS
