"""Three parties, three digests: the first that differs is named, and no text is shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tallystick.bundles.match import (
    DECLARED,
    MATERIALISED,
    BundlePrompt,
    ThreeDigests,
    check_source,
    declared_by,
    names_bundle,
    no_bundle,
    require_match,
    require_prompt,
)
from tallystick.contracts.request import ExpectedDigest, InferenceRun
from tallystick.errors import EvidenceError
from tests.support.sets import fake_digest, make_run

DIGESTS = ThreeDigests(fake_digest("bundle"), fake_digest("task"), fake_digest("model"))
PROMPT = BundlePrompt("task/prompt.txt", "west", "1/0/0", "a secret text")


def bundle_run() -> InferenceRun:
    return make_run(
        dataset=ExpectedDigest(DIGESTS.bundle),
        task=ExpectedDigest(DIGESTS.task),
        prompt=PROMPT.text,
        prompt_path=PROMPT.path,
        split=PROMPT.split,
        tile=PROMPT.tile,
    )


def test_what_agrees_passes() -> None:
    run = bundle_run()
    check_source(run)
    require_match(DECLARED, declared_by(run), MATERIALISED, DIGESTS)
    require_prompt(run, PROMPT)
    assert names_bundle(run)
    plain = make_run()
    check_source(plain)
    assert not names_bundle(plain)
    require_match(DECLARED, declared_by(plain), MATERIALISED, no_bundle(plain.model_digest).digests)
    require_prompt(plain, None)


def test_the_first_digest_that_differs_is_named() -> None:
    other = ThreeDigests(*(fake_digest(f"other {name}") for name in ("bundle", "task", "model")))
    mixed = other
    for name in ("bundle", "task", "model"):
        with pytest.raises(EvidenceError, match=f"the {name} digest materialised") as caught:
            require_match(DECLARED, DIGESTS, MATERIALISED, mixed)
        assert (caught.value.expected, caught.value.found) == (
            getattr(DIGESTS, name),
            getattr(mixed, name),
        )
        mixed = replace(mixed, **{name: getattr(DIGESTS, name)})
    require_match(DECLARED, DIGESTS, MATERIALISED, mixed)


@pytest.mark.parametrize(
    "changes", [{"path": "task/other.txt"}, {"split": "east"}, {"tile": "1/1/0"}, {"text": "other"}]
)
def test_another_prompt_is_refused_and_not_shown(changes: dict[str, str]) -> None:
    with pytest.raises(EvidenceError) as caught:
        require_prompt(bundle_run(), replace(PROMPT, **changes))
    words = " ".join(caught.value.lines())
    assert PROMPT.text not in words
    assert "other text" in words or changes.get("text") is None
    with pytest.raises(EvidenceError):
        require_prompt(bundle_run(), None)
    with pytest.raises(EvidenceError):
        require_prompt(make_run(), PROMPT)
    assert PROMPT.text not in repr(PROMPT)
