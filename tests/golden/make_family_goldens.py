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
import types

import torch
import torch.nn.functional as F
import transformers
import transformers.models.glm5_next.modeling_glm5_next as glm
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


# ---- GLM-5.3-Flash: the text model of the multimodal class, with a head of its own ----


class GlmText(torch.nn.Module):
    """Looks like a causal model to what follows."""

    def __init__(self, config):
        super().__init__()
        self.model = glm.Glm5NextTextModel(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.config = config

    def set_attn_implementation(self, name):
        self.model.set_attn_implementation(name)

    def forward(self, ids, **more):
        out = self.model(ids, **more)
        return types.SimpleNamespace(logits=self.lm_head(out.last_hidden_state), past_key_values=out.past_key_values)

    def published(self):
        """Tensors under the names of the maker's checkpoints."""
        out = {"lm_head.weight": self.lm_head.weight}
        for name, value in self.model.state_dict().items():
            name = name.replace("forget_gate.", "").replace("attn_hc.", "hc_attn_").replace("ffn_hc.", "hc_ffn_")
            name = "model.language_model." + name
            if ".conv1d." in name:
                for part, cut in zip("qkv", value.chunk(3)):
                    out[name.replace("conv1d", part + "_conv1d")] = cut
            elif name.endswith("experts.gate_up_proj") or name.endswith("experts.down_proj"):
                for e, expert in enumerate(value):
                    parts = zip(("gate_proj", "up_proj"), expert.chunk(2)) if "gate_up" in name else [("down_proj", expert)]
                    for part, cut in parts:
                        out[f"{name.rsplit('.', 1)[0]}.{e}.{part}.weight"] = cut
            else:
                out[name] = value
        return out


def glm5_next():
    text = {"model_type": "glm5_next_text", "vocab_size": VOCAB, "hidden_size": 28, "num_hidden_layers": 3,
            "intermediate_size": 22, "moe_intermediate_size": 9, "num_attention_heads": 3, "num_key_value_heads": 3,
            "n_shared_experts": 1, "n_routed_experts": 6, "num_experts_per_tok": 3, "routed_scaling_factor": 2.5,
            "kv_lora_rank": 18, "q_lora_rank": 14, "qk_rope_head_dim": 0, "qk_nope_head_dim": 10, "v_head_dim": 12,
            "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "hidden_act": "silu", "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-05, "eos_token_id": [2, 5], "pad_token_id": 0, "swiglu_limit": 1.5, "hc_mult": 4,
            "hc_eps": 1e-06, "hc_sinkhorn_iters": 5, "index_topk": 512, "index_kpool": 16, "index_n_heads": 2,
            "index_head_dim": 8, "layer_types": ["linear_attention", "deepseek_sparse_attention", "linear_attention"],
            "mlp_layer_types": ["dense", "sparse", "sparse"], "linear_head_dim": 10, "linear_num_heads": 3,
            "linear_conv_kernel_dim": 4, "linear_lower_bound": -5.0, "tie_word_embeddings": False}
    config = glm.Glm5NextTextConfig(**text)
    return config, GlmText(config), {"architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next",
                                     "text_config": text}


# ---- Kimi-K3, which transformers does not have: from its description, a token at a time ----


class K3(torch.nn.Module):
    """Text model of Kimi-K3: a dictionary of tensors under the published names, and the formulas."""

    def __init__(self, c):
        super().__init__()
        self.c, self.config = c, types.SimpleNamespace(tie_word_embeddings=False)
        h, linear, moe = c["hidden_size"], c["linear_attn_config"], c["moe_intermediate_size"]
        heads, d, n = linear["num_heads"], linear["head_dim"], c["num_attention_heads"]
        nope, shared, dv = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        r = c["routed_expert_hidden_size"]
        s = {"model.embed_tokens.weight": (VOCAB, h), "model.norm.weight": (h,), "lm_head.weight": (VOCAB, h),
             "model.output_attn_res_norm.weight": (h,), "model.output_attn_res_proj.weight": (1, h)}
        for i in range(c["num_hidden_layers"]):
            at, a = f"model.layers.{i}.", f"model.layers.{i}.self_attn."
            for part in ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm"):
                s[f"{at}{part}.weight"] = (h,)
            for part in ("self_attention_res_proj", "mlp_res_proj"):
                s[f"{at}{part}.weight"] = (1, h)
            if i + 1 in linear["kda_layers"]:
                for part in "qkv":
                    s[f"{a}{part}_proj.weight"], s[f"{a}{part}_conv1d.weight"] = (heads * d, h), (heads * d, 1, 4)
                s.update({a + "A_log": (heads,), a + "dt_bias": (heads * d,), a + "f_a_proj.weight": (d, h),
                          a + "f_b_proj.weight": (heads * d, d), a + "b_proj.weight": (heads, h),
                          a + "g_proj.weight": (heads * d, h), a + "o_norm.weight": (d,), a + "o_proj.weight": (h, heads * d)})
            else:
                q, kv = c["q_lora_rank"], c["kv_lora_rank"]
                s.update({a + "q_a_proj.weight": (q, h), a + "q_a_layernorm.weight": (q,),
                          a + "q_b_proj.weight": (n * (nope + shared), q), a + "kv_a_proj_with_mqa.weight": (kv + shared, h),
                          a + "kv_a_layernorm.weight": (kv,), a + "kv_b_proj.weight": (n * (nope + dv), kv),
                          a + "g_proj.weight": (n * dv, h), a + "o_proj.weight": (h, n * dv)})
            m = at + "block_sparse_moe."
            if i < c["first_k_dense_replace"]:
                s.update(self.mlp_shapes(at + "mlp.", h, c["intermediate_size"]))
                continue
            s.update({m + "gate.weight": (c["num_experts"], h), m + "gate.e_score_correction_bias": (c["num_experts"],),
                      m + "routed_expert_down_proj.weight": (r, h), m + "routed_expert_up_proj.weight": (h, r),
                      m + "routed_expert_norm.weight": (r,)})
            s.update(self.mlp_shapes(m + "shared_experts.", h, c["num_shared_experts"] * moe))
            for e in range(c["num_experts"]):
                for part, shape in (("w1", (moe, r)), ("w2", (r, moe)), ("w3", (moe, r))):
                    s[f"{m}experts.{e}.{part}.weight"] = shape
        self.names = {name.replace(".", "/"): name for name in s}
        for key, name in self.names.items():
            self.register_parameter(key, torch.nn.Parameter(torch.zeros(s[name])))

    @staticmethod
    def mlp_shapes(at, h, width):
        return {at + "gate_proj.weight": (width, h), at + "up_proj.weight": (width, h), at + "down_proj.weight": (h, width)}

    def set_attn_implementation(self, name):
        pass

    def published(self):
        return {"language_model." + name: getattr(self, key) for key, name in self.names.items()}

    def __getitem__(self, name):
        return getattr(self, name.replace(".", "/"))

    def norm(self, x, weight, eps=1e-5):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight

    def situ(self, gate, up):
        return 4 * torch.tanh(gate / 4) * torch.sigmoid(gate) * 25 * torch.tanh(up / 25)

    def mlp(self, x, gate, up, down):
        return self.situ(x @ self[gate].T, x @ self[up].T) @ self[down].T

    def mix(self, x, bank, at):
        if not bank:
            return x
        candidates = torch.stack(bank + [x])
        score = (self.norm(candidates, 1.0) * self[at + "_norm.weight"] * self[at + "_proj.weight"][0]).sum(-1)
        return (torch.softmax(score, 0)[:, None] * candidates).sum(0)

    def kda(self, u, a, cache):
        c = self.c["linear_attn_config"]
        heads, d = c["num_heads"], c["head_dim"]
        rows = []
        for part in "qkv":
            window = torch.cat([cache.setdefault(a + part, torch.zeros(3, heads * d)), (self[f"{a}{part}_proj.weight"] @ u)[None]])
            cache[a + part] = window[1:]
            rows.append(F.silu((window.T * self[f"{a}{part}_conv1d.weight"][:, 0]).sum(1)).view(heads, d))
        q, k, v = rows
        q, k = (x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
        f = self[a + "f_b_proj.weight"] @ (self[a + "f_a_proj.weight"] @ u) + self[a + "dt_bias"]
        g = self.c["gate_lower_bound"] * torch.sigmoid(torch.exp(self[a + "A_log"])[:, None] * f.view(heads, d))
        beta = torch.sigmoid(self[a + "b_proj.weight"] @ u)
        state = cache.get(a, torch.zeros(heads, d, d)) * g.exp()[:, None]  # [head][d_v][d_k]
        delta = beta[:, None] * (v - (state * k[:, None]).sum(-1))
        state = cache[a] = state + delta[..., None] * k[:, None]
        y = (state * (q * d ** -0.5)[:, None]).sum(-1)
        y = self.norm(y, self[a + "o_norm.weight"]) * torch.sigmoid((self[a + "g_proj.weight"] @ u).view(heads, d))
        return self[a + "o_proj.weight"] @ y.flatten()

    def attention(self, u, a, cache):
        c, n = self.c, self.c["num_attention_heads"]
        nope, latent = c["qk_nope_head_dim"], c["kv_lora_rank"]
        q = self.norm(self[a + "q_a_proj.weight"] @ u, self[a + "q_a_layernorm.weight"], 1e-6)
        q = (self[a + "q_b_proj.weight"] @ q).view(n, -1)
        row = self[a + "kv_a_proj_with_mqa.weight"] @ u
        row = torch.cat([self.norm(row[:latent], self[a + "kv_a_layernorm.weight"], 1e-6), row[latent:]])
        rows = cache[a] = torch.cat([cache.get(a, row[:0].view(0, len(row))), row[None]])
        kv = (rows[:, :latent] @ self[a + "kv_b_proj.weight"].T).view(len(rows), n, -1)
        keys = torch.cat([kv[..., :nope], rows[:, None, latent:].expand(-1, n, -1)], -1)
        p = torch.softmax((q * keys).sum(-1) * q.shape[-1] ** -0.5, 0)
        y = (p[..., None] * kv[..., nope:]).sum(0).flatten()
        return self[a + "o_proj.weight"] @ (y * torch.sigmoid(self[a + "g_proj.weight"] @ u))

    def moe(self, x, m):
        c = self.c
        score = torch.sigmoid(self[m + "gate.weight"] @ x)
        chosen = torch.topk(score + self[m + "gate.e_score_correction_bias"], c["num_experts_per_token"])[1]
        weight = score[chosen] / (score[chosen].sum() + 1e-20) * c["routed_scaling_factor"]
        r = self[m + "routed_expert_down_proj.weight"] @ x
        at = [f"{m}experts.{e}." for e in chosen.tolist()]
        total = sum(w * self.mlp(r, e + "w1.weight", e + "w3.weight", e + "w2.weight") for w, e in zip(weight, at))
        total = self.norm(total, self[m + "routed_expert_norm.weight"])
        s = m + "shared_experts."
        return self[m + "routed_expert_up_proj.weight"] @ total + self.mlp(x, s + "gate_proj.weight", s + "up_proj.weight",
                                                                         s + "down_proj.weight")

    def step(self, token, cache):
        c, bank, x = self.c, [], self["model.embed_tokens.weight"][token]
        for i in range(c["num_hidden_layers"]):
            at = f"model.layers.{i}."
            a = self.mix(x, bank, at + "self_attention_res")
            banked = i % c["attn_res_block_size"] == 0
            if banked:
                bank.append(x)
            u = self.norm(a, self[at + "input_layernorm.weight"])
            kind = self.kda if i + 1 in c["linear_attn_config"]["kda_layers"] else self.attention
            y = kind(u, at + "self_attn.", cache)
            x = y if banked else x + y
            u = self.norm(self.mix(x, bank, at + "mlp_res"), self[at + "post_attention_layernorm.weight"])
            dense = i < c["first_k_dense_replace"]
            names = [f"{at}mlp.{part}_proj.weight" for part in ("gate", "up", "down")]
            x = x + (self.mlp(u, *names) if dense else self.moe(u, at + "block_sparse_moe."))
        x = self.norm(self.mix(x, bank, "model.output_attn_res"), self["model.norm.weight"])
        return self["lm_head.weight"] @ x

    def forward(self, ids, past_key_values=None, use_cache=False):
        cache = past_key_values or {}
        logits = torch.stack([self.step(int(t), cache) for t in ids[0]])
        return types.SimpleNamespace(logits=logits[None], past_key_values=cache)


def kimi_k3():
    text = {"model_type": "kimi_linear", "vocab_size": VOCAB, "hidden_size": 30, "num_hidden_layers": 4,
            "num_attention_heads": 3, "num_key_value_heads": 3, "intermediate_size": 22, "first_k_dense_replace": 1,
            "num_experts": 7, "num_experts_per_token": 3, "num_shared_experts": 2, "moe_intermediate_size": 8,
            "moe_renormalize": True, "moe_router_activation_func": "sigmoid", "routed_scaling_factor": 1.0,
            "routed_expert_hidden_size": 18, "latent_moe_use_norm": True, "hidden_act": "situ", "rms_norm_eps": 1e-05,
            "q_lora_rank": 14, "kv_lora_rank": 16, "qk_nope_head_dim": 10, "qk_rope_head_dim": 4, "v_head_dim": 8,
            "mla_use_nope": True, "mla_use_output_gate": True, "use_full_rank_gate": True, "gate_lower_bound": -5.0,
            "attn_res_block_size": 2, "model_max_length": 512, "tie_word_embeddings": False, "eos_token_id": 3,
            "linear_attn_config": {"full_attn_layers": [2, 4], "kda_layers": [1, 3], "head_dim": 10, "num_heads": 3,
                                   "short_conv_kernel_size": 4}}
    model = K3(text)
    return model.config, model, {"architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3",
                                 "text_config": text}


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
            nemotron_h_nvfp4, qwen3_5_moe_fp8, kimi_linear_packed, glm5_next, kimi_k3)


def randomise(model, seed):
    """Weights of useful sizes; those of more than one dimension rounded to bf16."""
    random = torch.Generator().manual_seed(seed)
    draw = lambda like, scale: scale * torch.randn(like.shape, generator=random)
    one_plus = ("Qwen3_5", "Qwen3Next")
    for name, value in list(model.named_parameters()) + list(model.named_buffers()):
        name = name.replace("/", ".")
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
        elif "_hc." in name:
            new = draw(value, 0.3)
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
    if isinstance(cache, dict):  # of K3, transposed as the others' are
        return next(v for v in cache.values() if v.dim() == 3).transpose(-1, -2)[None]
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
    os.makedirs(where, exist_ok=True)
    if hasattr(model, "published"):
        weights = {name: value.detach().float() for name, value in model.published().items()}
    else:
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
    saved = published
    if saved is None:
        with open(os.path.join(where, "config.json"), encoding="utf-8") as file:
            saved = json.load(file)
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
