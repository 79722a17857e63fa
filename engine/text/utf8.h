/* SPDX-License-Identifier: Apache-2.0 */
/*
 * UTF-8 as Unicode defines it: no surrogates, no overlong forms, nothing above U+10FFFF.
 */
#ifndef RSE_UTF8_H
#define RSE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/*
 * Looks at the sequence that starts at text (length > 0). Returns its length, 1..4, if it is complete and
 * valid. Otherwise returns 0 or negative: 0 if the text ends inside a sequence that is valid so far; -n if the
 * first n bytes (n >= 1) can never be part of one (a "maximal subpart", to be replaced by one U+FFFD).
 */
int rse_utf8_step(const uint8_t *text, size_t length);

/* Offset of the first byte that is not part of valid UTF-8, or length if all is valid. */
size_t rse_utf8_check(const char *text, size_t length);

/* Writes 1..4 bytes and returns their number; the code point must be valid. */
int rse_utf8_put(uint32_t code, char out[4]);
/* Reads the code point of a valid sequence and its length. */
uint32_t rse_utf8_get(const char *text, int *length);

#endif
