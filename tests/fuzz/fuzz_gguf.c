/* SPDX-License-Identifier: Apache-2.0 */
/* A GGUF file of any bytes: read, surveyed, its metadata, names and tokenizer taken, and built as a model. */
#include "load/gguf_model.h"
#include "load/survey.h"
#include "model/model.h"
#include "target.h"
#include "text/tokenizer.h"

#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    rse_error err;
    rse_gguf *file;
    snprintf(path, sizeof path, "/dev/shm/replayssm-fuzz-%d.gguf", (int)getpid());
    input_write(path, data, size);
    if (rse_gguf_open(path, &file, &err) == RSE_OK) {
        rse_config config;
        rse_survey survey;
        rse_model *model;
        rse_tokenizer *tokenizer;
        (void)rse_gguf_config(file, &config, &err);
        for (size_t i = 0; i < rse_gguf_count(file) && i < 64; i++) {
            rse_text name = {0};
            (void)rse_gguf_canonical(file, rse_gguf_at(file, i)->name, &name, &err);
            rse_text_free(&name);
        }
        (void)rse_survey_read(path, &survey, &err);
        if (rse_gguf_has_tokenizer(file) && rse_tokenizer_load(path, &tokenizer, &err) == RSE_OK) {
            rse_tokenizer_free(tokenizer);
        }
        rse_gguf_close(file);
        if (rse_model_open(path, &model, &err) == RSE_OK) {
            rse_model_close(model);
        }
    }
    unlink(path);
    return 0;
}
