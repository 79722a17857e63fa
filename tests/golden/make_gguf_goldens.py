#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes families/NAME/model.gguf from families/NAME/model.safetensors, as llama.cpp's converter would, and
tokenizer.gguf from the bundled tokenizer.

    python3 make_gguf_goldens.py     (needs gguf, torch and safetensors from PyPI; tests need only the files)

Made with gguf 0.19.0. What that converter does to the tensors is written down here once more and independently of the
loader: A_log becomes -exp(A_log); norms of the (1 + w) form get their 1; value heads of Qwen3.5 are permuted from grouped
to tiled order; fused projections of Qwen3-Next are taken apart (but for b and a); experts are stacked; kv_b is cut
into a transposed key half and a value half. Matrices stay bf16.
"""
import json
import os

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

HERE = os.path.dirname(os.path.abspath(__file__))


class Model:
    def __init__(self, family, arch):
        self.where = os.path.join(HERE, "families", family)
        with open(os.path.join(self.where, "config.json"), encoding="utf-8") as file:
            self.c = json.load(file)
        strip = lambda k: k.removeprefix("model.").removeprefix("backbone.")
        self.t = {strip(k): v.float() for k, v in load_file(os.path.join(self.where, "model.safetensors")).items()}
        self.arch = arch
        self.w = gguf.GGUFWriter(os.path.join(self.where, "model.gguf"), arch)
        self.used = set()

    def key(self, name, value):
        kind = {bool: "bool", int: "uint32", float: "float32", list: "array"}[type(value)]
        getattr(self.w, "add_" + kind)(f"{self.arch}.{name}", value)

    def get(self, name):
        self.used.add(name)
        return self.t[name]

    def add(self, name, value):
        value = value.contiguous()
        if value.dim() > 1 and not name.endswith(("ssm_a", "ssm_d", "ssm_norm.weight")) and "conv1d" not in name:
            data = value.bfloat16().view(torch.int16).numpy().view(np.uint8)
            self.w.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            self.w.add_tensor(name, value.numpy().astype(np.float32))

    def move(self, to, name, change=lambda x: x):
        self.add(to, change(self.get(name)))

    def common(self, layers, hidden, positions, eps, embedding, norm):
        self.key("block_count", layers)
        self.key("embedding_length", hidden)
        self.key("context_length", positions)
        self.key("attention.layer_norm_rms_epsilon", eps)
        self.w.add_eos_token_id(2)
        plus = 1.0 if self.arch.startswith("qwen") else 0.0
        self.plus = lambda x: x + plus
        self.move("token_embd.weight", embedding)
        self.move("output_norm.weight", norm, self.plus)
        if "lm_head.weight" in self.t:
            self.move("output.weight", "lm_head.weight")

    def stack(self, to, stem, part, experts):
        self.add(to, torch.stack([self.get(f"{stem}.experts.{e}.{part}.weight") for e in range(experts)]))

    def finish(self):
        left = sorted(set(self.t) - self.used)
        if left:
            raise SystemExit(f"{self.where}: not converted: {left}")
        self.w.write_header_to_file()
        self.w.write_kv_data_to_file()
        self.w.write_tensors_to_file()
        self.w.close()
        path = os.path.join(self.where, "model.gguf")
        os.chmod(path, 0o644)
        print(path, os.path.getsize(path))


def tile(x, heads_k, heads_v, axis=0):
    """Value heads from grouped (c * r + j) to tiled (j * HK + c) order."""
    share = heads_v // heads_k
    size = x.shape[axis] // heads_v
    order = [c * share + j for j in range(share) for c in range(heads_k)]
    rows = torch.tensor([h * size + i for h in order for i in range(size)])
    return x.index_select(axis, rows)


def gdn(m, b, at):
    c = m.c
    hk, hv, dk, dv = (c["linear_" + k] for k in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))
    keys, share = hk * dk, hv // hk
    tiled = (lambda x, axis=0: tile(x, hk, hv, axis)) if m.arch.startswith("qwen35") else (lambda x, axis=0: x)
    values_tiled = lambda x: torch.cat([x[:2 * keys], tiled(x[2 * keys:])])
    at += ".linear_attn"
    if m.arch == "qwen3next":
        g = m.get(at + ".in_proj_qkvz.weight").reshape(hk, 2 * dk + 2 * share * dv, -1)
        cut = [dk, 2 * dk, 2 * dk + share * dv]
        q, k, v, z = (part.reshape(-1, g.shape[-1]) for part in torch.tensor_split(g, cut, dim=1))
        m.add(b + "attn_qkv.weight", torch.cat([q, k, v]))
        m.add(b + "attn_gate.weight", z)
        m.move(b + "ssm_ba.weight", at + ".in_proj_ba.weight")
    else:
        m.move(b + "attn_qkv.weight", at + ".in_proj_qkv.weight", values_tiled)
        m.move(b + "attn_gate.weight", at + ".in_proj_z.weight", tiled)
        m.move(b + "ssm_alpha.weight", at + ".in_proj_a.weight", tiled)
        m.move(b + "ssm_beta.weight", at + ".in_proj_b.weight", tiled)
    m.move(b + "ssm_conv1d.weight", at + ".conv1d.weight", lambda x: values_tiled(x.squeeze(1)))
    m.move(b + "ssm_dt.bias", at + ".dt_bias", tiled)
    m.move(b + "ssm_a", at + ".A_log", lambda x: tiled(-torch.exp(x)))
    m.move(b + "ssm_norm.weight", at + ".norm.weight")
    m.move(b + "ssm_out.weight", at + ".out_proj.weight", lambda x: tiled(x, 1))


def qwen(family, arch):
    m, c = Model(family, arch), None
    c = m.c
    m.common(c["num_hidden_layers"], c["hidden_size"], 512, c["rms_norm_eps"], "embed_tokens.weight", "norm.weight")
    m.key("attention.head_count", c["num_attention_heads"])
    m.key("attention.head_count_kv", c["num_key_value_heads"])
    m.key("attention.key_length", c["head_dim"])
    m.key("attention.value_length", c["head_dim"])
    m.key("rope.freq_base", c["rope_parameters"]["rope_theta"])
    m.key("rope.dimension_count", int(c["head_dim"] * c["rope_parameters"]["partial_rotary_factor"]))
    m.key("ssm.conv_kernel", c["linear_conv_kernel_dim"])
    m.key("ssm.state_size", c["linear_key_head_dim"])
    m.key("ssm.group_count", c["linear_num_key_heads"])
    m.key("ssm.time_step_rank", c["linear_num_value_heads"])
    m.key("ssm.inner_size", c["linear_num_value_heads"] * c["linear_value_head_dim"])
    m.key("expert_count", c["num_experts"])
    m.key("expert_used_count", c["num_experts_per_tok"])
    m.key("expert_feed_forward_length", c["moe_intermediate_size"])
    m.key("expert_shared_feed_forward_length", c["shared_expert_intermediate_size"])
    for i, kind in enumerate(c["layer_types"]):
        at, b = f"layers.{i}", f"blk.{i}."
        m.move(b + "attn_norm.weight", at + ".input_layernorm.weight", m.plus)
        m.move(b + "post_attention_norm.weight", at + ".post_attention_layernorm.weight", m.plus)
        if kind == "linear_attention":
            gdn(m, b, at)
        else:
            for a, o in (("q", "q"), ("k", "k"), ("v", "v"), ("output", "o")):
                m.move(f"{b}attn_{a}.weight", f"{at}.self_attn.{o}_proj.weight")
            for a in "qk":
                m.move(f"{b}attn_{a}_norm.weight", f"{at}.self_attn.{a}_norm.weight", m.plus)
        at += ".mlp"
        if at + ".gate.weight" not in m.t:
            m.key("feed_forward_length", c["intermediate_size"])
            for a in ("gate", "up", "down"):
                m.move(f"{b}ffn_{a}.weight", f"{at}.{a}_proj.weight")
            continue
        m.move(b + "ffn_gate_inp.weight", at + ".gate.weight")
        m.move(b + "ffn_gate_inp_shexp.weight", at + ".shared_expert_gate.weight", lambda x: x.squeeze(0))
        for a in ("gate", "up", "down"):
            m.move(f"{b}ffn_{a}_shexp.weight", f"{at}.shared_expert.{a}_proj.weight")
        if at + ".experts.gate_up_proj" in m.t:
            width = c["moe_intermediate_size"]
            both = m.get(at + ".experts.gate_up_proj")
            m.add(b + "ffn_gate_exps.weight", both[:, :width])
            m.add(b + "ffn_up_exps.weight", both[:, width:])
            m.move(b + "ffn_down_exps.weight", at + ".experts.down_proj")
        else:
            for a in ("gate", "up", "down"):
                m.stack(f"{b}ffn_{a}_exps.weight", at, a + "_proj", c["num_experts"])
    m.finish()


def mamba2_mixer(m, b, at, groups):
    m.move(b + "ssm_in.weight", at + ".in_proj.weight")
    m.move(b + "ssm_conv1d.weight", at + ".conv1d.weight", lambda x: x.squeeze(1))
    m.move(b + "ssm_conv1d.bias", at + ".conv1d.bias")
    m.move(b + "ssm_dt.bias", at + ".dt_bias")
    m.move(b + "ssm_a", at + ".A_log", lambda x: -torch.exp(x).reshape(-1, 1))
    m.move(b + "ssm_d", at + ".D", lambda x: x.reshape(-1, 1))
    m.move(b + "ssm_norm.weight", at + ".norm.weight", lambda x: x.reshape(groups, -1))
    m.move(b + "ssm_out.weight", at + ".out_proj.weight")


def ssm_keys(m, heads, head_dim, groups, state, conv):
    m.key("ssm.conv_kernel", conv)
    m.key("ssm.state_size", state)
    m.key("ssm.group_count", groups)
    m.key("ssm.time_step_rank", heads)
    m.key("ssm.inner_size", heads * head_dim)


def nemotron_attention(m, b, at):
    for a, o in (("q", "q"), ("k", "k"), ("v", "v"), ("output", "o")):
        m.move(f"{b}attn_{a}.weight", f"{at}.{o}_proj.weight")


def nemotron_experts(m, b, at):
    c = m.c
    m.move(b + "ffn_gate_inp.weight", at + ".gate.weight")
    m.move(b + "exp_probs_b.bias", at + ".gate.e_score_correction_bias")
    for a in ("up", "down"):
        m.stack(f"{b}ffn_{a}_exps.weight", at, a + "_proj", c["n_routed_experts"])
        m.move(f"{b}ffn_{a}_shexp.weight", f"{at}.shared_experts.{a}_proj.weight")
    if c["moe_latent_size"]:
        m.move(b + "ffn_latent_down.weight", at + ".fc1_latent_proj.weight")
        m.move(b + "ffn_latent_up.weight", at + ".fc2_latent_proj.weight")


def nemotron(family):
    m = Model(family, "nemotron_h_moe")
    c, kinds = m.c, m.c["layers_block_type"]
    ahead = int("mtp.layers.0.eh_proj.weight" in m.t)  # one more block, with attention and experts
    if ahead:
        m.key("nextn_predict_layers", ahead)
    m.common(len(kinds) + ahead, c["hidden_size"], 512, c["layer_norm_epsilon"], "embeddings.weight", "norm_f.weight")
    ssm_keys(m, c["mamba_num_heads"], c["mamba_head_dim"], c["n_groups"], c["ssm_state_size"], c["conv_kernel"])
    attention = [k == "full_attention" for k in kinds]
    m.key("attention.head_count", c["num_attention_heads"])
    m.key("attention.head_count_kv", [c["num_key_value_heads"] * a for a in attention + [True] * ahead])
    m.key("attention.key_length", c["head_dim"])
    width = {"mlp": c["intermediate_size"], "moe": c["moe_intermediate_size"]}
    m.key("feed_forward_length", [width.get(k, 0) for k in kinds + ["moe"] * ahead])
    m.key("expert_count", c["n_routed_experts"])
    m.key("expert_used_count", c["num_experts_per_tok"])
    m.key("expert_feed_forward_length", c["moe_intermediate_size"])
    m.key("expert_shared_feed_forward_length", c["moe_shared_expert_intermediate_size"])
    m.key("expert_shared_count", 1)
    m.key("expert_weights_norm", True)
    m.key("expert_weights_scale", c["routed_scaling_factor"])
    if c["moe_latent_size"]:
        m.key("moe_latent_size", c["moe_latent_size"])
    for i, kind in enumerate(kinds):
        at, b = f"layers.{i}.mixer", f"blk.{i}."
        m.move(b + "attn_norm.weight", f"layers.{i}.norm.weight")
        if kind == "linear_attention":
            mamba2_mixer(m, b, at, c["n_groups"])
        elif kind == "full_attention":
            nemotron_attention(m, b, at)
        elif kind == "mlp":
            m.move(b + "ffn_up.weight", at + ".up_proj.weight")
            m.move(b + "ffn_down.weight", at + ".down_proj.weight")
        else:
            nemotron_experts(m, b, at)
    if ahead:
        b = f"blk.{len(kinds)}."
        m.move(b + "nextn.eh_proj.weight", "mtp.layers.0.eh_proj.weight")
        for a in ("enorm", "hnorm"):
            m.move(f"{b}nextn.{a}.weight", f"mtp.layers.0.{a}.weight")
        m.move(b + "attn_norm.weight", "mtp.layers.0.norm.weight")
        nemotron_attention(m, b, "mtp.layers.0.mixer")
        m.move(b + "post_attention_norm.weight", "mtp.layers.1.norm.weight")
        nemotron_experts(m, b, "mtp.layers.1.mixer")
        m.move(b + "nextn.shared_head_norm.weight", "mtp.layers.1.final_layernorm.weight")
    m.finish()


def mamba2():
    m = Model("mamba2", "mamba2")
    c = m.c
    m.common(c["num_hidden_layers"], c["hidden_size"], 1048576, c["layer_norm_epsilon"], "embeddings.weight",
             "norm_f.weight")
    ssm_keys(m, c["num_heads"], c["head_dim"], c["n_groups"], c["state_size"], c["conv_kernel"])
    for i in range(c["num_hidden_layers"]):
        m.move(f"blk.{i}.attn_norm.weight", f"layers.{i}.norm.weight")
        mamba2_mixer(m, f"blk.{i}.", f"layers.{i}.mixer", c["n_groups"])
    m.finish()


def granite(family):
    m = Model(family, "granitehybrid")
    c, kinds = m.c, m.c["layer_types"]
    m.common(len(kinds), c["hidden_size"], 512, c["rms_norm_eps"], "embed_tokens.weight", "norm.weight")
    ssm_keys(m, c["mamba_n_heads"], c["mamba_d_head"], c["mamba_n_groups"], c["mamba_d_state"], c["mamba_d_conv"])
    attention = [k in ("attention", "full_attention") for k in kinds]
    m.key("attention.head_count", c["num_attention_heads"])
    m.key("attention.head_count_kv", [c["num_key_value_heads"] * a for a in attention])
    for key, name in (("embedding_scale", "embedding_multiplier"), ("residual_scale", "residual_multiplier"),
                      ("attention.scale", "attention_multiplier"), ("logit_scale", "logits_scaling")):
        m.key(key, float(c[name]))
    experts = c["num_local_experts"]
    m.key("feed_forward_length", c["intermediate_size"] if experts else c["shared_intermediate_size"])
    if experts:
        m.key("expert_count", experts)
        m.key("expert_used_count", c["num_experts_per_tok"])
        m.key("expert_shared_feed_forward_length", c["shared_intermediate_size"])
    for i in range(len(kinds)):
        at, b = f"layers.{i}", f"blk.{i}."
        m.move(b + "attn_norm.weight", at + ".input_layernorm.weight")
        m.move(b + "ffn_norm.weight", at + ".post_attention_layernorm.weight")
        if attention[i]:
            for a, o in (("q", "q"), ("k", "k"), ("v", "v"), ("output", "o")):
                m.move(f"{b}attn_{a}.weight", f"{at}.self_attn.{o}_proj.weight")
        else:
            mamba2_mixer(m, b, at + ".mamba", c["mamba_n_groups"])
        shared = "_shexp" if experts else ""
        gate, up = m.get(at + ".shared_mlp.input_linear.weight").chunk(2)
        m.add(f"{b}ffn_gate{shared}.weight", gate)
        m.add(f"{b}ffn_up{shared}.weight", up)
        m.move(f"{b}ffn_down{shared}.weight", at + ".shared_mlp.output_linear.weight")
        if experts:
            m.move(b + "ffn_gate_inp.weight", at + ".block_sparse_moe.router.layer.weight")
            gate, up = m.get(at + ".block_sparse_moe.input_linear.weight").chunk(2, dim=1)
            m.add(b + "ffn_gate_exps.weight", gate)
            m.add(b + "ffn_up_exps.weight", up)
            m.move(b + "ffn_down_exps.weight", at + ".block_sparse_moe.output_linear.weight")
    m.finish()


def kimi():
    m = Model("kimi_linear", "kimi-linear")
    c, linear = m.c, m.c["linear_attn_config"]
    layers, heads = c["num_hidden_layers"], c["num_attention_heads"]
    full = [i + 1 in linear["full_attn_layers"] for i in range(layers)]
    m.common(layers, c["hidden_size"], c["model_max_length"], c["rms_norm_eps"], "embed_tokens.weight", "norm.weight")
    m.key("attention.head_count", heads)
    m.key("attention.head_count_kv", [int(f) for f in full])
    m.key("attention.kv_lora_rank", c["kv_lora_rank"])
    m.key("attention.key_length_mla", c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
    m.key("attention.value_length_mla", c["v_head_dim"])
    m.key("rope.dimension_count", c["qk_rope_head_dim"])
    m.key("kda.head_dim", linear["head_dim"])
    m.key("ssm.conv_kernel", linear["short_conv_kernel_size"])
    m.key("feed_forward_length", c["intermediate_size"])
    m.key("leading_dense_block_count", c["first_k_dense_replace"])
    m.key("expert_count", c["num_experts"])
    m.key("expert_used_count", c["num_experts_per_token"])
    m.key("expert_feed_forward_length", c["moe_intermediate_size"])
    m.key("expert_shared_count", c["num_shared_experts"])
    m.key("expert_weights_norm", True)
    m.key("expert_weights_scale", c["routed_scaling_factor"])
    m.key("expert_gating_func", 2)
    for i in range(layers):
        at, b = f"layers.{i}.self_attn.", f"blk.{i}."
        m.move(b + "attn_norm.weight", f"layers.{i}.input_layernorm.weight")
        m.move(b + "ffn_norm.weight", f"layers.{i}.post_attention_layernorm.weight")
        if full[i]:
            nope, latent = c["qk_nope_head_dim"], c["kv_lora_rank"]
            both = m.get(at + "kv_b_proj.weight").reshape(heads, -1, latent)
            m.move(b + "attn_q.weight", at + "q_proj.weight")
            m.move(b + "attn_kv_a_mqa.weight", at + "kv_a_proj_with_mqa.weight")
            m.move(b + "attn_kv_a_norm.weight", at + "kv_a_layernorm.weight")
            m.add(b + "attn_k_b.weight", both[:, :nope].transpose(1, 2))
            m.add(b + "attn_v_b.weight", both[:, nope:])
        else:
            for a in "qkv":
                m.move(f"{b}attn_{a}.weight", f"{at}{a}_proj.weight")
                m.move(f"{b}ssm_conv1d_{a}.weight", f"{at}{a}_conv1d.weight")
            for a, o in (("f_a", "f_a"), ("f_b", "f_b"), ("g_a", "g_a"), ("g_b", "g_b"), ("beta", "b")):
                m.move(f"{b}ssm_{a}.weight", f"{at}{o}_proj.weight")
            m.move(b + "ssm_a", at + "A_log", lambda x: -torch.exp(x).reshape(-1, 1))
            m.move(b + "ssm_dt.bias", at + "dt_bias")
            m.move(b + "ssm_norm.weight", at + "o_norm.weight")
        m.move(b + "attn_output.weight", at + "o_proj.weight")
        at = f"layers.{i}.block_sparse_moe"
        if at + ".gate.weight" in m.t:
            m.move(b + "ffn_gate_inp.weight", at + ".gate.weight")
            m.move(b + "exp_probs_b.bias", at + ".gate.e_score_correction_bias")
            for a, o in (("gate", "w1"), ("down", "w2"), ("up", "w3")):
                m.stack(f"{b}ffn_{a}_exps.weight", at, o, c["num_experts"])
                m.move(f"{b}ffn_{a}_shexp.weight", f"{at}.shared_experts.{a}_proj.weight")
        else:
            for a in ("gate", "up", "down"):
                m.move(f"{b}ffn_{a}.weight", f"layers.{i}.mlp.{a}_proj.weight")
    m.finish()


def tokenizer():
    with open(os.path.join(HERE, "..", "..", "models", "tiny-gdn", "tokenizer.json"), encoding="utf-8") as file:
        source = json.load(file)
    tokens = {i: (t, 1) for t, i in source["model"]["vocab"].items()}
    tokens.update({t["id"]: (t["content"], 3 if t["special"] else 4) for t in source["added_tokens"]})
    path = os.path.join(HERE, "tokenizer.gguf")
    w = gguf.GGUFWriter(path, "qwen35")
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen35")
    w.add_token_list([tokens[i][0] for i in range(len(tokens))])
    w.add_token_types([tokens[i][1] for i in range(len(tokens))])
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in source["model"]["merges"]])
    w.add_eos_token_id(2)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    os.chmod(path, 0o644)
    print(path, os.path.getsize(path))


if __name__ == "__main__":
    qwen("qwen3_5_moe", "qwen35moe")
    qwen("qwen3_next", "qwen3next")
    nemotron("nemotron_h_moe")
    nemotron("nemotron_h_latent")
    mamba2()
    granite("granite_moe")
    granite("granite_dense")
    kimi()
    tokenizer()
