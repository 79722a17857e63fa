/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of well-formed sequences (Unicode, table 3-7): the first byte fixes the length and the range of the
 * second byte; all later bytes are 80..BF.
 */
#include "text/utf8.h"

int rse_utf8_step(const uint8_t *text, size_t length) {
    uint8_t first = text[0];
    if (first < 0x80) {
        return 1;
    }
    int n = first >= 0xc2 && first <= 0xdf   ? 2
            : (first & 0xf0) == 0xe0         ? 3
            : first >= 0xf0 && first <= 0xf4 ? 4
                                             : 0;
    if (n == 0) {
        return -1;
    }
    uint8_t low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    uint8_t high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    for (int i = 1; i < n; ++i) {
        if ((size_t)i == length) {
            return 0;
        }
        if (text[i] < low || text[i] > high) {
            return -i;
        }
        low = 0x80;
        high = 0xbf;
    }
    return n;
}

size_t rse_utf8_check(const char *text, size_t length) {
    const uint8_t *bytes = (const uint8_t *)text;
    size_t i = 0;
    while (i < length) {
        int n = rse_utf8_step(bytes + i, length - i);
        if (n <= 0) {
            break;
        }
        i += (size_t)n;
    }
    return i;
}

int rse_utf8_put(uint32_t code, char out[4]) {
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    int n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; --i) {
        out[i] = (char)(0x80 | (code & 0x3f));
        code >>= 6;
    }
    static const uint32_t mark[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    out[0] = (char)(mark[n] | code);
    return n;
}

uint32_t rse_utf8_get(const char *text, int *length) {
    static const uint32_t mask[5] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint8_t first = (uint8_t)text[0];
    int n = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    uint32_t code = first & mask[n];
    for (int i = 1; i < n; ++i) {
        code = code << 6 | ((uint8_t)text[i] & 0x3fu);
    }
    *length = n;
    return code;
}
