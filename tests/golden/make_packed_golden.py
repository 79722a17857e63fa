#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes packed.safetensors: random codes of every packed weight format, and the weights they stand for.

    python3 make_packed_golden.py     (needs torch, safetensors and gguf from PyPI; tests need only the file)

Made with gguf 0.19.0 and torch 2.15.0. For each format F: F.codes [ROWS][bytes of a row], F.values f32 [ROWS][COLS], and
where scales lie apart F.scales. Formats of llama.cpp are decoded by the gguf package, E4M3 by torch.
"""
import os

import gguf
import numpy as np
import torch
from safetensors.numpy import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
ROWS, COLS = 3, 512
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)
# offsets of the f16 scales in a block, and of one-byte exponents, which random bytes would make huge
HALVES = {"Q8_0": (0,), "Q4_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "MXFP4": (), "NVFP4": ()}


def e4m3(codes):
    return torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()


def blocks(random, name):
    kind = gguf.GGMLQuantizationType[name]
    weights, size = gguf.GGML_QUANT_SIZES[kind]
    codes = random.integers(0, 256, (ROWS, COLS // weights, size), dtype=np.uint8)
    for at in HALVES[name]:
        scales = (0.01 * random.standard_normal((ROWS, COLS // weights))).astype(np.float16)
        codes[:, :, at:at + 2] = scales.view(np.uint8).reshape(ROWS, -1, 2)
    if name == "MXFP4":
        codes[:, :, 0] = random.integers(110, 135, codes.shape[:2])
    codes = codes.reshape(ROWS, -1)
    return codes, gguf.quants.dequantize(codes, kind).astype(np.float32)


def pairs(random, block, scale_codes, scales):
    codes = random.integers(0, 256, (ROWS, COLS // 2), dtype=np.uint8)
    values = np.stack([E2M1[codes & 15], E2M1[codes >> 4]], axis=-1).reshape(ROWS, COLS)
    return codes, (values.reshape(ROWS, -1, block) * scales[:, :, None]).reshape(ROWS, COLS)


def main():
    random = np.random.default_rng(1)
    out = {}
    for name in HALVES:
        out[name + ".codes"], out[name + ".values"] = blocks(random, name)
    factor = np.float32(0.03125)
    codes = random.integers(0, 127, (ROWS, COLS // 16), dtype=np.uint8)
    out["PAIRS16.scales"] = codes
    out["PAIRS16.codes"], out["PAIRS16.values"] = pairs(random, 16, codes, e4m3(codes) * factor)
    codes = random.integers(110, 135, (ROWS, COLS // 32), dtype=np.uint8)
    out["PAIRS32.scales"] = codes
    out["PAIRS32.codes"], out["PAIRS32.values"] = pairs(random, 32, codes, np.exp2(codes.astype(np.float32) - 127))
    codes = np.tile(np.arange(256, dtype=np.uint8), (ROWS, COLS // 256))
    out["F8.codes"] = codes
    out["F8.scales"] = random.random((2, 5), dtype=np.float32)  # blocks of 2 rows and 120 columns
    grid = out["F8.scales"][np.arange(ROWS)[:, None] // 2, np.arange(COLS)[None] // 120]
    out["F8.values"] = e4m3(codes) * grid
    save_file({k: np.ascontiguousarray(v) for k, v in out.items()}, os.path.join(HERE, "packed.safetensors"))


if __name__ == "__main__":
    main()
