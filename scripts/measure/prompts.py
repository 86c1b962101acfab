"""Prompts of our own for measuring: code edits, chat, and a mix of awkward texts."""

from __future__ import annotations

import textwrap


def _edit(request: str, code: str) -> str:
    body = textwrap.dedent(code).strip()
    return f"{request} Reply with the whole code and nothing else.\n\n```python\n{body}\n```"


CODE_EDITS = [
    _edit(
        "Rename the class Basket to ShoppingCart and the method add to add_item everywhere.",
        """
        class Basket:
            def __init__(self, owner):
                self.owner = owner
                self.items = []

            def add(self, name, price, count=1):
                if count < 1:
                    raise ValueError("count must be positive")
                self.items.append({"name": name, "price": price, "count": count})

            def remove(self, name):
                self.items = [item for item in self.items if item["name"] != name]

            def total(self):
                return sum(item["price"] * item["count"] for item in self.items)

            def summary(self):
                lines = [f"Basket of {self.owner}"]
                for item in self.items:
                    lines.append(f"  {item['count']} x {item['name']}: {item['price']:.2f}")
                lines.append(f"Total: {self.total():.2f}")
                return "\\n".join(lines)


        basket = Basket("Ada")
        basket.add("tea", 4.5, 2)
        basket.add("honey", 6.0)
        print(basket.summary())
        """,
    ),
    _edit(
        "Add type hints to every function of this module.",
        """
        import math


        def mean(values):
            return sum(values) / len(values)


        def variance(values):
            center = mean(values)
            return sum((value - center) ** 2 for value in values) / len(values)


        def standard_deviation(values):
            return math.sqrt(variance(values))


        def normalize(values):
            center = mean(values)
            spread = standard_deviation(values)
            return [(value - center) / spread for value in values]


        def correlation(first, second):
            first, second = normalize(first), normalize(second)
            return mean([a * b for a, b in zip(first, second)])
        """,
    ),
    _edit(
        "Change the function so that it logs with logging.warning instead of print.",
        """
        import json
        import os


        def load_settings(path, defaults):
            settings = dict(defaults)
            if not os.path.exists(path):
                print("settings file not found, using defaults")
                return settings
            with open(path) as handle:
                try:
                    loaded = json.load(handle)
                except ValueError as error:
                    print("settings file is not valid JSON:", error)
                    return settings
            for key, value in loaded.items():
                if key not in defaults:
                    print("unknown setting ignored:", key)
                    continue
                if type(value) is not type(defaults[key]):
                    print("setting has the wrong type:", key)
                    continue
                settings[key] = value
            return settings
        """,
    ),
    _edit(
        "Add a docstring to each method and change nothing else.",
        """
        class Matrix:
            def __init__(self, rows):
                self.rows = [list(row) for row in rows]

            def shape(self):
                return len(self.rows), len(self.rows[0])

            def transpose(self):
                return Matrix(zip(*self.rows))

            def multiply(self, other):
                columns = list(zip(*other.rows))
                return Matrix(
                    [[sum(a * b for a, b in zip(row, column)) for column in columns]
                     for row in self.rows]
                )

            def trace(self):
                return sum(self.rows[i][i] for i in range(len(self.rows)))

            def scale(self, factor):
                return Matrix([[factor * value for value in row] for row in self.rows])
        """,
    ),
    _edit(
        "Fix the bug: an empty queue must return None instead of raising an IndexError.",
        """
        class TaskQueue:
            def __init__(self):
                self.tasks = []
                self.finished = []

            def push(self, name, priority=0):
                self.tasks.append((priority, name))
                self.tasks.sort(reverse=True)

            def pop(self):
                priority, name = self.tasks.pop(0)
                self.finished.append(name)
                return name

            def peek(self):
                return self.tasks[0][1]

            def __len__(self):
                return len(self.tasks)

            def report(self):
                return f"{len(self.tasks)} waiting, {len(self.finished)} finished"
        """,
    ),
    _edit(
        "Convert the camelCase names to snake_case.",
        """
        def readTable(filePath, columnNames):
            tableRows = []
            with open(filePath) as inputFile:
                for lineNumber, textLine in enumerate(inputFile, start=1):
                    cellValues = textLine.rstrip().split(",")
                    if len(cellValues) != len(columnNames):
                        raise ValueError(f"line {lineNumber}: wrong number of cells")
                    tableRows.append(dict(zip(columnNames, cellValues)))
            return tableRows


        def columnTotal(tableRows, columnName):
            runningTotal = 0.0
            for tableRow in tableRows:
                runningTotal += float(tableRow[columnName])
            return runningTotal
        """,
    ),
]

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
