#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tokenizer_golden.json: what the Hugging Face tokenizers library makes of awkward texts.

Usage: python3 make_tokenizer_golden.py   (needs `pip install tokenizers`; tests need only the file it writes)

The vocabulary is that of models/tiny-gdn; each variant replaces members of its tokenizer.json ("set") and of its
model ("model"), so that pre-tokenizers and templates of other families are covered without their files.
Per text: ids (special tokens recognised), plain (special tokens read as text), templated (ids with the
post-processor), decoded (all ids, special tokens shown).
"""
import json
import os

import tokenizers

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "..", "..", "models", "tiny-gdn", "tokenizer.json")

TEXTS = [
    # field-log F07
    "->", "(x):\n", "12345", "e\u0301", "caf\u00e9 cafe\u0301",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
    "~ ~~", "one\r\ntwo\r\n\r\nthree", "\tif x:\n\t\treturn", "   word", "a   b", "word   ", "   ", " ", "\n",
    "\n\n\n  x",
    "", "a", "The whale's teeth; we'll see, I'VE seen. THEY'RE", "'s 'S '\u017f 'K don't", "can't've",
    # scripts, symbols, joiners
    "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 ok",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002", "\u65e5\u672c\u8a9e\u306e\u30c6\u30b9\u30c8",
    "\ud55c\uae00 \u1112\u1161\u11ab", "\u0417\u0434\u0440\u0430\u0432\u0441\u0442\u0432\u0443\u0439",
    "\u0645\u0631\u062d\u0628\u0627", "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22",
    "\u00bd \u00b2 \u2163 \u0664\u0665\u0666",
    "\u00a0non\u00a0breaking", "\u2003em\u2028line\u2029para\u0085nel", "\u180e mongolian\u180e",
    "zero\u200bwidth \ufeffbom", "\x00nul\x00",
    "\x1c\x1d\x1e\x1f separators", "\x0b\x0c vertical", "A\u030a\u0327\u0301 order", "\u1e9b\u0323",
    "\uac00\u11a8", "\u2126 \u212b", "\ufb01 \ufb05",
    "\u0958 composition excluded", "q\u0307\u0323", "\U0001d15e\U0001d165",
    # added tokens in text
    "<|im_start|>user\nHi<|im_end|>\n", "<|endoftext|>", "a<|im_start|>", "<|im_start", "<|im_<|im_end|>",
    "<<|im_end|>>", "<|im_end|><|im_end|> x",
    " <|im_end|> ", "<THINK>", "x<THINK> y", "<THINKER>", "<q\u0307\u0323>", "<q\u0323\u0307>",
    # code, numbers, long runs
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 3.14159f; }", "x==y!=z&&!w||v",
    "https://example.org/a?b=c&d=%20#f", "snake_case camelCase PascalCase HTTPServer2",
    "1,234,567.89", "0x1F 1e-10", "a" * 200, " " * 100, "\n" * 70, "ab" * 150, "!" * 90, "\u4e2d" * 60,
    "1" * 50, " \n \n \n", "\r\r\n\n\r", "\u0301\u0301 x\u0301\u0302",
    "Mixed \u4e2d\u6587English\u65e5\u672c 123abc", "\u4e2d\u3002\u56fd\u3001\u4eba", "WiFi\u4e2dABC'll",
    "iPhone15Pro's", "\u01c5 titlecase \u02b0 modifier",
]

SPLIT = lambda regex: {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
LEAD = r"[^\r\n\p{L}\p{N}]?"
TEKKEN = (LEAD + "[" + UPPER + "]*[" + LOWER + "]+|" + LEAD + "[" + UPPER + "]+[" + LOWER + "]*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
NO_HAN = r"&&[^\p{Han}]]"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI = (r"[\p{Han}]+|" + LEAD + "[" + UPPER + NO_HAN + "*[" + LOWER + NO_HAN + "+" + ENDING +
        "|" + LEAD + "[" + UPPER + NO_HAN + "+[" + LOWER + NO_HAN + "*" + ENDING +
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SEQUENCE = lambda *parts: {"type": "Sequence", "pretokenizers": list(parts)}


def added(source):
    new = lambda i, content, **more: {"id": i, "content": content, "single_word": False, "lstrip": False,
                                      "rstrip": False, "normalized": False, "special": False, **more}
    return source["added_tokens"] + [new(4096, "<THINK>"), new(4097, "<q\u0307\u0323>", normalized=True),
                                     new(4098, "<THINKER>")]


def template(before, after):
    special = lambda name: {"SpecialToken": {"id": name, "type_id": 0}}
    ids = {"<|endoftext|>": 0, "<|im_end|>": 2}
    single = [special(n) for n in before] + [{"Sequence": {"id": "A", "type_id": 0}}] + [special(n) for n in after]
    return {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {n: {"id": n, "ids": [i], "tokens": [n]} for n, i in ids.items()}}


def variants(source):
    byte_level = dict(BYTES, use_regex=True)
    yield "qwen3.5", {}, {}
    yield "qwen2", {"pre_tokenizer": SEQUENCE(SPLIT(QWEN2), BYTES)}, {}
    yield "gpt2", {"pre_tokenizer": byte_level, "normalizer": None, "post_processor": byte_level}, {}
    yield "llama3", {"pre_tokenizer": SEQUENCE(SPLIT(LLAMA3), BYTES), "normalizer": None,
                     "post_processor": {"type": "Sequence",
                                        "processors": [byte_level, template(["<|endoftext|>"], [])]}}, {"ignore_merges": True}
    yield "tekken", {"pre_tokenizer": SEQUENCE(SPLIT(TEKKEN), BYTES), "added_tokens": added(source),
                     "post_processor": template(["<|endoftext|>"], ["<|im_end|>"])}, {}
    yield "kimi", {"pre_tokenizer": SEQUENCE(SPLIT(KIMI), BYTES),
                   "normalizer": {"type": "Sequence", "normalizers": []}}, {}
    kana = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
    yield "two splits", {"pre_tokenizer": SEQUENCE(SPLIT(r"\p{N}{1,3}"), SPLIT(kana), SPLIT(r"x*"), byte_level)}, {}


def make_variant(source, name, members, model):
    patched = dict(source, **members)
    patched["model"] = dict(source["model"], **model)
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(patched))
    cases = []
    for text in TEXTS:
        tokenizer.encode_special_tokens = False
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        case = {"text": text, "ids": ids}
        templated = tokenizer.encode(text).ids
        if templated != ids:
            case["templated"] = templated
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        if decoded != text:
            case["decoded"] = decoded
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        if plain != ids:
            case["plain"] = plain
        cases.append(case)
    return {"name": name, "set": members, "model": model, "cases": cases}


def main():
    with open(SOURCE, encoding="utf-8") as file:
        source = json.load(file)
    golden = {"made_with": "tokenizers " + tokenizers.__version__,
              "variants": [make_variant(source, *v) for v in variants(source)]}
    with open(os.path.join(HERE, "tokenizer_golden.json"), "w", encoding="ascii") as file:
        json.dump(golden, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
