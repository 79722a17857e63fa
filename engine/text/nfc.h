/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unicode normalisation form C, in time linear in the text whatever it holds.
 */
#ifndef RSE_NFC_H
#define RSE_NFC_H

#include "base/buffer.h"

#include <stdbool.h>

/* Whether a valid text needs no look at the tables to be called normalised; false says nothing. */
bool rse_nfc_at_sight(const char *text, size_t length);
/* Appends the normalised form of valid UTF-8 to out. */
rse_status rse_nfc(const char *text, size_t length, rse_text *out, rse_error *err);

#endif
