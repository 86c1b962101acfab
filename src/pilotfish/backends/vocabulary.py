"""The rule by which a draft model's vocabulary fits a target's.

1. The tokenizers are of one kind (model and pre-tokenizer).
2. Every ordinary token both have is the same text under the same id. Sizes may differ: padding
   and tokens added at the end of one vocabulary do not matter, the draft never proposes an id the
   target has not.
3. Control tokens may differ (another end token, an unused one renamed): a notice says so. The
   target's tokenizer and template are always used, so such a token only costs a rejected draft.

What breaks 1 or 2 is refused: the draft would propose other text than it means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pilotfish.errors import VocabularyMismatch


class TokenTable(Protocol):
    """What the rule reads of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Return the number of real tokens."""

    @property
    def kind(self) -> str:
        """Return the kind of tokenizer, pre-tokenizer included."""

    @property
    def end_ids(self) -> frozenset[int]:
        """Return the ids that end a reply."""

    @property
    def bos_id(self) -> int | None:
        """Return the beginning token."""

    def all_token_texts(self) -> Sequence[str]:
        """Return the text of every token, by id."""

    def is_control(self, token_id: int) -> bool:
        """Return whether the token is a control token."""


def check_vocabularies(target: TokenTable, draft: TokenTable) -> list[str]:
    """Return notices about harmless differences; VocabularyMismatch names the first other one."""
    hint = "use a draft model of the target's family, or --drafter suffix"
    if target.kind != draft.kind:
        raise VocabularyMismatch(
            f"the draft's tokenizer is {draft.kind}, the target's is {target.kind}", hint=hint
        )
    differing_control = []
    texts = zip(target.all_token_texts(), draft.all_token_texts(), strict=False)
    for token_id, (wanted, offered) in enumerate(texts):
        if wanted == offered:
            continue
        if target.is_control(token_id) or draft.is_control(token_id):
            differing_control.append(token_id)
            continue
        raise VocabularyMismatch(
            f"token {token_id} is {wanted!r} in the target and {offered!r} in the draft", hint=hint
        )
    notices = []
    if target.vocab_size != draft.vocab_size:
        notices.append(
            f"the draft has {draft.vocab_size} tokens and the target {target.vocab_size}; "
            "only shared ones are drafted"
        )
    if differing_control:
        notices.append(f"draft and target name control tokens {differing_control[:5]} differently")
    if target.end_ids != draft.end_ids or target.bos_id != draft.bos_id:
        notices.append("draft and target begin or end text differently; the target's way is used")
    return notices
