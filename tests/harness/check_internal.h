/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of check.h only. */
#ifndef RSSM_TESTS_CHECK_INTERNAL_H
#define RSSM_TESTS_CHECK_INTERNAL_H

/* Puts the memory of the running case aside and starts with none; pop brings it back (the inner one is
 * released). */
void *chk_memory_push(void);
void chk_memory_pop(void *outer);
/* After a crash: the case's memory stays where it is, for good. */
void chk_memory_forget(void);

#endif
