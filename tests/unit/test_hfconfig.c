/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.json: the bundled models, the spellings of several generations of files, and what must be refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "load/hfconfig.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GDN RSSM_SOURCE_DIR "/models/tiny-gdn"
#define MAMBA2 RSSM_SOURCE_DIR "/models/tiny-mamba2"
#define FAMILY(name) RSSM_SOURCE_DIR "/tests/golden/families/" name

/* The config.json of a bundled model with some members replaced; a member set to "delete" goes. */
static json_t *changed(const char *model, const char *changes) {
    json_error_t error;
    char path[512];
    snprintf(path, sizeof path, "%s/config.json", model);
    json_t *config = json_load_file(path, 0, &error);
    json_t *more = json_loads(changes, 0, &error);
    if (config == NULL || more == NULL) {
        fail_msg("%s: %s", changes, error.text);
    }
    const char *key;
    json_t *value;
    json_object_foreach(more, key, value) {
        if (json_is_string(value) && strcmp(json_string_value(value), "delete") == 0) {
            json_object_del(config, key);
        } else {
            json_object_set(config, key, value);
        }
    }
    json_decref(more);
    return config;
}

/* Parses and frees it. */
static rse_status parse(json_t *json, const char *generation, rse_config *config, rse_error *err) {
    char *text = json_dumps(json, 0);
    json_decref(json);
    rse_status status = rse_config_parse(text, strlen(text), generation,
                                         generation != NULL ? strlen(generation) : 0, config, err);
    free(text);
    return status;
}

static rse_config accept(json_t *json, const char *generation) {
    rse_config config;
    rse_error err = {0};
    if (parse(json, generation, &config, &err) != RSE_OK) {
        fail_msg("%s", err.text);
    }
    return config;
}

static void bundled_gdn(void **state) {
    (void)state;
    rse_config c;
    rse_error err = {0};
    assert_int_equal(rse_config_load(GDN, &c, &err), RSE_OK);
    assert_string_equal(c.model_type, "qwen3_5_text");
    assert_int_equal(c.family, RSE_FAMILY_QWEN35);
    assert_int_equal(c.vocab, 4096);
    assert_int_equal(c.hidden, 256);
    assert_int_equal(c.layers, 8);
    assert_int_equal(rse_config_count(&c, RSE_LAYER_GDN), 6);
    assert_int_equal(c.layer[3], RSE_LAYER_ATTENTION);
    assert_int_equal(c.layer[7], RSE_LAYER_ATTENTION);
    assert_int_equal(c.ssm.key_heads, 2);
    assert_int_equal(c.ssm.value_heads, 4);
    assert_int_equal(c.ssm.d_k, 128);
    assert_int_equal(c.ssm.d_v, 128);
    assert_int_equal(c.ssm.conv_width, 4);
    assert_false(c.ssm.conv_bias);
    assert_int_equal(c.ssm.gate_act, RSE_ACT_SILU);
    assert_int_equal(c.attention.q_heads, 4);
    assert_int_equal(c.attention.kv_heads, 2);
    assert_int_equal(c.attention.head_dim, 64);
    assert_int_equal(c.attention.rotary, 16);
    assert_true(c.attention.rope_theta == 1e6);
    assert_true(c.attention.qk_norm && c.attention.output_gate && c.norm_plus_one && c.tied);
    assert_int_equal(c.mlp_width, 640);
    assert_int_equal(c.mlp_act, RSE_ACT_SILU);
    assert_true(c.norm_eps == 1e-6f);
    assert_int_equal(c.max_positions, 262144);
    assert_int_equal(c.bos, -1);
    assert_int_equal(c.eos_count, 1);
    assert_true(rse_config_is_eos(&c, 2) && !rse_config_is_eos(&c, 0));
    assert_string_equal(c.dtype, "bfloat16");
    assert_string_equal(rse_layer_name(c.layer[0]), "gdn");
}

static void bundled_mamba2(void **state) {
    (void)state;
    rse_config c;
    rse_error err = {0};
    assert_int_equal(rse_config_load(MAMBA2, &c, &err), RSE_OK);
    assert_int_equal(c.family, RSE_FAMILY_NEMOTRON_H);
    assert_int_equal(c.layers, 14);
    assert_int_equal(rse_config_count(&c, RSE_LAYER_MAMBA2), 6);
    assert_int_equal(rse_config_count(&c, RSE_LAYER_MLP), 6);
    assert_int_equal(rse_config_count(&c, RSE_LAYER_ATTENTION), 2);
    assert_int_equal(c.ssm.key_heads, 2);
    assert_int_equal(c.ssm.value_heads, 8);
    assert_int_equal(c.ssm.d_k, 128);
    assert_int_equal(c.ssm.d_v, 64);
    assert_true(c.ssm.conv_bias && !c.ssm.proj_bias);
    assert_int_equal(c.attention.rotary, 0);
    assert_false(c.attention.qk_norm || c.attention.output_gate || c.norm_plus_one || c.tied);
    assert_int_equal(c.mlp_act, RSE_ACT_RELU2);
    assert_int_equal(c.mtp_blocks, 0);
}

/* What the families have in common and what they do not, as the goldens' configurations say it. */
static void families_are_read(void **state) {
    (void)state;
    rse_config c = accept(changed(FAMILY("qwen3_next"), "{}"), NULL);
    assert_int_equal(c.family, RSE_FAMILY_QWEN35);
    assert_true(c.ffn[0] == RSE_LAYER_MOE && c.ffn[1] == RSE_LAYER_MLP && c.moe.shared_gate && !c.moe.sigmoid);
    c = accept(changed(FAMILY("nemotron_h_latent"), "{}"), NULL);
    assert_true(c.moe.sigmoid && c.moe.correction && c.moe.latent == 18 && c.moe.scale == 2.5f);
    assert_int_equal(rse_config_count(&c, RSE_LAYER_MOE), 2);
    c = accept(changed(FAMILY("mamba2"), "{}"), NULL);
    assert_int_equal(c.max_positions, 1 << 20);
    assert_true(c.ssm.value_heads == 6 && c.ssm.d_v == 12 && c.tied);
    c = accept(changed(FAMILY("granite_moe"), "{}"), NULL);
    assert_true(c.embedding_scale == 3.0f && c.residual_scale == 0.4f && c.logit_divisor == 1.7f);
    assert_true(c.attention.scale == 0.3f && c.attention.head_dim == 6 && c.attention.rotary == 0);
    c = accept(changed(FAMILY("kimi_linear"), "{}"), NULL);
    assert_true(c.layer[0] == RSE_LAYER_KDA && c.layer[3] == RSE_LAYER_MLA && c.ffn[0] == RSE_LAYER_MLP);
    assert_true(c.attention.kv_heads == 1 && c.attention.head_dim == 24 && c.max_positions == 512);
    assert_string_equal(rse_layer_name(c.layer[1]), "mla");
    c = accept(changed(FAMILY("kimi_k3"), "{}"), NULL);
    assert_true(c.family == RSE_FAMILY_KIMI_LINEAR && c.residual == RSE_RESIDUAL_BANK && c.bank_layers == 2);
    assert_true(c.ssm.gate_lower_bound == -5.0f && c.ssm.full_gate && c.attention.latent_gate);
    assert_true(c.moe.latent == 18 && c.moe.latent_norm && c.mlp_act == RSE_ACT_SITU && c.act_limit == 4.0f);
    c = accept(changed(FAMILY("glm5_next"), "{}"), NULL);
    assert_true(c.residual == RSE_RESIDUAL_STREAMS && c.streams == 4 && c.stream_iterations == 5);
    assert_int_equal(c.max_positions, 512); /* what the indexer selects, not max_position_embeddings */
    assert_true(c.act_limit == 1.5f && c.attention.latent_eps == c.norm_eps && c.eos_count == 2);
}

/* A05: dt is bounded by time_step_limit alone; time_step_min, _max and _floor are for initialisation. */
static void A05_only_time_step_limit_clamps(void **state) {
    (void)state;
    rse_config c = accept(changed(MAMBA2, "{\"time_step_min\":0.001,\"time_step_floor\":0.01}"), NULL);
    assert_true(c.ssm.dt_min == 0 && isinf(c.ssm.dt_max));
    c = accept(changed(MAMBA2, "{\"time_step_limit\":\"delete\"}"), NULL);
    assert_true(c.ssm.dt_min == 0 && isinf(c.ssm.dt_max));
    c = accept(changed(MAMBA2, "{\"time_step_limit\":[0,0.05]}"), NULL);
    assert_true(c.ssm.dt_min == 0 && c.ssm.dt_max == 0.05f);
    char text[] = "{\"time_step_limit\": [0.0, Infinity], \"model_type\": \"nemotron_h\", \"vocab_size\": 8, "
                  "\"hidden_size\": 4,"
                  "\"hybrid_override_pattern\": \"M-*\", \"num_hidden_layers\": 52, \"intermediate_size\": 8, "
                  "\"norm_eps\": 1e-5,"
                  "\"n_groups\": 1, \"mamba_num_heads\": 2, \"ssm_state_size\": 4, \"mamba_head_dim\": 4, "
                  "\"conv_kernel\": 4,"
                  "\"num_attention_heads\": 2, \"attention_head_dim\": 2, \"expand\": 2, \"use_bias\": true}";
    rse_error err = {0};
    assert_int_equal(rse_config_parse(text, strlen(text), NULL, 0, &c, &err), RSE_OK);
    assert_true(isinf(c.ssm.dt_max));
    assert_int_equal(c.layers, 3); /* the pattern, not num_hidden_layers */
    assert_int_equal(c.layer[1], RSE_LAYER_MLP);
    assert_int_equal(c.attention.kv_heads, 2);
    assert_int_equal(c.attention.head_dim, 2);
    assert_true(c.ssm.proj_bias);
}

/* F08: end tokens of all files together. */
static void F08_end_tokens_are_united(void **state) {
    (void)state;
    rse_config c = accept(changed(GDN, "{\"eos_token_id\":[2,7]}"), "{\"eos_token_id\":[9,2]}");
    assert_int_equal(c.eos_count, 3);
    assert_true(rse_config_is_eos(&c, 2) && rse_config_is_eos(&c, 7) && rse_config_is_eos(&c, 9));
    c = accept(changed(GDN, "{\"eos_token_id\":null}"), "{\"eos_token_id\":5}");
    assert_int_equal(c.eos_count, 1);
    c = accept(changed(GDN, "{\"eos_token_id\":\"delete\"}"), "{}");
    assert_int_equal(c.eos_count, 0);
    rse_error err = {0};
    assert_int_equal(parse(changed(GDN, "{}"), "{\"eos_token_id\":4096}", &c, &err), RSE_ERROR_FORMAT);
    assert_non_null(strstr(err.text, "generation_config.json"));
    assert_int_equal(parse(changed(GDN, "{}"), "[]", &c, &err), RSE_ERROR_FORMAT);
    assert_int_equal(parse(changed(GDN, "{}"), "{", &c, &err), RSE_ERROR_FORMAT);
}

static void text_parts_are_found_in_multimodal_files(void **state) {
    (void)state;
    static const char *const members[] = {"text_config", "llm_config"};
    for (int i = 0; i < 2; ++i) {
        json_t *root =
            json_pack("{s:s,s:i,s:b,s:o}", "model_type", "qwen3_5", "eos_token_id", 11, "tie_word_embeddings",
                      1, members[i], changed(GDN, "{\"tie_word_embeddings\":\"delete\"}"));
        rse_config c = accept(root, NULL);
        assert_string_equal(c.model_type, "qwen3_5_text");
        assert_true(c.tied);
        assert_true(rse_config_is_eos(&c, 11) && rse_config_is_eos(&c, 2));
    }
}

static void spellings_of_several_generations_agree(void **state) {
    (void)state;
    rse_config c = accept(changed(GDN, "{\"layer_types\":\"delete\",\"full_attention_interval\":4}"), NULL);
    assert_int_equal(rse_config_count(&c, RSE_LAYER_ATTENTION), 2);
    assert_int_equal(c.layer[3], RSE_LAYER_ATTENTION);
    c = accept(
        changed(GDN, "{\"rope_parameters\":\"delete\",\"rope_theta\":10000000,\"partial_rotary_factor\":0.5}"),
        NULL);
    assert_true(c.attention.rope_theta == 1e7);
    assert_int_equal(c.attention.rotary, 32);
    c = accept(
        changed(GDN,
                "{\"partial_rotary_factor\":\"delete\",\"rope_parameters\":{\"rope_theta\":5000000,"
                "\"mrope_section\":[11,11,10]},\"mtp_num_hidden_layers\":1,\"output_gate_type\":\"swish\"}"),
        NULL);
    assert_int_equal(c.attention.rotary, 16);
    assert_int_equal(c.mtp_blocks, 1);
    assert_int_equal(c.ssm.gate_act, RSE_ACT_SILU);
    c = accept(
        changed(GDN, "{\"output_gate_type\":\"sigmoid\",\"attn_output_gate\":false,\"torch_dtype\":\"float32\","
                     "\"dtype\":\"delete\"}"),
        NULL);
    assert_int_equal(c.ssm.gate_act, RSE_ACT_SIGMOID);
    assert_false(c.attention.output_gate);
    assert_string_equal(c.dtype, "float32");
    c = accept(
        changed(MAMBA2,
                "{\"layers_block_type\":[\"mamba\",\"mlp\",\"attention\"],\"num_nextn_predict_layers\":1,"
                "\"layer_norm_epsilon\":\"delete\",\"rms_norm_eps\":1e-6}"),
        NULL);
    assert_int_equal(c.layer[0], RSE_LAYER_MAMBA2);
    assert_int_equal(c.layer[2], RSE_LAYER_ATTENTION);
    assert_true(c.norm_eps == 1e-6f);
    assert_int_equal(c.mtp_blocks, 1);
    c = accept(changed(MAMBA2, "{\"layers_block_type\":\"delete\",\"hybrid_override_pattern\":"
                               "\"M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M-\"}"),
               NULL);
    assert_int_equal(c.layers, 42);
    assert_int_equal(rse_config_count(&c, RSE_LAYER_MAMBA2), 21);
    assert_int_equal(c.layer[12], RSE_LAYER_ATTENTION);
    assert_int_equal(c.layer[32], RSE_LAYER_ATTENTION);
}

static const struct {
    const char *model, *changes, *named;
} refused[] = {
    {GDN, "{\"model_type\":\"llama\"}", "model_type llama is not supported; known: qwen3_5, qwen3_5_text, "},
    {GDN, "{\"model_type\":null}", "model_type is missing"},
    {GDN, "{\"model_type\":5}", "model_type is an integer"},
    {GDN, "{\"num_experts\":64}", "num_experts_per_tok is missing"},
    {GDN, "{\"quantization_config\":{\"quant_method\":\"gptq\"}}",
     "quant_method of quantization_config is gptq"},
    {GDN, "{\"quantization_config\":{}}", "is missing; known: fp8"},
    {GDN, "{\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[128]}}", "two sizes"},
    {GDN, "{\"hidden_act\":\"gelu\"}", "hidden_act is gelu, supported: silu, swish"},
    {GDN, "{\"output_gate_type\":\"tanh\"}", "output_gate_type is tanh"},
    {GDN, "{\"rope_parameters\":{\"rope_theta\":1e6,\"rope_type\":\"yarn\"}}", "rope_type is yarn"},
    {GDN, "{\"rope_scaling\":{\"type\":\"linear\"}}", "rope_type is linear"},
    {GDN, "{\"rope_parameters\":{}}", "rope_theta is missing"},
    {GDN, "{\"use_sliding_window\":true}", "use_sliding_window"},
    {GDN, "{\"sliding_window\":4096}", "sliding_window"},
    {GDN, "{\"layer_types\":[\"linear_attention\"]}", "layer_types"},
    {GDN, "{\"layer_types\":[\"sliding_attention\"]}", "sliding_attention"},
    {GDN, "{\"layer_types\":[7]}", "layer 0"},
    {GDN, "{\"num_hidden_layers\":100000}", "num_hidden_layers is 100000, not in 1..512"},
    {GDN, "{\"vocab_size\":0}", "vocab_size is 0"},
    {GDN, "{\"vocab_size\":\"4096\"}", "vocab_size is a string"},
    {GDN, "{\"vocab_size\":\"delete\"}", "vocab_size is missing"},
    {GDN, "{\"hidden_size\":-256}", "hidden_size is -256"},
    {GDN, "{\"hidden_size\":4294967296}", "hidden_size is 4294967296"},
    {GDN, "{\"head_dim\":\"delete\"}", "head_dim is missing"},
    {GDN, "{\"num_key_value_heads\":3}", "num_attention_heads is 4, not a multiple"},
    {GDN, "{\"linear_num_value_heads\":5}", "linear_num_value_heads is 5, not a multiple"},
    {GDN, "{\"linear_conv_kernel_dim\":9}", "linear_conv_kernel_dim is 9, not in 2..5"},
    {GDN, "{\"partial_rotary_factor\":2}", "partial_rotary_factor is 2"},
    {GDN, "{\"rope_parameters\":{\"rope_theta\":1e6,\"partial_rotary_factor\":0.3}}", "not an even number"},
    {GDN, "{\"rms_norm_eps\":0}", "rms_norm_eps is 0"},
    {GDN, "{\"rms_norm_eps\":{\"__float__\":\"NaN\"}}", "rms_norm_eps is"},
    {GDN, "{\"eos_token_id\":4096}", "eos_token_id"},
    {GDN, "{\"eos_token_id\":[2,\"x\"]}", "eos_token_id"},
    {GDN, "{\"eos_token_id\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}", "more than 16"},
    {GDN, "{\"tie_word_embeddings\":1}", "tie_word_embeddings is an integer"},
    {GDN, "{\"text_config\":[]}", "text_config is an array"},
    {MAMBA2, "{\"layers_block_type\":[\"mamba\",\"moe\"],\"n_routed_experts\":\"delete\"}",
     "n_routed_experts is missing"},
    {MAMBA2, "{\"layers_block_type\":\"delete\",\"hybrid_override_pattern\":\"M?\"}", "\"?\""},
    {MAMBA2, "{\"layers_block_type\":[]}", "lists a layer"},
    {MAMBA2, "{\"layers_block_type\":\"delete\"}", "lists a layer"},
    {MAMBA2, "{\"hybrid_override_pattern\":\"M-M\"}", "list different layers"},
    {MAMBA2, "{\"mlp_hidden_act\":\"silu\"}", "mlp_hidden_act is silu, supported: relu2"},
    {MAMBA2, "{\"mamba_hidden_act\":\"gelu\"}", "mamba_hidden_act is gelu"},
    {MAMBA2, "{\"n_groups\":3}", "mamba_num_heads is 8, not a multiple of n_groups, which is 3"},
    {MAMBA2, "{\"time_step_limit\":[0]}", "time_step_limit"},
    {MAMBA2, "{\"time_step_limit\":[1,0.5]}", "time_step_limit is [1, 0.5]"},
    {MAMBA2, "{\"time_step_limit\":[-1,1]}", "time_step_limit"},
    {MAMBA2, "{\"time_step_limit\":[0,{\"__float__\":\"NaN\"}]}", "time_step_limit"},
    {MAMBA2, "{\"layer_norm_epsilon\":\"delete\"}", "layer_norm_epsilon is missing"},
    {FAMILY("qwen3_5_moe"), "{\"num_experts_per_tok\":8}", "num_experts_per_tok is 8, not in 1..7"},
    {FAMILY("qwen3_5_moe"), "{\"moe_intermediate_size\":\"delete\"}", "moe_intermediate_size is missing"},
    {FAMILY("qwen3_next"), "{\"mlp_only_layers\":[3]}", "mlp_only_layers has an item that is no layer in 0..2"},
    {FAMILY("qwen3_next"), "{\"intermediate_size\":\"delete\"}", "intermediate_size is missing"},
    {FAMILY("nemotron_h_moe"), "{\"n_group\":4}", "n_group is 4, supported: 1"},
    {FAMILY("nemotron_h_moe"), "{\"n_routed_experts\":5000}", "n_routed_experts is 5000"},
    {FAMILY("nemotron_h_moe"), "{\"block_configs\":[1]}", "block_configs"},
    {FAMILY("nemotron_h_latent"), "{\"moe_latent_size\":0}", "moe_latent_size is 0"},
    {FAMILY("nemotron_h_latent"), "{\"routed_scaling_factor\":-1}", "routed_scaling_factor is -1"},
    {FAMILY("mamba2"), "{\"num_heads\":\"delete\"}", "num_heads is missing"},
    {FAMILY("granite_moe"), "{\"position_embedding_type\":\"alibi\"}", "position_embedding_type is alibi"},
    {FAMILY("granite_moe"), "{\"layer_types\":[\"mamba\",\"mlp\",\"mamba\"]}",
     "layer_types does not list 3 layers"},
    {FAMILY("granite_moe"), "{\"residual_multiplier\":0}", "residual_multiplier is 0"},
    {FAMILY("kimi_linear"), "{\"num_hidden_layers\":5}", "4 of 5 layers are named"},
    {FAMILY("kimi_linear"), "{\"mla_use_nope\":false}", "mla_use_nope is false"},
    {FAMILY("kimi_linear"), "{\"linear_attn_config\":{\"kda_layers\":[1,1],\"full_attn_layers\":[2]}}",
     "item 1 of kda_layers is no layer in 1..4, or one named twice"},
    {FAMILY("kimi_linear"), "{\"moe_router_activation_func\":\"tanh\"}", "moe_router_activation_func is tanh"},
    {FAMILY("kimi_linear"), "{\"kv_lora_rank\":\"delete\"}", "kv_lora_rank is missing"},
    {FAMILY("kimi_linear"), "{\"moe_layer_freq\":2}", "moe_layer_freq is 2"},
    {FAMILY("kimi_linear"), "{\"hidden_act\":\"relu2\"}", "hidden_act is relu2, supported: silu"},
    {FAMILY("kimi_linear"), "{\"attn_res_block_size\":0}", "attn_res_block_size is 0"},
    {FAMILY("kimi_linear"), "{\"gate_lower_bound\":5}", "gate_lower_bound is 5"},
};

static void what_is_not_known_is_refused_by_name(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; ++i) {
        rse_config c;
        rse_error err = {0};
        rse_status status = parse(changed(refused[i].model, refused[i].changes), NULL, &c, &err);
        if (status != RSE_ERROR_FORMAT && status != RSE_ERROR_UNSUPPORTED) {
            fail_msg("%s: status %d", refused[i].changes, (int)status);
        }
        if (strstr(err.text, refused[i].named) == NULL) {
            fail_msg("%s: \"%s\" does not say %s", refused[i].changes, err.text, refused[i].named);
        }
    }
}

static void missing_and_broken_files_are_refused(void **state) {
    (void)state;
    rse_config c;
    rse_error err = {0};
    assert_int_equal(rse_config_load("/nonexistent", &c, &err), RSE_ERROR_IO);
    assert_non_null(strstr(err.text, "/nonexistent/config.json"));
    static const char *const texts[] = {
        "", "[]", "3", "{", "{\"model_type\":\"qwen3_5\"}", "{\"a\":1,\"a\":2}"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; ++i) {
        assert_int_equal(rse_config_parse(texts[i], strlen(texts[i]), NULL, 0, &c, &err), RSE_ERROR_FORMAT);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bundled_gdn),
        cmocka_unit_test(bundled_mamba2),
        cmocka_unit_test(families_are_read),
        cmocka_unit_test(A05_only_time_step_limit_clamps),
        cmocka_unit_test(F08_end_tokens_are_united),
        cmocka_unit_test(text_parts_are_found_in_multimodal_files),
        cmocka_unit_test(spellings_of_several_generations_agree),
        cmocka_unit_test(what_is_not_known_is_refused_by_name),
        cmocka_unit_test(missing_and_broken_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
