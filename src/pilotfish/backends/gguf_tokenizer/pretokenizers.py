"""How byte-level vocabularies cut a text into words before pairs are merged, by name in the file.

The cuts are those of llama.cpp, which for some models differ from the model's own tokenizer file:
the ids must be the ones the same file gives there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """The cuts of one family.

    patterns       regular expressions, each applied to the pieces the one before has left;
                   a match is a piece of its own, and so is what lies between two matches
    ignore_merges  a word that is a token is that token, whatever its merges say
    add_bos        whether prompts begin with the beginning token when the file does not say
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


# Letters are spelled out: (?i) would also fold U+017F into "s".
_ENDINGS = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
# A letter outside ASCII counts as upper and lower case.
_UPPER, _LOWER = r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?"
    + f"{_UPPER}*{_LOWER}+%s|"
    + r"[^\r\n\p{L}\p{N}]?"
    + f"{_UPPER}+{_LOWER}*%s"
)

_GPT2 = r"'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_ENDINGS}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|{_BLANKS}"
_QWEN2 = rf"{_ENDINGS}|{_WORD}|\p{{N}}|{_SIGNS}|{_BLANKS}"
_QWEN35 = (
    _ENDINGS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _BLANKS
)
_TEKKEN = _CASED % ("", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _BLANKS
_GPT4O = (
    _CASED % (f"(?:{_ENDINGS})?", f"(?:{_ENDINGS})?")
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
    + _BLANKS
)
_SEED_CODER = rf"{_ENDINGS}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_BLANKS}"
_MINICPM5 = rf"{_ENDINGS}|{_WORD}|\p{{N}}+|{_SIGNS}|{_BLANKS}"
# The ranges of DeepSeek's letters and signs; they span blanks, which never belong to them.
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b"
    "\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787"
    "\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_SIGNS = "[[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]&&[^\\s]]"
_DEEPSEEK_EAST = "[[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]&&[^\\s]]+"
_DEEPSEEK3 = (
    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    + _BLANKS
)
_NORDIC = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"

# the names, separated by blanks, under which files ask for each way to cut
_FAMILIES: tuple[tuple[str, PreTokenizer], ...] = (
    (
        "default",
        PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    ),
    (
        "gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 mpt olmo jais trillion granite-docling",
        PreTokenizer((_GPT2,)),
    ),
    (
        "smollm starcoder refact command-r codeshell exaone minerva-7b",
        PreTokenizer((r"\p{N}", _GPT2)),
    ),
    ("falcon", PreTokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]"))),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2",
        PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    ("dbrx smaug-bpe", PreTokenizer((_LLAMA3,))),
    ("qwen2 deepseek-r1-qwen megrez stablelm2 hunyuan", PreTokenizer((_QWEN2,))),
    ("qwen35", PreTokenizer((_QWEN35,))),
    (
        "deepseek-llm",
        PreTokenizer(
            (
                r"[\r\n]",
                rf"\s?[{_DEEPSEEK_LETTERS}]+",
                rf"\s?{_DEEPSEEK_SIGNS}+",
                r"\s+\z",
                _DEEPSEEK_EAST,
                r"\p{N}+",
            )
        ),
    ),
    (
        "deepseek-coder",
        PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_EAST, r"\p{N}")),
    ),
    (
        "deepseek-v3 hunyuan-dense",
        PreTokenizer((r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u30ff]+", _DEEPSEEK3)),
    ),
    ("tekken", PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True)),
    ("gpt-4o llama4", PreTokenizer((_GPT4O,))),
    ("seed-coder", PreTokenizer((_SEED_CODER,))),
    ("minicpm5", PreTokenizer((r"\p{N}{1,3}", _MINICPM5), ignore_merges=True)),
    ("poro-chat bloom gpt3-finnish", PreTokenizer((_NORDIC,))),
    ("viking", PreTokenizer((_NORDIC, r"\p{N}"))),
)
PRE_TOKENIZERS = {name: cuts for names, cuts in _FAMILIES for name in names.split()}
