/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The numeric tests on a CUDA device. They are written for the CPU: arrays on the stack, memory that is looked at between
 * calls, a status for every bad value. on_device.c stands between them and the library (the linker wraps its functions):
 * what the tests map is memory of the host that the device can read, arrays are copied there, each call waits for the
 * device, and the device's faults come back as statuses.
 */
#ifndef RSSM_TESTS_ON_DEVICE_H
#define RSSM_TESTS_ON_DEVICE_H

#include <stddef.h>

#ifdef RSSM_TEST_CUDA
enum { CB_DEVICE = 1 };
#else
enum { CB_DEVICE = 0 };
#endif

/* isa_mask of a context that is to be one of the device. */
#define ON_DEVICE_MASK (UINT64_C(1) << 62)

/* Whole pages that host and device read and write; NULL if there are none left. */
void *on_device_map(size_t bytes);
void on_device_unmap(void *pages, size_t bytes);

#endif
