/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files as the loaders need them: mapped read-only, or read whole up to a limit. Failures name the path and
 * carry the system's reason.
 */
#ifndef RSE_FILE_H
#define RSE_FILE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A file in memory. data is NULL for an empty file. The file must not shrink while it is mapped. */
typedef struct rse_mapping {
    const uint8_t *data;
    size_t size; /* bytes */
} rse_mapping;

rse_status rse_file_map(const char *path, rse_mapping *mapping, rse_error *err);
/* Leaves the mapping empty; an empty one is fine. */
void rse_file_unmap(rse_mapping *mapping);

/* Reads a regular file of at most `limit` bytes. *data has one NUL beyond *size and is freed by the caller. */
rse_status rse_file_read(const char *path, size_t limit, char **data, size_t *size, rse_error *err);

bool rse_file_exists(const char *path);
bool rse_file_is_directory(const char *path);

/* "directory/name", freed by the caller; NULL if there is no memory. */
char *rse_path_join(const char *directory, const char *name);

#endif
