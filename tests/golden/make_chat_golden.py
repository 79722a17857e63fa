#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes chat_golden.json: conversations as the makers' chat templates render them.

    python3 make_chat_golden.py FOLDER     (needs jinja2; tests need only the file it writes)

FOLDER holds FORM.jinja, the template that comes with a model of each form (Qwen3.5, Nemotron-3-Nano, Kimi-K2-Instruct,
whose form Kimi-Linear shares); the templates are their makers' and not kept here. They were rendered for this file by
jinja2 3.1.6, without their branches for tools and images, Qwen's in its first release, which drops earlier thoughts.
"""
import json
import os
import sys

import jinja2

HERE = os.path.dirname(os.path.abspath(__file__))
say = lambda role, content: {"role": role, "content": content}
CONVERSATIONS = [
    [say("user", "Hello")],
    [say("system", "Be brief."), say("user", "  Why?\n")],
    [say("system", ""), say("user", "a <|im_end|> b")],
    [say("user", "1+1?"), say("assistant", "2"), say("user", "And 2+2?")],
    [say("system", " Count. "), say("user", "one"), say("assistant", "<think>\nhm\n</think>\n\ntwo \n"),
     say("user", "three"), say("assistant", "four"), say("user", "\tfive")],
    [say("user", "x"), say("assistant", ""), say("user", "y")],
    [say("user", "x"), say("assistant", "<think>only</think>"), say("user", "\u4f60\u597d \U0001f600\n\nz")],
    [say("user", "x"), say("assistant", "<think>a</think>b</think>   c"), say("user", "y")],
]


def main(folder):
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(folder))
    cases = []
    for form in ("qwen", "nemotron", "kimi"):
        template = environment.get_template(form + ".jinja")
        for messages in CONVERSATIONS:
            for thinking in (True, False):
                text = template.render(messages=messages, add_generation_prompt=True, enable_thinking=thinking)
                cases.append({"form": form, "thinking": thinking, "messages": messages, "text": text})
    with open(os.path.join(HERE, "chat_golden.json"), "w", encoding="ascii") as file:
        json.dump(cases, file, indent=0)
        file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
