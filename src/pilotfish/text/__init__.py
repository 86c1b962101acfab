"""Between text and token ids: prompts on the way in, replies and stop strings on the way out.

The engine deals in token ids only; what a user reads or writes passes through here.
"""

from pilotfish.text.messages import as_messages, as_prompts
from pilotfish.text.prompt import (
    ChatPrompt,
    chat_prompt,
    check_template_options,
    fill_prompt_ids,
    prediction_ids,
    raw_prompt_ids,
    unknown_template_options,
)
from pilotfish.text.reasoning import ReasoningMarks, ReasoningSplitter, reasoning_marks
from pilotfish.text.reply import Detokenizer, ReplyText
from pilotfish.text.stops import StopFinder
from pilotfish.text.tokenizer import Tokenizer
from pilotfish.text.tokens import TokenTexts

__all__ = [
    "ChatPrompt",
    "Detokenizer",
    "ReasoningMarks",
    "ReasoningSplitter",
    "ReplyText",
    "StopFinder",
    "TokenTexts",
    "Tokenizer",
    "as_messages",
    "as_prompts",
    "chat_prompt",
    "check_template_options",
    "fill_prompt_ids",
    "prediction_ids",
    "raw_prompt_ids",
    "reasoning_marks",
    "unknown_template_options",
]
