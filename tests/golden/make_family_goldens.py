#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes families/NAME/: tiny random checkpoints of model families, and what transformers computes with them.

    python3 make_family_goldens.py [NAME]...     (needs torch and transformers; the tests need only the files)

Made with torch 2.15.0 on the CPU and transformers 5.17.0, without fused kernels, so that the pure-torch paths run, in
fp32. Everything that a default initialisation leaves at 0 or 1 is randomised (norms, A_log, dt_bias, D, convolutions,
correction biases), head ratios are 2 and 3, sizes are odd. Matrices hold values that bf16 can express and are stored so;
the rest is f32.

NAME/config.json and model.safetensors are in the layout of the makers' own checkpoints; golden.safetensors has
    tokens        [130]
    logits_at     positions; logits[i] belongs to tokens[0 .. logits_at[i]]
    logits        [len(logits_at)][vocab], each from a full forward of that length
    state         of the first recurrent layer after all tokens, [value heads][d_v][d_k]
Every logit is also computed token by token with the cache; the script ends if the two differ.
"""
import json
import os
import re
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
LENGTHS = (1, 3, 63, 64, 65, 130)
VOCAB = 139


def rope(theta, factor):
    return {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": factor}


def qwen3_5_moe():
    config = transformers.Qwen3_5MoeTextConfig(
        vocab_size=VOCAB, hidden_size=36, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1, head_dim=16,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=8, linear_value_head_dim=12,
        moe_intermediate_size=10, shared_expert_intermediate_size=14, num_experts=7, num_experts_per_tok=3,
        rope_parameters=rope(10000.0, 0.5), max_position_embeddings=512, eos_token_id=2)
    return config, transformers.Qwen3_5MoeForCausalLM(config), None


def qwen3_next():
    config = transformers.Qwen3NextConfig(
        vocab_size=VOCAB, hidden_size=40, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        layer_types=["linear_attention", "full_attention", "linear_attention"], intermediate_size=22,
        linear_num_key_heads=3, linear_num_value_heads=6, linear_key_head_dim=8, linear_value_head_dim=10,
        moe_intermediate_size=10, shared_expert_intermediate_size=6, num_experts=7, num_experts_per_tok=3,
        mlp_only_layers=[1], rope_parameters=rope(10000.0, 0.25), max_position_embeddings=512, eos_token_id=2)
    return config, transformers.Qwen3NextForCausalLM(config), None


def nemotron(**more):
    config = transformers.NemotronHConfig(
        vocab_size=VOCAB, hidden_size=36, num_attention_heads=4, num_key_value_heads=2, head_dim=10, intermediate_size=22,
        mamba_num_heads=6, mamba_head_dim=10, ssm_state_size=12, n_groups=2, expand=2, chunk_size=32,
        n_routed_experts=7, num_experts_per_tok=3, moe_intermediate_size=11, moe_shared_expert_intermediate_size=9,
        routed_scaling_factor=2.5, max_position_embeddings=512, eos_token_id=2, **more)
    model = transformers.NemotronHForCausalLM(config)
    for module in model.modules():  # the published models do not clamp dt at time_step_min
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = (0.0, float("inf"))
    return config, model, None


def nemotron_h_moe():
    return nemotron(hybrid_override_pattern="MEM*E-")


def nemotron_h_latent():
    return nemotron(hybrid_override_pattern="EM*EM", moe_latent_size=18)


def mamba2():
    config = transformers.Mamba2Config(
        vocab_size=VOCAB, hidden_size=36, num_hidden_layers=3, num_heads=6, head_dim=12, state_size=20, n_groups=1,
        expand=2, chunk_size=32, tie_word_embeddings=True, eos_token_id=0)
    return config, transformers.Mamba2ForCausalLM(config), None


def granite(**more):
    config = transformers.GraniteMoeHybridConfig(
        vocab_size=VOCAB, hidden_size=36, num_hidden_layers=3, layer_types=["mamba", "attention", "mamba"],
        num_attention_heads=6, num_key_value_heads=2, shared_intermediate_size=20, intermediate_size=11,
        mamba_n_heads=6, mamba_n_groups=1, mamba_d_state=16, mamba_d_head=12, mamba_expand=2, mamba_chunk_size=32,
        embedding_multiplier=3.0, attention_multiplier=0.3, residual_multiplier=0.4, logits_scaling=1.7,
        position_embedding_type="nope", max_position_embeddings=512, eos_token_id=2, **more)
    return config, transformers.GraniteMoeHybridForCausalLM(config), None


def granite_moe():
    return granite(num_local_experts=7, num_experts_per_tok=3, tie_word_embeddings=True)


def granite_dense():
    return granite(num_local_experts=0, num_experts_per_tok=0)


def kimi_linear():
    published = {
        "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "vocab_size": VOCAB, "hidden_size": 34,
        "num_hidden_layers": 4, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 13,
        "intermediate_size": 26, "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_experts": 7,
        "num_experts_per_token": 3, "num_shared_experts": 1, "moe_intermediate_size": 11, "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid", "routed_scaling_factor": 2.446, "num_expert_group": 1, "topk_group": 1,
        "use_grouped_topk": True, "hidden_act": "silu", "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
        "q_lora_rank": None, "kv_lora_rank": 18, "qk_nope_head_dim": 12, "qk_rope_head_dim": 6, "v_head_dim": 10,
        "mla_use_nope": True, "model_max_length": 512, "tie_word_embeddings": False, "eos_token_id": 2,
        "bos_token_id": 1, "pad_token_id": 0, "num_nextn_predict_layers": 0,
        "linear_attn_config": {"full_attn_layers": [2, 4], "kda_layers": [1, 3], "head_dim": 10, "num_heads": 3,
                               "short_conv_kernel_size": 4}}
    config = transformers.KimiLinearConfig(**published)
    return config, transformers.KimiLinearForCausalLM(config), published


FAMILIES = (qwen3_5_moe, qwen3_next, nemotron_h_moe, nemotron_h_latent, mamba2, granite_moe, granite_dense, kimi_linear)


def randomise(model, seed):
    """Weights of useful sizes; those of more than one dimension rounded to bf16."""
    random = torch.Generator().manual_seed(seed)
    draw = lambda like, scale: scale * torch.randn(like.shape, generator=random)
    one_plus = ("Qwen3_5", "Qwen3Next")
    for name, value in list(model.named_parameters()) + list(model.named_buffers()):
        last = name.split(".")[-2:] if name.endswith("weight") else name.split(".")[-1:]
        if "inv_freq" in name:
            continue
        if "A_log" in name:
            new = torch.log(0.5 + 4 * torch.rand(value.shape, generator=random))
        elif "dt_bias" in name:
            new = draw(value, 1.0) - 1.5
        elif "norm" in last[0]:
            zero = type(model).__name__.startswith(one_plus) and "linear_attn" not in name
            new = draw(value, 0.3) + (0.0 if zero else 1.0)
        elif name.endswith("D") or "correction_bias" in name or value.dim() == 1:
            new = draw(value, 0.4)
        elif "conv1d" in name:
            new = draw(value, 0.5)
        elif "router" in name or name.endswith("gate.weight"):
            new = draw(value, 0.3)
        elif "embed" in name:
            new = draw(value, 0.2 if model.config.tie_word_embeddings else 0.7)
        else:
            new = draw(value, 0.8 / value.shape[-1] ** 0.5)
        with torch.no_grad():
            value.copy_(new.bfloat16().float() if value.dim() > 1 else new)


def check_decoding(model, tokens, full):
    cache, worst = None, 0.0
    for i in range(len(tokens)):
        out = model(tokens[None, i:i + 1], **cache_of(model, cache), use_cache=True)
        cache = out.past_key_values if hasattr(out, "past_key_values") else out.cache_params
        worst = max(worst, (out.logits[0, 0] - full[i]).abs().max().item())
    return worst, cache


def cache_of(model, cache):
    name = "cache_params" if type(model).__name__.startswith("Mamba2") else "past_key_values"
    return {name: cache} if cache is not None else {}


def first_state(cache):
    for layer in getattr(cache, "layers", []):
        states = getattr(layer, "recurrent_states", None)
        state = states[0] if isinstance(states, (list, tuple, dict)) else states
        if state is not None:
            return state
    raise SystemExit("no recurrent state in the cache")


def stack_experts(weights):
    """Unquantised Qwen3.5 files hold all experts of a layer in one tensor."""
    out = {k: v for k, v in weights.items() if ".experts." not in k}
    for at in sorted({k.split(".experts.")[0] for k in weights if ".experts." in k}):
        count = len([k for k in weights if k.startswith(at + ".experts.") and "down" in k])
        of = lambda part: [weights[f"{at}.experts.{e}.{part}_proj.weight"] for e in range(count)]
        out[at + ".experts.gate_up_proj"] = torch.stack([torch.cat(p) for p in zip(of("gate"), of("up"))])
        out[at + ".experts.down_proj"] = torch.stack(of("down"))
    return out


def make(build):
    name = build.__name__
    torch.manual_seed(0)
    config, model, published = build()
    model = model.float().eval()
    model.set_attn_implementation("eager")
    config._experts_implementation = "eager"
    randomise(model, sum(map(ord, name)))
    tokens = torch.randint(0, VOCAB, (max(LENGTHS),), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        rows = [model(tokens[None, :n]).logits[0, -1] for n in LENGTHS]
        full = model(tokens[None]).logits[0]
        worst, cache = check_decoding(model, tokens, full)
    print(f"{name}: logits to {full.abs().max():.3g}, decoding within {worst:.2g}")
    if worst > 5e-5:
        raise SystemExit(f"{name}: decoding token by token differs from a full forward by {worst}")
    state = first_state(cache)[0]
    if "mamba" not in name and "nemotron" not in name and "granite" not in name:
        state = state.transpose(-1, -2)  # [d_k][d_v] there
    where = os.path.join(HERE, "families", name)
    model.save_pretrained(where)
    weights = load_file(os.path.join(where, "model.safetensors"))
    weights = {k: v.bfloat16().contiguous() if v.dim() > 1 and "A_log" not in k else v.contiguous()
               for k, v in weights.items()}
    dense = re.compile(r"block_sparse_moe\.((gate|up|down)_proj)")  # published: mlp.gate_proj and so on
    weights = {dense.sub(r"mlp.\1", k): v for k, v in weights.items()}
    if name == "qwen3_5_moe":
        weights = stack_experts(weights)
    save_file(weights, os.path.join(where, "model.safetensors"))
    save_file({"tokens": tokens.int(), "logits_at": torch.tensor([n - 1 for n in LENGTHS], dtype=torch.int32),
               "logits": torch.stack(rows).contiguous(), "state": state.float().contiguous()},
              os.path.join(where, "golden.safetensors"))
    with open(os.path.join(where, "config.json"), encoding="utf-8") as file:
        saved = json.load(file)
    for key in ("generation_config.json",):
        if os.path.exists(os.path.join(where, key)):
            os.remove(os.path.join(where, key))
    with open(os.path.join(where, "config.json"), "w", encoding="utf-8") as file:
        json.dump(published or saved, file, indent=1)
        file.write("\n")
    print("  ", sum(os.path.getsize(os.path.join(where, f)) for f in os.listdir(where)), "bytes")
    return weights


if __name__ == "__main__":
    torch.set_num_threads(1)
    for family in FAMILIES:
        if len(sys.argv) == 1 or family.__name__ in sys.argv[1:]:
            tensors = make(family)
            if os.environ.get("VERBOSE"):
                for key in sorted(tensors):
                    print("  ", key, tuple(tensors[key].shape), tensors[key].dtype)
