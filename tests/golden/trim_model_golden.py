#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trims a model's golden.safetensors to what tests/unit/test_engine.c compares.

    trim_model_golden.py IN OUT

IN comes from the training of the model (models/README.md): `tokens`, `nll_4095` and `greedy_from_64` are kept
whole; of the logits of two forwards (over 64 and over 512 tokens) some rows, as `logits` with their positions in
`logits_at`; of the hidden states `hidden.i`, which enter layer i, those of some layers.
"""
import json
import struct
import sys

LOGITS = (("logits_first64", 0, (0, 1, 3, 16, 31, 63)), ("logits_last16_of_512", 496, (0, 15)))
WHOLE = ("tokens", "nll_4095", "greedy_from_64")
HIDDEN = (0, 1, 3, 4, 5, 6, 8, 14)


def read(path):
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    body = data[8 + length :]
    return {name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])]) for name, entry in header.items()}


def write(path, tensors):
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)


def main():
    source, target = sys.argv[1:]
    tensors = read(source)
    kept = {name: tensors[name] for name in WHOLE}
    positions, rows = [], b""
    for name, first, wanted in LOGITS:
        dtype, (_, vocab), data = tensors[name]
        for row in wanted:
            positions.append(first + row)
            rows += data[row * vocab * 4 : (row + 1) * vocab * 4]
    kept["logits"] = (dtype, [len(positions), vocab], rows)
    kept["logits_at"] = ("I32", [len(positions)], struct.pack(f"<{len(positions)}i", *positions))
    kept.update({f"hidden.{i}": tensors[f"hidden.{i}"] for i in HIDDEN if f"hidden.{i}" in tensors})
    write(target, kept)


if __name__ == "__main__":
    main()
