"""Between text and token ids: prompts on the way in, replies and stop strings on the way out.

The engine deals in token ids only; what a user reads or writes passes through here.
"""

from pilotfish.text.prompt import chat_prompt_ids, raw_prompt_ids
from pilotfish.text.reply import Detokenizer, ReplyText
from pilotfish.text.stops import StopFinder
from pilotfish.text.tokenizer import Tokenizer
from pilotfish.text.tokens import TokenTexts

__all__ = [
    "Detokenizer",
    "ReplyText",
    "StopFinder",
    "TokenTexts",
    "Tokenizer",
    "chat_prompt_ids",
    "raw_prompt_ids",
]
