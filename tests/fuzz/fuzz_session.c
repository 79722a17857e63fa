/* SPDX-License-Identifier: Apache-2.0 */
/* A session file of any bytes, under a checksum that is right: refused, or taken and gone on with. */
#include "engine.h"
#include "target.h"

#include <string.h>
#include <unistd.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static rse_engine *engine;
    static rse_session *session;
    rse_error err;
    if (engine == NULL && (rse_engine_open(RSSM_SOURCE_DIR "/tests/golden/families/qwen3_next",
                                           &(rse_engine_options){.threads = 1}, &engine, &err) != RSE_OK ||
                           rse_session_open(engine, 0, &session, &err) != RSE_OK)) {
        abort();
    }
    char path[64];
    uint8_t *file = malloc(size + 8);
    if (file == NULL) {
        abort();
    }
    memcpy(file, data, size);
    size_t body = size >= 8 ? size - 8 : 0;
    uint64_t checksum = XXH3_64bits(file, body);
    memcpy(file + body, &checksum, sizeof checksum);
    snprintf(path, sizeof path, "/dev/shm/replayssm-fuzz-%d.bin", (int)getpid());
    input_write(path, file, body + 8);
    free(file);
    rse_session_tail tail;
    if (rse_session_load(session, path, &tail, &err) == RSE_OK) {
        const int32_t token = 1;
        rse_row row = {.session = session, .tokens = &token, .count = 1, .accepted = RSE_ACCEPT_ALL};
        (void)rse_engine_step(engine, &row, 1, NULL, NULL, &err);
        free(tail.ids);
    }
    unlink(path);
    return rse_session_reset(session, 0, &err) == RSE_OK ? 0 : (abort(), 0);
}
