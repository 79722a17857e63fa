/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the safetensors of a checkpoint with packed weights. */
#include "model/model.h"
#include "target.h"

#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char config[] = RSSM_SOURCE_DIR "/tests/golden/families/nemotron_h_nvfp4/config.json";
    char directory[64], path[128], link[128];
    rse_error err;
    rse_model *model;
    snprintf(directory, sizeof directory, "/dev/shm/replayssm-fuzz-%d", (int)getpid());
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    snprintf(link, sizeof link, "%s/config.json", directory);
    if (mkdir(directory, 0700) != 0 || symlink(config, link) != 0) {
        abort();
    }
    input_write(path, data, size);
    if (rse_model_open(directory, &model, &err) == RSE_OK) {
        rse_model_close(model);
    }
    unlink(path);
    unlink(link);
    rmdir(directory);
    return 0;
}
