"""Prompts of our own for measuring: code edits, chat, and a mix of awkward texts."""

from __future__ import annotations

from pilotfish.bench.workload import own_workload

CODE_EDITS = [prompt.content for prompt in own_workload().prompts if prompt.category == "code_edit"]

CHATS = [
    "What should I pack for a rainy weekend in the mountains?",
    "Explain to a ten-year-old why the sky is blue.",
    "Give me three ideas for a birthday party for a retired sailor.",
    "How do I keep basil alive on a kitchen window?",
    "Write a polite note asking a neighbour to move their bicycle.",
    "What is the difference between a hurricane and a tornado?",
    "Suggest a simple dinner with lentils and carrots.",
    "Describe a quiet harbour at dawn in five sentences.",
    "Why do we need to sleep?",
    "List the steps to change the tyre of a car.",
]

# chat, code, edit, translation, a single token, emoji and CJK
MIX = [
    *CHATS[:5],
    "Write a Python function that returns the n-th Fibonacci number.",
    "Write a SQL query that counts orders per customer.",
    "Write a regular expression for a 24-hour time such as 07:45.",
    CODE_EDITS[0],
    CODE_EDITS[1],
    CODE_EDITS[4],
    "Translate into German: The small fish swims ahead of the shark.",
    "Translate into French: Where is the nearest railway station?",
    "Translate into Spanish: We will meet again next summer.",
    "a",
    "👩‍👩‍👧 🐟🦈 What do these emoji mean?",
    "请用中文介绍一下鲨鱼。",
    "日本の首都はどこですか?一文で答えてください。",
    "  Two leading spaces,\ttabs,\n\nand empty lines.  ",
    'Return this as JSON: name Ada, age 36, languages "English" and "French".',
]
