/* SPDX-License-Identifier: Apache-2.0 */
/* What a fuzz target is, and an input as a file. */
#ifndef RSSM_FUZZ_TARGET_H
#define RSSM_FUZZ_TARGET_H

#include <stdint.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Writes the input where only memory is written, and leaves the path. */
static inline void input_write(const char *path, const uint8_t *data, size_t size) {
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(data, 1, size, file) != size) {
        abort();
    }
    fclose(file);
}

#endif
