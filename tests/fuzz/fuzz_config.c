/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as config.json, quantisation included, and as generation_config.json. */
#include "load/hfconfig.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char good[] =
        "{\"model_type\":\"mamba2\",\"vocab_size\":8,\"hidden_size\":4,\"num_hidden_layers\":1,"
        "\"n_groups\":1,\"num_heads\":2,\"head_dim\":4,\"state_size\":4,\"conv_kernel\":4,"
        "\"layer_norm_epsilon\":1e-5}";
    rse_config config;
    rse_error err;
    (void)rse_config_parse((const char *)data, size, NULL, 0, &config, &err);
    (void)rse_config_parse(good, sizeof good - 1, (const char *)data, size, &config, &err);
    return 0;
}
