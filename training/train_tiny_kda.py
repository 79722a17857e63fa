#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains models/tiny-kda: Kimi-Linear in small (KDA, latent attention, experts), about 5.7 million parameters.

    python3 train_tiny_kda.py TRAIN.txt HELDOUT.txt TOKENIZER.json OUT [SECONDS]

TRAIN and HELDOUT are plain text, or .xz; TOKENIZER that of the other bundled models. Needs one GPU, torch and transformers 5.17
without fused kernels; SECONDS of training (default 300). OUT gets tiny-kda/ (config.json in the maker's spelling, bf16
safetensors, tokenizer.json) and tiny-kda.safetensors, the golden: fp32 arithmetic on the bf16 weights by the library's
own pure-torch path.

The delta rule runs in chunks of 16 in plain torch, where exp(-g) of a chunk's summed decay stays a number; it is
compared with the library's before anything is trained.
"""
import json
import lzma
import os
import shutil
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
import transformers.models.kimi_linear.modeling_kimi_linear as kimi
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import KimiLinearConfig

CHUNK, LOWEST_DECAY, LEARNING_RATE, BALANCE_RATE, SHARD_BYTES = 16, -5.0, 3e-3, 1e-3, 14_500_000
SHORT, LONG = (64, 1024), (8, 8192)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LIBRARY = {name: getattr(kimi, name) for name in ("chunk_kimi_delta_attention", "causal_conv1d_fn")}
LIBRARY_EXPERTS = kimi.KimiLinearExperts.forward
PUBLISHED = {
    "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "dtype": "bfloat16", "vocab_size": 4096,
    "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 96,
    "intermediate_size": 640, "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_experts": 6,
    "num_experts_per_token": 2, "num_shared_experts": 1, "moe_intermediate_size": 80, "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid", "routed_scaling_factor": 1.5, "num_expert_group": 1, "topk_group": 1,
    "use_grouped_topk": True, "hidden_act": "silu", "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "q_lora_rank": None,
    "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "mla_use_nope": True,
    "model_max_length": 262144, "tie_word_embeddings": True, "eos_token_id": 2, "bos_token_id": None,
    "pad_token_id": 0, "num_nextn_predict_layers": 0,
    "linear_attn_config": {"kda_layers": [1, 2, 4, 5], "full_attn_layers": [3, 6], "head_dim": 128, "num_heads": 2,
                           "short_conv_kernel_size": 4}}


def delta_rule(q, k, v, g, beta, initial_state=None, output_final_state=False, **_):
    """The recurrence of KDA in chunks; q, k, v, g [batch][tokens][heads][d], tokens a multiple of CHUNK."""
    dtype = q.dtype
    with torch.autocast(DEVICE, enabled=False):
        batch, tokens, heads, d = q.shape
        q, k, v, g, beta = (x.float() for x in (q, k, v, g, beta))
        q = q * torch.rsqrt(q.pow(2).sum(-1, keepdim=True) + 1e-6) * d ** -0.5
        k = k * torch.rsqrt(k.pow(2).sum(-1, keepdim=True) + 1e-6)
        chunks = lambda x: x.view(batch, tokens // CHUNK, CHUNK, heads, -1).permute(1, 0, 3, 2, 4).flatten(1, 2)
        q, k, v, g, beta = (chunks(x) for x in (q, k, v, g.clamp(min=LOWEST_DECAY), beta[..., None]))
        decay = g.cumsum(-2)
        k_in, k_out, q_in = k * decay.exp(), k * (-decay).exp(), q * decay.exp()
        upper = torch.ones(CHUNK, CHUNK, device=q.device, dtype=torch.bool).triu()
        within = ((beta * k_in) @ k_out.transpose(-1, -2)).masked_fill(upper, 0)
        scores = (q_in @ k_out.transpose(-1, -2)).masked_fill(upper.triu(1), 0)
        solved = torch.linalg.solve_triangular(within, torch.cat([beta * v, beta * k_in], -1), upper=False,
                                               unitriangular=True)
        last = decay[..., -1:, :]
        k_end, keep = (k * (last - decay).exp()).transpose(-1, -2), last.exp().transpose(-1, -2)
        state, values, reads = torch.zeros(batch * heads, d, v.shape[-1], device=q.device), [], []
        # unbind, not an index per chunk: its gradient is one stack instead of a whole tensor of zeros per chunk
        rows = torch.cat([solved[..., v.shape[-1]:], q_in], -2)
        for u, both, k_last, kept in zip(*(x.unbind() for x in (solved[..., :v.shape[-1]], rows, k_end, keep))):
            old, read = (both @ state).split(CHUNK, -2)
            values.append(u - old)
            reads.append(read)
            state = torch.baddbmm(state * kept, k_last, values[-1])
        y = torch.stack(reads) + scores @ torch.stack(values)
        y = y.unflatten(1, (batch, heads)).permute(1, 0, 3, 2, 4).reshape(batch, tokens, heads, -1)
    return y.to(dtype), None


def all_experts(self, hidden, index, weights):
    """Every expert on every token, weighted: for a few small experts faster than sorting, and without a host wait."""
    share = torch.zeros(len(hidden), self.num_experts, device=hidden.device).scatter(1, index, weights.float())
    gate, up = F.linear(hidden, self.gate_up_proj.flatten(0, 1)).view(len(hidden), self.num_experts, 2, -1).unbind(2)
    inner = F.silu(gate) * up * share[..., None].to(gate.dtype)
    return F.linear(inner.flatten(1), self.down_proj.transpose(0, 1).flatten(1))


def balance(router, _, outputs):
    """Moves the correction bias of the experts that got more than their share down, the others up."""
    if router.training:
        index = outputs[2].flatten()
        load = torch.zeros(router.num_experts, device=index.device).scatter_add(0, index, torch.ones_like(index).float())
        router.e_score_correction_bias += BALANCE_RATE * torch.sign(load.mean() - load)


def convolution(x, weight, bias=None, activation=None, **_):
    tokens = x.shape[-1]
    padded = F.pad(x, (3, 0))
    y = sum(padded[..., i:i + tokens] * weight.to(x.dtype)[:, i, None] for i in range(4))
    return F.silu(y) if activation else y


def use(fast):
    kimi.chunk_kimi_delta_attention = delta_rule if fast else LIBRARY["chunk_kimi_delta_attention"]
    kimi.causal_conv1d_fn = convolution if fast else LIBRARY["causal_conv1d_fn"]
    kimi.KimiLinearExperts.forward = all_experts if fast else LIBRARY_EXPERTS


def compare_with_library():
    draw = lambda *shape: torch.randn(2, 256, 2, *shape, device=DEVICE)
    q, k, v, beta = draw(128), draw(128), draw(128), torch.rand(2, 256, 2, device=DEVICE)
    g = -0.3 * torch.rand(2, 256, 2, 128, device=DEVICE)
    wanted = LIBRARY["chunk_kimi_delta_attention"](q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=True)[0]
    error = ((delta_rule(q, k, v, g, beta)[0] - wanted).norm() / wanted.norm()).item()
    print(f"chunked delta rule: relative error {error:.2g}", flush=True)
    assert error < 1e-3


def read_ids(path, tokenizer, last=None):
    opened = lzma.open(path, "rt") if path.endswith(".xz") else open(path, encoding="utf-8")
    with opened as file:
        text = file.read()
    text = text if last is None else text[-last:]
    parts = [text[i:i + 200_000] for i in range(0, len(text), 200_000)]
    ids = np.concatenate([np.array(e.ids, dtype=np.int32) for e in tokenizer.encode_batch(parts)])
    return torch.from_numpy(ids).to(DEVICE)


def initialise(model):
    model.lm_head.weight = model.model.embed_tokens.weight  # the library does not tie them for this family
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("A_log"):
                p.copy_(torch.log(torch.empty_like(p).uniform_(1, 16)))
            if name.endswith("dt_bias"):
                dt = torch.exp(torch.rand_like(p) * (np.log(0.1) - np.log(0.001)) + np.log(0.001))
                p.copy_(dt + torch.log(-torch.expm1(-dt)))


def loss_of(model, ids, rows, tokens):
    at = torch.randint(0, len(ids) - tokens - 1, (rows,), device=DEVICE)
    x = ids[at[:, None] + torch.arange(tokens + 1, device=DEVICE)].long()
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        logits = model(input_ids=x[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.float().flatten(0, 1), x[:, 1:].flatten())


def train(model, ids, seconds, checkpoint):
    """Nine tenths of the time on rows of 1,024 tokens, the rest on long ones; AdamW, warm-up, linear decay."""
    params = list({id(p): p for p in model.parameters()}.values())
    matrix = lambda p: p.ndim >= 2 and p.shape[0] != 1
    groups = [{"params": [p for p in params if matrix(p)], "weight_decay": 0.1},
              {"params": [p for p in params if not matrix(p)], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1, betas=(0.9, 0.95), fused=True)
    hooks = [m.register_forward_hook(balance) for m in model.modules() if isinstance(m, kimi.KimiLinearTopkRouter)]
    start, step = time.time(), 0
    while (part := (time.time() - start) / seconds) < 1:
        rows, tokens = SHORT if part < 0.9 else LONG
        rate = LEARNING_RATE * min(1, (step + 1) / 200) * (1.0 if part < 0.5 else max(0.02, (1 - part) / 0.5))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = loss_of(model, ids, rows, tokens)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        step += 1
        if step % 100 == 0 or step in (1, 10):
            print(f"step {step}, {time.time() - start:.0f} s, loss {loss.item():.4f}", flush=True)
        if step % 500 == 0:
            torch.save({k: v.bfloat16() for k, v in model.state_dict().items() if k != "lm_head.weight"}, checkpoint)
    print(f"{step} steps, {time.time() - start:.0f} s", flush=True)
    for hook in hooks:
        hook.remove()


def save_model(model, folder, tokenizer):
    """Checkpoint in the maker's layout: names as save_pretrained writes them, dense MLPs as mlp.*, tied matrix once."""
    shutil.rmtree(folder, ignore_errors=True)
    model.lm_head.weight = torch.nn.Parameter(model.model.embed_tokens.weight.detach().clone())
    model.save_pretrained(folder + ".tmp")
    tensors = {}
    for name, value in load_file(os.path.join(folder + ".tmp", "model.safetensors")).items():
        for part in ("gate", "up", "down"):
            name = name.replace(f"block_sparse_moe.{part}_proj", f"mlp.{part}_proj")
        whole = any(part in name for part in ("A_log", "dt_bias", "e_score_correction_bias"))
        tensors[name] = value.float() if whole else value.bfloat16()
    tensors.pop("lm_head.weight", None)
    shutil.rmtree(folder + ".tmp")
    os.makedirs(folder)
    size = lambda t: t.numel() * t.element_size()
    total, shards, index, filled = sum(map(size, tensors.values())), [{}], {}, 0
    for name, value in tensors.items():
        if filled + size(value) > SHARD_BYTES:
            shards.append({})
            filled = 0
        shards[-1][name] = value.contiguous()
        filled += size(value)
    for i, shard in enumerate(shards):
        file = "model.safetensors" if len(shards) == 1 else f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, os.path.join(folder, file), metadata={"format": "pt"})
        index.update(dict.fromkeys(shard, file))
    if len(shards) > 1:
        with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as out:
            json.dump({"metadata": {"total_size": total}, "weight_map": index}, out, indent=1)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as out:
        json.dump(PUBLISHED, out, indent=1)
    shutil.copy(tokenizer, os.path.join(folder, "tokenizer.json"))
    return tensors


def write_golden(model, ids, path):
    """What tests/golden/trim_model_golden.py expects."""
    window = ids[-800_000:].long()
    with torch.no_grad():
        out = model(input_ids=window[None, :512], use_cache=False, output_hidden_states=True)
        scored = torch.log_softmax(model(input_ids=window[None, :4096], use_cache=False).logits[0].float(), -1)
        greedy = model.generate(window[None, :64], max_new_tokens=192, do_sample=False, eos_token_id=None)[0]
    golden = {"tokens": window[:4096].int(), "logits_first64": out.logits[0, :64].float(),
              "logits_last16_of_512": out.logits[0, -16:].float(),
              "nll_4095": -scored[:-1].gather(1, window[1:4096, None])[:, 0], "greedy_from_64": greedy.int()}
    for i, hidden in enumerate(out.hidden_states):
        golden[f"hidden.{i}"] = hidden[0, :24].float()
    save_file({k: v.contiguous().cpu() for k, v in golden.items()}, path)
    print("golden nll", golden["nll_4095"].mean().item(), flush=True)


def main(train_path, heldout_path, tokenizer_path, out, seconds="300"):
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    compare_with_library()
    tokenizer = Tokenizer.from_file(tokenizer_path)
    ids, heldout = read_ids(train_path, tokenizer), read_ids(heldout_path, tokenizer, last=3_300_000)
    config = KimiLinearConfig(**PUBLISHED)
    config._attn_implementation = "sdpa"
    config._experts_implementation = "eager"
    model = kimi.KimiLinearForCausalLM(config).to(DEVICE).float()
    initialise(model)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters, {len(ids)} tokens", flush=True)
    use(fast=True)
    os.makedirs(out, exist_ok=True)
    train(model, ids, float(seconds), os.path.join(out, "checkpoint.pt"))
    model.eval()
    with torch.no_grad():
        for rows, tokens in (SHORT, LONG):
            losses = [loss_of(model, heldout, rows, tokens).item() for _ in range(8)]
            print(f"held out, {tokens} tokens: {np.mean(losses):.4f} nats per token", flush=True)
        for p in model.parameters():
            p.copy_(p.bfloat16().float())
    save_model(model, os.path.join(out, "tiny-kda"), tokenizer_path)
    use(fast=False)
    torch.backends.cuda.matmul.allow_tf32 = False
    model.set_attn_implementation("eager")
    write_golden(model, heldout, os.path.join(out, "tiny-kda.safetensors"))


if __name__ == "__main__":
    main(*sys.argv[1:])
