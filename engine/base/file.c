/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files through POSIX calls. Only regular files are opened: a directory, a pipe or a device in the place of a
 * model file is a mistake that would otherwise show up as a strange read error or a wait without end.
 */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static rse_status fail_errno(const char *path, const char *action, rse_error *err) {
    return rse_fail(err, RSE_ERROR_IO, "%s: cannot %s: %s", path, action, strerror(errno));
}

static rse_status open_regular(const char *path, int *fd, size_t *size, rse_error *err) {
    /* O_NONBLOCK keeps the open of a pipe from waiting for a writer; it does nothing to a regular file. */
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) {
        return fail_errno(path, "open", err);
    }
    struct stat info;
    rse_status status = RSE_OK;
    if (fstat(*fd, &info) != 0) {
        status = fail_errno(path, "examine", err);
    } else if (!S_ISREG(info.st_mode)) {
        status = rse_fail(err, RSE_ERROR_IO, "%s: is %s, not a file", path,
                          S_ISDIR(info.st_mode) ? "a directory" : "a device or pipe");
    } else {
        *size = (size_t)info.st_size;
    }
    if (status != RSE_OK) {
        close(*fd);
    }
    return status;
}

rse_status rse_file_map(const char *path, rse_mapping *mapping, rse_error *err) {
    *mapping = (rse_mapping){NULL, 0};
    int fd;
    size_t size = 0;
    RSE_TRY(open_regular(path, &fd, &size, err));
    rse_status status = RSE_OK;
    if (size > 0) {
        void *data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            status = fail_errno(path, "map", err);
        } else {
            *mapping = (rse_mapping){data, size};
        }
    }
    close(fd);
    return status;
}

void rse_file_unmap(rse_mapping *mapping) {
    if (mapping->data != NULL) {
        munmap((void *)(uintptr_t)mapping->data, mapping->size);
    }
    *mapping = (rse_mapping){NULL, 0};
}

static rse_status read_all(int fd, const char *path, char *data, size_t size, rse_error *err) {
    for (size_t done = 0; done < size;) {
        ssize_t n = read(fd, data + done, size - done);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return fail_errno(path, "read", err);
        }
        if (n == 0) {
            return rse_fail(err, RSE_ERROR_IO, "%s: ends at byte %zu of %zu", path, done, size);
        }
        done += (size_t)n;
    }
    data[size] = '\0';
    return RSE_OK;
}

rse_status rse_file_read(const char *path, size_t limit, char **data, size_t *size, rse_error *err) {
    *data = NULL;
    *size = 0;
    int fd;
    size_t length = 0;
    RSE_TRY(open_regular(path, &fd, &length, err));
    rse_status status = RSE_OK;
    char *text = NULL;
    if (length > limit) {
        status =
            rse_fail(err, RSE_ERROR_FORMAT, "%s: has %zu bytes, at most %zu are allowed", path, length, limit);
    } else if ((text = malloc(length + 1)) == NULL) {
        status = rse_fail(err, RSE_ERROR_MEMORY, "%s: no memory for %zu bytes", path, length);
    } else {
        status = read_all(fd, path, text, length, err);
    }
    close(fd);
    if (status != RSE_OK) {
        free(text);
        return status;
    }
    *data = text;
    *size = length;
    return RSE_OK;
}

bool rse_file_exists(const char *path) {
    return access(path, F_OK) == 0;
}

bool rse_file_is_directory(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

char *rse_path_join(const char *directory, const char *name) {
    size_t a = strlen(directory);
    size_t b = strlen(name);
    bool slash = a > 0 && directory[a - 1] != '/';
    char *path = malloc(a + slash + b + 1);
    if (path != NULL) {
        memcpy(path, directory, a);
        if (slash) {
            path[a] = '/';
        }
        memcpy(path + a + slash, name, b + 1);
    }
    return path;
}
