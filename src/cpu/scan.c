/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory a scan works in, the same for every instruction set. scan.inl.h hands it out and checks the
 * sum. */
#include "cpu/scan.h"

size_t rssm_scan_scratch(int32_t d_k, int32_t d_v, int32_t delta, int32_t vector_decay) {
    enum { CHUNK = 16, CHUNKS = RSSM_SCAN_TOKENS / CHUNK, TILE_ROWS = 32 };
    (void)d_v, (void)delta; /* the state passes through in tiles of a fixed height, u beside it */
    size_t row = (size_t)rssm_padded(d_k);
    size_t tile = (row + 3 * CHUNK) * TILE_ROWS + CHUNK * (CHUNK + 2 * row);
    size_t chunk = 4 * CHUNK * CHUNK + 2 * CHUNK + row;
    size_t decayed = vector_decay ? (CHUNK + 3 * RSSM_SCAN_TOKENS) * row : 0;
    return tile + CHUNKS * chunk + decayed;
}
