/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target without a fuzzer: every seed as it is, then mutations of it from a fixed sequence of
 * random numbers. Most mutations touch the first bytes, where the lengths and counts are.
 *
 * usage: fuzz_NAME MUTATIONS SEED-FILE...
 */
#include "target.h"

#include <string.h>

enum { HEAD = 4096 };

static uint64_t random_next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static size_t mutate(uint8_t *data, size_t size, uint64_t *state) {
    static const uint8_t edges[] = {0x00, 0x01, 0x7f, 0x80, 0xff, '"', '{', '}', '0', '9', '-', ','};
    size_t changes = 1 + random_next(state) % 4;
    for (size_t i = 0; i < changes && size > 0; i++) {
        size_t range = random_next(state) % 4 > 0 && size > HEAD ? HEAD : size;
        size_t at = random_next(state) % range;
        switch (random_next(state) % 5) {
        case 0:
            data[at] ^= (uint8_t)(1u << random_next(state) % 8);
            break;
        case 1:
            data[at] = edges[random_next(state) % sizeof edges];
            break;
        case 2: { /* a piece moves */
            size_t from = random_next(state) % range, length = random_next(state) % 32;
            length = length < size - at ? length : size - at;
            length = length < size - from ? length : size - from;
            memmove(data + at, data + from, length);
            break;
        }
        case 3: { /* a piece goes */
            size_t length = 1 + random_next(state) % 16;
            length = length < size - at ? length : size - at;
            memmove(data + at, data + at + length, size - at - length);
            size -= length;
            break;
        }
        default:
            size = random_next(state) % 8 == 0 ? at : size;
        }
    }
    return size;
}

int main(int argc, char **argv) {
    long mutations = argc > 1 ? strtol(argv[1], NULL, 10) : 0;
    uint64_t state = 1;
    for (int i = 2; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (file == NULL) {
            perror(argv[i]);
            return 1;
        }
        static uint8_t seed[1 << 20];
        size_t size = fread(seed, 1, sizeof seed, file);
        fclose(file);
        LLVMFuzzerTestOneInput(seed, size);
        for (long m = 0; m < mutations; m++) {
            uint8_t *data = malloc(size + 1); /* of its own, so that a sanitizer sees its end */
            if (data == NULL) {
                return 1;
            }
            memcpy(data, seed, size);
            LLVMFuzzerTestOneInput(data, mutate(data, size, &state));
            free(data);
        }
    }
    printf("%ld mutations of %d seeds\n", mutations, argc - 2);
    return 0;
}
