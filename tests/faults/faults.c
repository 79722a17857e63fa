/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The other side of ld's --wrap: each call is counted and passed on, but for the one that is to fail. A file that is
 * closed with a failure is closed all the same, as close(2) does.
 */
#include "faults.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static _Atomic int64_t calls, live;
static _Atomic int64_t target = -1;
static const char *_Atomic struck;

void fault_arm(int64_t number) {
    calls = 0;
    struck = NULL;
    target = number;
}

int64_t fault_disarm(void) {
    target = -1;
    return calls;
}

const char *fault_struck(void) {
    return struck;
}

int64_t fault_live(void) {
    return live;
}

static bool fails(const char *name, int error) {
    int64_t number = calls++;
    if (target < 0 || number != target) {
        return false;
    }
    struck = name;
    errno = error;
    return true;
}

static void *counted(void *memory) {
    live += memory != NULL;
    return memory;
}

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size) {
    return fails("malloc", ENOMEM) ? NULL : counted(__real_malloc(size));
}

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size) {
    return fails("calloc", ENOMEM) ? NULL : counted(__real_calloc(count, size));
}

void *__real_realloc(void *memory, size_t size);
void *__wrap_realloc(void *memory, size_t size);
void *__wrap_realloc(void *memory, size_t size) {
    if (fails("realloc", ENOMEM)) {
        return NULL;
    }
    live += memory == NULL;
    return __real_realloc(memory, size);
}

void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size) {
    return fails("aligned_alloc", ENOMEM) ? NULL : counted(__real_aligned_alloc(alignment, size));
}

int __real_posix_memalign(void **memory, size_t alignment, size_t size);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t size);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t size) {
    int error = fails("posix_memalign", ENOMEM) ? ENOMEM : __real_posix_memalign(memory, alignment, size);
    live += error == 0;
    return error;
}

char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
char *__wrap_strdup(const char *text) {
    return fails("strdup", ENOMEM) ? NULL : counted(__real_strdup(text));
}

char *__real_strndup(const char *text, size_t length);
char *__wrap_strndup(const char *text, size_t length);
char *__wrap_strndup(const char *text, size_t length) {
    return fails("strndup", ENOMEM) ? NULL : counted(__real_strndup(text, length));
}

void __real_free(void *memory);
void __wrap_free(void *memory);
void __wrap_free(void *memory) {
    live -= memory != NULL;
    __real_free(memory);
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) {
    return fails("open", EMFILE) ? -1 : __real_open(path, flags);
}

ssize_t __real_read(int fd, void *buffer, size_t size);
ssize_t __wrap_read(int fd, void *buffer, size_t size);
ssize_t __wrap_read(int fd, void *buffer, size_t size) {
    return fails("read", EIO) ? -1 : __real_read(fd, buffer, size);
}

int __real_fstat(int fd, struct stat *info);
int __wrap_fstat(int fd, struct stat *info);
int __wrap_fstat(int fd, struct stat *info) {
    return fails("fstat", EIO) ? -1 : __real_fstat(fd, info);
}

void *__real_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
    return fails("mmap", ENOMEM) ? MAP_FAILED : __real_mmap(at, size, protection, flags, fd, offset);
}

FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode) {
    return fails("fopen", EMFILE) ? NULL : __real_fopen(path, mode);
}

size_t __real_fwrite(const void *data, size_t size, size_t count, FILE *file);
size_t __wrap_fwrite(const void *data, size_t size, size_t count, FILE *file);
size_t __wrap_fwrite(const void *data, size_t size, size_t count, FILE *file) {
    return fails("fwrite", ENOSPC) ? 0 : __real_fwrite(data, size, count, file);
}

int __real_fflush(FILE *file);
int __wrap_fflush(FILE *file);
int __wrap_fflush(FILE *file) {
    return fails("fflush", ENOSPC) ? EOF : __real_fflush(file);
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd) {
    return fails("fsync", EIO) ? -1 : __real_fsync(fd);
}

int __real_fclose(FILE *file);
int __wrap_fclose(FILE *file);
int __wrap_fclose(FILE *file) {
    bool fault = fails("fclose", EIO);
    int result = __real_fclose(file);
    return fault ? EOF : result;
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to) {
    return fails("rename", EACCES) ? -1 : __real_rename(from, to);
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    return fails("pthread_create", EAGAIN) ? EAGAIN : __real_pthread_create(thread, attributes, run, argument);
}
