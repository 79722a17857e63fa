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
    return config, unclamped(transformers.NemotronHForCausalLM(config)), None


def unclamped(model):
    """The published models do not clamp dt at time_step_min."""
    for module in model.modules():
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = (0.0, float("inf"))
    return model


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


def kimi_linear(**more):
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
    published.update(more)
    config = transformers.KimiLinearConfig(**published)
    return config, transformers.KimiLinearForCausalLM(config), published


# ---- Quantised checkpoints: what is stored is packed; transformers runs the weights that it stands for ----

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def to_f8(x):
    codes = x.clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes, codes.float()


def to_pairs(x, block, scale):
    """Codes of x / scale, [rows][cols / block] scales, and the values they stand for."""
    wide = scale.repeat_interleave(block, dim=1)
    codes = (x[..., None] / wide[..., None] - E2M1).abs().argmin(-1)
    return (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8), E2M1[codes] * wide


def f8_scaled(stem, w, per_row=False, block=None):
    """Per tensor, per row, or blocks of [rows, columns]."""
    if block is None:
        scale = w.abs().amax(dim=1, keepdim=True) / 448 if per_row else w.abs().max() / 448
        codes, values = to_f8(w / scale)
        return {stem + ".weight": codes, stem + ".weight_scale": scale.float()}, values * scale
    rows, cols = -(-w.shape[0] // block[0]), -(-w.shape[1] // block[1])
    scale = torch.empty(rows, cols)
    for i in range(rows):
        for j in range(cols):
            scale[i, j] = w[i * block[0]:(i + 1) * block[0], j * block[1]:(j + 1) * block[1]].abs().max() / 448
    wide = scale.repeat_interleave(block[0], 0)[:w.shape[0]].repeat_interleave(block[1], 1)[:, :w.shape[1]]
    codes, values = to_f8(w / wide)
    return {stem + ".weight": codes, stem + ".weight_scale_inv": scale}, values * wide


def nvfp4(stem, w, modelopt):
    factor = w.abs().max() / (6 * 448)
    scale, exact = to_f8(w.reshape(w.shape[0], -1, 16).abs().amax(-1) / 6 / factor)
    codes, values = to_pairs(w, 16, exact * factor)
    if modelopt:
        return {stem + ".weight": codes, stem + ".weight_scale": scale, stem + ".weight_scale_2": factor.reshape(()),
                stem + ".input_scale": torch.tensor(0.5)}, values
    return {stem + ".weight_packed": codes, stem + ".weight_scale": scale,
            stem + ".weight_global_scale": (1 / factor).reshape(1)}, values


def mxfp4(stem, w):
    exponent = torch.floor(torch.log2(w.reshape(w.shape[0], -1, 32).abs().amax(-1))) - 2
    codes, values = to_pairs(w, 32, torch.exp2(exponent))
    return {stem + ".weight_packed": codes, stem + ".weight_scale": (exponent + 127).to(torch.uint8)}, values


def pack_modelopt(name, w):
    stem = name[:-len(".weight")]
    if ".experts." in name:
        return nvfp4(stem, w, True)
    if "shared_experts" in name or "in_proj" in name or "out_proj" in name:
        packed, values = f8_scaled(stem, w)
        return dict(packed, **{stem + ".input_scale": torch.tensor(0.25)}), values
    return None


def pack_blocks(name, w):
    plain = "mlp.gate." in name or "_gate" in name or "in_proj_a" in name or "in_proj_b" in name
    return None if plain or "conv" in name else f8_scaled(name[:-len(".weight")], w, block=(16, 24))


def pack_tensors(name, w):
    """The formats of compressed-tensors, a different one for each layer: the file decides, tensor by tensor."""
    stem = name[:-len(".weight")]
    if ".experts." in name:
        return mxfp4(stem, w) if "layers.1." in name else nvfp4(stem, w, False)
    return f8_scaled(stem, w, per_row=True) if "self_attn" in name and "conv" not in name else None


def nemotron_h_nvfp4():
    config = transformers.NemotronHConfig(
        vocab_size=VOCAB, hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=10, intermediate_size=22,
        mamba_num_heads=6, mamba_head_dim=10, ssm_state_size=12, n_groups=2, expand=2, chunk_size=32,
        n_routed_experts=7, num_experts_per_tok=3, moe_intermediate_size=16, moe_shared_expert_intermediate_size=9,
        routed_scaling_factor=2.5, max_position_embeddings=512, eos_token_id=2, hybrid_override_pattern="MEM*E-")
    return config, unclamped(transformers.NemotronHForCausalLM(config)), None


def qwen3_5_moe_fp8():
    return qwen3_5_moe()


def kimi_linear_packed():
    config, model, published = kimi_linear(hidden_size=32, moe_intermediate_size=32, num_experts=5)
    return config, model, published


PACKED = {"nemotron_h_nvfp4": (pack_modelopt, {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}),
          "qwen3_5_moe_fp8": (pack_blocks, {"quant_method": "fp8", "weight_block_size": [16, 24]}),
          "kimi_linear_packed": (pack_tensors, {"quant_method": "compressed-tensors"})}


def quantise(name, build, where, weights, published):
    """The packed tensors, and the model with what they stand for."""
    pack, config = PACKED[name]
    packed, plain = {}, {}
    for key, value in weights.items():
        made = pack(key, value.float()) if value.dim() == 2 and key.endswith(".weight") else None
        packed.update(made[0] if made else {key: value})
        plain[key] = made[1] if made else value.float()
    save_file(plain, os.path.join(where, "model.safetensors"), metadata={"format": "pt"})
    _, model, _ = build()
    model = unclamped(type(model).from_pretrained(where, dtype=torch.float32).eval())
    model.set_attn_implementation("eager")
    model.config._experts_implementation = "eager"
    return packed, model, config


FAMILIES = (qwen3_5_moe, qwen3_next, nemotron_h_moe, nemotron_h_latent, mamba2, granite_moe, granite_dense, kimi_linear,
            nemotron_h_nvfp4, qwen3_5_moe_fp8, kimi_linear_packed)


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


def outputs(model, name):
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
    return {"tokens": tokens.int(), "logits_at": torch.tensor([n - 1 for n in LENGTHS], dtype=torch.int32),
            "logits": torch.stack(rows).contiguous(), "state": state.float().contiguous()}


def checkpoint(model, where):
    """Saves the model as its makers would, and returns the tensors."""
    model.save_pretrained(where)
    weights = load_file(os.path.join(where, "model.safetensors"))
    weights = {k: v.bfloat16().contiguous() if v.dim() > 1 and "A_log" not in k else v.contiguous()
               for k, v in weights.items()}
    dense = re.compile(r"block_sparse_moe\.((gate|up|down)_proj)")  # published: mlp.gate_proj and so on
    return {dense.sub(r"mlp.\1", k): v for k, v in weights.items()}


def make(build):
    name = build.__name__
    torch.manual_seed(0)
    config, model, published = build()
    model = model.float().eval()
    model.set_attn_implementation("eager")
    config._experts_implementation = "eager"
    randomise(model, sum(map(ord, name)))
    where = os.path.join(HERE, "families", name)
    weights = checkpoint(model, where)
    with open(os.path.join(where, "config.json"), encoding="utf-8") as file:
        saved = published or json.load(file)
    if name in PACKED:
        weights, model, saved["quantization_config"] = quantise(name, build, where, weights, published)
    if name == "qwen3_5_moe":
        weights = stack_experts(weights)
    save_file(weights, os.path.join(where, "model.safetensors"))
    save_file(outputs(model, name), os.path.join(where, "golden.safetensors"))
    with open(os.path.join(where, "config.json"), "w", encoding="utf-8") as file:
        json.dump(saved, file, indent=1)
        file.write("\n")
    unused = os.path.join(where, "generation_config.json")
    if os.path.exists(unused):
        os.remove(unused)
    for file in os.listdir(where):
        os.chmod(os.path.join(where, file), 0o644)
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
