/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that can fail, counted, and one of them made to fail. */
#ifndef RSSM_FAULTS_H
#define RSSM_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

/* Starts counting from zero; the call with this number will fail, none if it is negative. */
void fault_arm(int64_t number);
/* Nothing fails from here on. Returns how many calls there were. */
int64_t fault_disarm(void);
/* The name of the call that failed since it was armed; NULL: none has. */
const char *fault_struck(void);
/* Allocations that were not freed. */
int64_t fault_live(void);

#endif
